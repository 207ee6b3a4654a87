"""Train the shipped model by reinforcement learning on larger lakes than it was taught, in thirty lines.

    python examples/train_in_30_lines.py        # under two minutes on two cores
    python examples/train_in_30_lines.py 80     # more updates

Needs the extra `lm`. Prints the success rate of the episodes of each update, and success on 512 held-out levels
before and after, with 95 % intervals. The folder of the run, such as `runs/lake-20`, has the report, the
checkpoints, and the best model in the format of transformers; it is continued with

    arboretum train --resume runs/lake-20 --set optimization.updates=100
"""

import sys

import arboretum

updates = int(sys.argv[1]) if len(sys.argv) > 1 else 20
result = arboretum.train(
    "grpo",  # or ppo, dapo, gigpo, tree_grpo, …
    "TextFrozenLake-v0",
    "sapling",  # or the folder of a model, or a name on the hub
    out=f"runs/lake-{updates}",
    env_args={"size": 5, "p_frozen": 0.8, "success_rate": 1.0, "observation_format": "grid"},
    dialogue="no_think",
    dialogue_args={"max_turns": 5, "max_actions_per_turn": 5, "max_actions": 10},
    settings={
        "sampler.prompts": 32,  # groups of an update
        "sampler.rollouts": 8,  # episodes of a group
        "sampler.reply_tokens": 24,
        "optimization.updates": updates,
        "optimization.warmup": 4,
        "optimization.lr": 3e-4,
        "optimization.episodes_per_step": 128,
    },
    validation={"every": updates, "tasks": 512},
    on_record=lambda record: print(record.metrics["update"], record.metrics.get("success", "")),
)
before, after = result.validations
for when, (rate, low, high) in (("before", before.success), ("after", after.success)):
    print(f"{when:6} {100 * rate:.0f} % of held-out levels solved ({100 * low:.0f} to {100 * high:.0f})")
print(f"Model: {result.model}")
