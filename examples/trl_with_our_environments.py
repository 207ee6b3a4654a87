"""TRL's GRPOTrainer on an environment of Arboretum: TRL trains, the episodes are played by Arboretum's loop.

    python examples/trl_with_our_environments.py      # about a minute on two cores

Needs the extra `trl`. `rollout_func` samples whole episodes with the embedded engine from the model that TRL
trains; `environment_factory` of TRL, with which the model calls the environment as a tool, is in
docs/trl.md. Prints the mean return of the episodes of each step, and success on held-out levels before and
after, with 95 % intervals: eight steps show that everything works, not what training adds.
"""

import argparse
from pathlib import Path

from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import arboretum
from arboretum.agents import make_dialogue, model_source
from arboretum.agents.adapters.trl import rollout_rows
from arboretum.agents.adapters.trl_rollout import episode_return, rollout_func

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=8, help="optimizer steps")
parser.add_argument("--out", type=Path, default="runs/trl", help="folder of TRL's run")
args = parser.parse_args()

env, dialogue = "TextSokoban-v0", make_dialogue("no_think", {"max_turns": 5})
config = GRPOConfig(
    output_dir=str(args.out),
    max_steps=args.steps,
    per_device_train_batch_size=64,
    num_generations=8,
    max_completion_length=24,  # of a reply; the dialogue limits the episode
    learning_rate=1e-4,
    lr_scheduler_type="constant",
    logging_steps=1,
    use_cpu=True,
    bf16=False,
    disable_tqdm=True,
    save_strategy="no",
    report_to=[],
)
trainer = GRPOTrainer(
    str(model_source("sapling")),
    args=config,
    train_dataset=Dataset.from_list(rollout_rows(env, 1000, dialogue)),
    rollout_func=rollout_func(env, dialogue),
    reward_funcs=episode_return,
)
trainer.remove_callback(PrinterCallback)  # It prints forty metrics a step.
trainer.train()
trainer.save_model()

print("mean returns", *(f"{log['reward']:.2f}" for log in trainer.state.log_history if "reward" in log))
for when, model in (("before", "sapling"), ("after", str(args.out))):
    result = arboretum.evaluate(env, "no_think", model=model, limit=64, max_tokens=24)
    ((rate, low, high),) = result.rates.values()
    print(f"{when:6} {100 * rate:.0f} % of held-out levels solved ({100 * low:.0f} to {100 * high:.0f})")
