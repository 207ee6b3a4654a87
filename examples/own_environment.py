"""An environment of one's own: a lake so slippery that a step slides on until something stops it.

A subclass of `TextEnv` defines how a level is made, how it is observed and what an action does. Snapshots,
seeds, step limits, copies and `info` come from the base class, and evaluation, search and training work with
them.

    python examples/own_environment.py                                # about ten seconds
    python examples/own_environment.py --model openai/gpt-4.1-mini    # needs the extra `openai`

Prints a level with the expert's plan, and the success rates of random actions, the expert and a model, with
their 95 % intervals. The shipped model was taught lakes on which a step moves one cell: it solves about half of
these levels, random actions a fifth. In this folder every command takes the environment by its path:

    arboretum verify own_environment:SlidingLake    # checks what an environment promises
    arboretum play own_environment:SlidingLake      # arrow keys
    arboretum train grpo --env own_environment:SlidingLake --model sapling --dialogue no_think \\
        --set sampler.reply_tokens=24 --set optimization.lr=3e-4
"""

from __future__ import annotations

import argparse
import random

import arboretum
from arboretum.envs import GeneratedTasks, Outcome, TextEnv, belongs, make_env, stable_seed

ENV = "own_environment:SlidingLake"  # module:Class
SIZE = 5
MOVES = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}


class SlidingLake(TextEnv):
    """Lake on which a step ends at the shore, in a hole, or at the goal. The state is the agent's cell."""

    optimum_is_exact = True  # The expert finds a shortest plan wherever there is one.
    deterministic = True

    def __init__(self, split=None, max_steps=10, reward_mode="dense", admissible=False, render_mode=None):
        super().__init__(
            config={}, max_steps=max_steps, reward_mode=reward_mode, admissible=admissible, render_mode=render_mode
        )
        self.tasks = GeneratedTasks(split)  # "train/0", "train/1", …; the name of a task determines its level

    instructions = (
        "You are on a frozen lake. A step slides on until the shore, a hole or the goal stops you. Reach the goal."
        f" On the board, P is you, _ is ice, O is a hole, G is the goal. Each action is one of {', '.join(MOVES)}."
    )

    def _open(self, task):
        split, rng = task.split("/")[0], random.Random(stable_seed("sliding lake", task))
        while True:  # until the level belongs to the split and takes two steps or more
            start, self.goal, *holes = rng.sample([(r, c) for r in range(SIZE) for c in range(SIZE)], k=7)
            self.holes = frozenset(holes)
            if belongs((start, self.goal, sorted(holes)), split) and len(self._plan(start) or ()) >= 2:
                return start

    def _slide(self, cell, action):
        while cell not in self.holes and cell != self.goal:
            row, column = (place + step for place, step in zip(cell, MOVES[action], strict=True))
            if not (0 <= row < SIZE and 0 <= column < SIZE):
                break
            cell = row, column
        return cell

    def _plan(self, start):
        frontier, seen = [(start, [])], {start}
        for cell, plan in frontier:  # Breadth-first search: the list grows while it is read.
            if cell == self.goal:
                return plan
            for action in MOVES:
                after = self._slide(cell, action)
                if after not in self.holes and after not in seen:
                    seen.add(after)
                    frontier.append((after, [*plan, action]))
        return None

    def _observe(self):
        symbols = {self.goal: "G", **dict.fromkeys(self.holes, "O"), self._state: "P"}
        return "\n".join("".join(symbols.get((r, c), "_") for c in range(SIZE)) for r in range(SIZE))

    def _apply(self, action):
        action = action.strip().capitalize()
        if action not in MOVES:
            refusal = f"There is no such action. Choose one of {', '.join(MOVES)}."
            return Outcome(refusal, 0.0, terminated=False, success=False, valid=False, changed=False)
        before, self._state = self._state, self._slide(self._state, action)
        won, lost = self._state == self.goal, self._state in self.holes
        return Outcome(self._observe(), float(won), won or lost, won, valid=True, changed=self._state != before)

    def state_key(self):
        return self._state, self.goal, self.holes

    def admissible_actions(self):
        return () if self._ended else tuple(MOVES)

    def expert_actions(self):
        return None if self._ended else self._within_limit(self._plan(self._state))

    def _find_plan(self):
        return self._plan(self._state)  # whatever the step limit, which `optimum()` checks itself


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sapling", help="model, as `arboretum eval --model` takes it")
    parser.add_argument("--tasks", type=int, default=100, help="number of held-out levels")
    args = parser.parse_args()

    env = make_env(ENV)
    print(env.reset(seed=1)[0])
    print("Expert:", ", ".join(env.expert_actions()), end="\n\n")
    agents = ["random", "expert", "no_think"]
    print(arboretum.evaluate(ENV, agents, model=args.model, limit=args.tasks, max_tokens=32))
