"""Update benchmark of TRL's GRPOTrainer: `python -m arboretum.trainers.bench.update_trl FOLDER SETTINGS`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from ...agents.episode import Episode
from .workload import (
    EPS,
    LR,
    Stopwatch,
    Workload,
    count_tokens,
    episode_tokens,
    read_episodes,
    save_first_gradient,
)


def run(folder: Path, workload: Workload) -> str:
    """Make `updates` + 1 updates with TRL's `train`, and return the report of the stopwatch.

    The trainer receives the episodes through its `rollout_func`, with `env_mask` for tokens that the policy did
    not sample. The time of an optimizer step covers forward, backward, metrics, clipping, AdamW and scheduler, but
    not `_prepare_inputs`, in which TRL samples, scores, pads and computes advantages. Our time therefore covers
    more work than TRL's.

    Args:
        folder: Folder of the workload.
        workload: Number of updates and of sequences per micro-batch.
    """
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    assert EPS == 1e-4, "TRL adds this constant to the standard deviation of a group"
    torch.set_num_threads(1)
    episodes, groups = read_episodes(folder)
    grouped: dict[Any, list[Episode]] = {}
    for episode, group in zip(episodes, groups, strict=True):
        grouped.setdefault(group, []).append(episode)
    by_prompt = {str(number): group for number, group in enumerate(grouped.values())}
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        remaining = {prompt: iter(group) for prompt, group in by_prompt.items()}
        output: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "payoff": []}
        for prompt in prompts:
            episode = next(remaining[prompt])
            ids, sampled = episode_tokens(episode)
            begin = sampled.index(1)
            output["prompt_ids"].append(ids[:begin])
            output["completion_ids"].append(ids[begin:])
            output["env_mask"].append(sampled[begin:])
            output["payoff"].append(episode.total_reward + episode.total_penalty)
        return {**output, "logprobs": None}

    def reward(prompts: Any, completions: Any, payoff: list[float], **_: Any) -> list[float]:
        return payoff

    class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
        """TRL's trainer with the CPU seconds of preparing inputs."""

        preparation_seconds = 0.0

        def _prepare_inputs(self, generation_batch: Any) -> Any:
            start = time.process_time()
            inputs = super()._prepare_inputs(generation_batch)
            self.preparation_seconds += time.process_time() - start
            return inputs

    class StopwatchCallback(TrainerCallback):  # type: ignore[misc]
        """Callback that times every optimizer step."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.timing = stopwatch.update()
            self.subtract = self.timing.__enter__()
            trainer.preparation_seconds = 0.0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.subtract(trainer.preparation_seconds)
            self.timing.__exit__(None, None, None)

        def on_train_begin(self, *_: Any, optimizer: Any, **__: Any) -> None:
            save_first_gradient(getattr(optimizer, "optimizer", optimizer), folder / "trl.pt")

    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=workload.sequences,
        gradient_accumulation_steps=len(episodes) // workload.sequences,
        num_generations=workload.rollouts,
        max_steps=workload.updates + 1,
        max_completion_length=4096,
        loss_type="dapo",
        beta=0.0,
        learning_rate=LR,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        shuffle_dataset=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = TimedTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32"),
        processing_class=tokenizer,
        reward_funcs=[reward],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in by_prompt]),
        rollout_func=rollout,
        callbacks=[StopwatchCallback()],
    )
    stopwatch = Stopwatch()
    trainer.train()
    return stopwatch.report(count_tokens(episodes))


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), Workload(**json.loads(sys.argv[2]))))  # noqa: T201
