"""What if? Fork an episode before every step, play each alternative to the end, and see where the choice mattered.

    python examples/what_if.py                                    # a random agent on slippery ice; two seconds
    python examples/what_if.py --agent no_think --model sapling   # the shipped model (extra `lm`)

A snapshot holds the whole episode. `restore(snapshot, seed=n)` returns to it and draws the random events that
follow anew, so that each alternative is played by the expert many times. Prints, for every step, the success
rate after each alternative, with the exact value in brackets: `optimum_after()` computes it without playing.
The action that was played is marked >, and a step in which it gave away more than five points is marked with a
star.
"""

import argparse

import gymnasium as gym

import arboretum

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--agent", default="random", help="agent of the episode")
parser.add_argument("--model", help="model of the agent, if it needs one")
parser.add_argument("--task", type=int, default=0, help="number of the level")
parser.add_argument("--samples", type=int, default=200, help="episodes per alternative")
args = parser.parse_args()


def play_out(env):
    """Play the expert's actions to the end; return 1 if that solves the task, else 0."""
    while plan := env.expert_actions():
        env.step(plan[0])  # The ice may slip, so the plan is made anew after every step.
    return env.optimum().value


env = gym.make("TextFrozenLake-v0", split="test", max_steps=20).unwrapped
episodes = arboretum.evaluate(env, args.agent, model=args.model, limit=args.task + 1).episodes
(episode,) = [one for one in episodes.values() if one.task == env.tasks[args.task]]

print(env.reset(seed=episode.seed, options={"task": episode.task})[0])
actions = env.admissible_actions()
print("\nstep", *(f"{action:>13}" for action in actions))
losses = []
for move in (move for turn in episode.turns for move in turn.moves):
    here, best, cells = env.snapshot(), env.optimum().value, []
    for action in actions:
        solved = 0
        for sample in range(args.samples):
            env.restore(here, seed=sample)
            env.step(action)
            solved += play_out(env)
        env.restore(here)
        exact = env.optimum_after(action).value
        if action == move.action:
            losses.append(best - exact)
        mark = ">" if action == move.action else " "
        cells.append(f"{mark}{100 * solved / args.samples:4.0f} % ({100 * exact:3.0f})")
    star = "*" if losses[-1] > 0.05 else ""
    print(f"{len(losses):4}", *cells, star)
    env.restore(here)  # without a seed: the played episode continues as it did
    env.step(move.action)

assert env.optimum().value == episode.success
worst = max(range(len(losses)), key=losses.__getitem__)
print(f"\n{'Solved' if episode.success else 'Not solved'}.", end=" ")
print(f"Step {worst + 1} gave away most: {100 * losses[worst]:.0f} points.")
