"""Supervised fine-tuning on expert episodes: the warm start of a training run.

for record in SFTTrainer(config).run():
    print(record["loss"])
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..agents.episode import Episode
from ..envs.errors import DataError
from ..envs.seeding import stable_seed
from .algorithms.objectives.loss import Sums
from .algorithms.recipe import Optimization
from .checkpoints.contents import trained_weights
from .checkpoints.export import export_model
from .checkpoints.interruption import Interruption
from .checkpoints.run_folder import CHECKPOINTS_FOLDER, METRICS_FILE, MODEL_FOLDER, record_code
from .checkpoints.store import Checkpoints, verify_checkpoint
from .checkpoints.taught_dialogue import record_dialogue
from .config.resolve import dialogue_in, make_entry
from .config.run import SFTConfig
from .data.episodes import from_episodes
from .data.microbatches import MicroBatch, optimizer_batches
from .data.rollouts import Rollouts
from .learning.accumulation import accumulate_gradients, rank_microbatches
from .learning.distributed import any_process, gather_lists, make_accelerator, make_optimizer
from .learning.memory import memory_failures
from .learning.policy import Policy, forward_inputs, load_trainable_model
from .learning.sharding import load_full_state_dict, merged_weights
from .reporting.metrics import MetricsFile
from .sampling.demonstrations import collect_demonstrations
from .sampling.failures import Failures
from .sampling.policy_engine import model_engine
from .sampling.sampler import RolloutSampler
from .state import Activity


class SFTTrainer:
    """Supervised fine-tuning run, new or resumed from its last checkpoint.

    Args:
        config: Configuration of the run.
        resume: Continue from the last checkpoint in the run's folder, if there is one.
        activity: Receives the phase in progress, for a display in another thread.
        interruption: Requests to stop. None makes one that nothing requests.

    Attributes:
        interrupted: True if the run ended early because a stop was requested.
        demonstrations: Expert episodes to train on; rolled out when the object is constructed.
        held_out: Further demonstrations, on which the loss is measured.
        failures: Episodes of the expert that ended with an error of the environment; they are left out.
        demonstration_cpu_seconds: CPU time of rolling out all demonstrations, in this process.
        steps: Optimizer steps in total.
        history: Metrics of all steps so far.

    Raises:
        ConfigurationError: A value is out of range, or the model cannot be loaded.
        DataError: The checkpoint cannot be read.
    """

    def __init__(
        self,
        config: SFTConfig,
        resume: bool = False,
        *,
        activity: Activity | None = None,
        interruption: Interruption | None = None,
    ) -> None:
        config.check_values()
        self.config = config
        self.activity = activity or Activity()
        self.interruption = interruption or Interruption(self.activity)
        self.interrupted = False
        self.checkpoints = Checkpoints(config.out / CHECKPOINTS_FOLDER)
        checkpoint = self.checkpoints.last if resume else None
        if checkpoint is not None:
            verify_checkpoint(checkpoint)  # before all demonstrations are rolled out
        self.activity.begin(f"loading {config.model}")
        hardware, sft = config.hardware, config.sft
        self.accelerator = make_accelerator(hardware.device, hardware.precision)
        model, self.tokenizer = load_trainable_model(
            config.model,
            str(self.accelerator.device),
            lora=hardware.lora,
            gradient_checkpointing=hardware.gradient_checkpointing,
        )
        engine = model_engine(model, self.tokenizer, hardware.in_flight, self.accelerator.autocast)
        dialogue = dialogue_in(config.env, config.dialogue)
        self.sampler = RolloutSampler(
            engine, dialogue, config.sampler, in_flight=hardware.in_flight, accelerator=self.accelerator
        )
        record_dialogue(model, self.sampler.dialogue.name)
        held_out = max(1, sft.episodes // 16)
        self.failures = Failures()
        self.activity.begin("demonstrating", sft.episodes + held_out, "episodes")
        cpu_start = time.process_time()
        episodes = collect_demonstrations(
            make_entry(config.env, config.env.split),
            sft.episodes + held_out,
            tokenizer=self.tokenizer,
            context=self.sampler.engine.context,
            dialogue=self.sampler.dialogue,
            expert=config.expert,
            template=dialogue.template,
            tasks=config.env.tasks,
            seed=config.seed,
            in_flight=hardware.in_flight,
            activity=self.activity,
            on_failures=self._note_failures,
        )
        self.demonstration_cpu_seconds = time.process_time() - cpu_start
        self.activity.end()
        self.demonstrations, self.held_out = episodes[:-held_out], episodes[-held_out:]
        self._rollouts = _as_rollouts(self.demonstrations)
        self._held_out_rollouts = _as_rollouts(self.held_out)
        steps_per_epoch = len(optimizer_batches(self._rollouts, sft.batch, seed=0))
        self.steps = steps_per_epoch * sft.epochs
        optimization = Optimization(
            updates=self.steps,
            lr=sft.lr,
            schedule="cosine",
            warmup=min(sft.warmup, self.steps - 1),
            weight_decay=sft.weight_decay,
        )
        self.optimizer = make_optimizer(self.accelerator, Policy(model), optimization)
        self._microbatch_tokens = hardware.microbatch_tokens or self.optimizer.default_microbatch_tokens
        self.history: list[dict[str, float]] = []
        if checkpoint is not None:
            self._load(checkpoint)
            if self.accelerator.is_main_process:
                record_code(config)

    def run(self) -> Iterator[dict[str, float]]:
        """Train, and yield the metrics of every step.

        Yields:
            `loss` and `entropy` per token before the step, `grad_norm`, `lr` and so on. The first step, and the
            last one of every epoch, also have `held_out/loss`.

        Raises:
            Diverged: Gradients were NaN or infinite in three consecutive steps.
            OutOfMemory: Memory ran out during a step.
            CheckpointError: A checkpoint could not be written.
        """
        config, sft = self.config, self.config.sft
        config.out.mkdir(parents=True, exist_ok=True)
        metrics = MetricsFile(config.out / METRICS_FILE)
        if self.accelerator.is_main_process:
            metrics.restart(self.history)
        done = len(self.history)
        step = 0
        for epoch in range(sft.epochs):
            batches = optimizer_batches(self._rollouts, sft.batch, seed=stable_seed("epoch", config.seed, epoch))
            for number, episodes in enumerate(batches, 1):
                step += 1
                if step <= done:
                    continue
                self.interruption.defer()
                if self._stop_requested():
                    self._save(step - 1)
                    self.interrupted = True
                    return
                self.activity.place = f"step {step} of {self.steps}"
                held_out = self.loss(self._held_out_rollouts) if step == 1 else None
                record = {"step": step, "epoch": epoch + 1, **self._take_step(step, episodes)}
                if held_out is None and number == len(batches):
                    held_out = self.loss(self._held_out_rollouts)
                if held_out is not None:
                    record["held_out/loss"] = held_out
                self.history.append(record)
                if self.accelerator.is_main_process:
                    metrics.append(record)
                if step % config.checkpoint_every == 0 and step < self.steps:
                    self._save(step)
                yield record

    def _note_failures(self, failures: Failures) -> None:
        self.failures = self.failures.add(failures)

    def _stop_requested(self) -> bool:
        """Return True if any process was asked to stop; a collective operation."""
        return any_process(self.accelerator, self.interruption.requested)

    def _take_step(self, step: int, episodes: Any) -> dict[str, float]:
        start, cpu_start = time.perf_counter(), time.process_time()
        self.activity.begin("updating")
        lr = self.optimizer.set_lr(step - 1)
        rollouts = self._rollouts.select(episodes)
        microbatches = list(rank_microbatches(self.optimizer, rollouts, self._microbatch_tokens))
        with memory_failures(self._microbatch_tokens):
            parts = accumulate_gradients(self.optimizer, microbatches, 1.0, imitation_loss(rollouts))
        parts = gather_lists(self.accelerator, parts)
        outcome = self.optimizer.step()
        self.activity.end()
        return {
            "loss": sum(part["loss"] for part in parts),
            "entropy": sum(part["entropy"] for part in parts),
            "grad_norm": outcome.grad_norm,
            "lr": lr,
            "skipped": float(outcome.skipped),
            "seconds/step": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "tokens_per_second": sum(map(len, rollouts.rows)) / (time.perf_counter() - start),
        }

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def loss(self, rollouts: Rollouts) -> float:
        """Return the mean loss per sampled token, without training."""
        total = 0.0
        self.activity.begin("evaluating held-out demonstrations")
        for micro, counts in rank_microbatches(self.optimizer, rollouts, self._microbatch_tokens):
            with self.optimizer.autocast():
                logp, _, _ = self.optimizer.model(
                    **forward_inputs(micro, self.accelerator.device), temperature=1.0
                )
            total -= float(logp.sum()) if counts else 0.0
        self.activity.end()
        summed = self.accelerator.reduce(torch.tensor(total, device=self.accelerator.device), "sum")
        return float(summed) / max(rollouts.actions, 1)

    # ------------------------------------------------------------------ checkpoints

    def _save(self, step: int) -> None:
        self.activity.begin("saving a checkpoint")
        # Gathered before the main process writes: a collective operation.
        weights = trained_weights(self.optimizer, always_filter=True)
        state = {"weights": weights, "optimizer": self.optimizer.state_dict()}
        try:
            if self.accelerator.is_main_process:
                self.checkpoints.save(step, partial(self._write, state))
        finally:
            self.accelerator.wait_for_everyone()
            self.activity.end()

    def _write(self, state: Mapping[str, Any], folder: Path) -> None:
        torch.save(state, folder / "sft.pt")
        (folder / "metrics.json").write_text(json.dumps(self.history), encoding="utf-8")

    def _load(self, folder: Path) -> None:
        try:
            state = torch.load(folder / "sft.pt", map_location="cpu", weights_only=True)
            self.history = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        except Exception as error:  # a damaged archive can raise anything
            raise DataError(folder, f"is not a checkpoint that can be resumed ({error}).") from None
        load_full_state_dict(self.optimizer.policy.model, state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])

    def export(self) -> Path:
        """Write the model into the run's folder, delete the checkpoints, and return the model's folder."""
        folder = self.config.out / MODEL_FOLDER
        self.activity.begin("exporting the model")
        model = self.optimizer.policy.model
        is_main = self.accelerator.is_main_process
        weights = {name: weight.cpu() for name, weight in merged_weights(model) if is_main}
        if is_main:
            export_model(model, self.tokenizer, folder, weights)
            shutil.rmtree(self.checkpoints.folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self.activity.end()
        return folder

    def close(self) -> None:
        """Release the model."""
        self.sampler.engine.close()


def imitation_loss(rollouts: Rollouts) -> Callable[[MicroBatch, Sequence[Tensor]], tuple[Tensor, Sums]]:
    """Return the cross-entropy of all sampled tokens of an optimizer batch, for `accumulate_gradients`."""
    weight = 1.0 / max(rollouts.actions, 1)

    def loss_of(micro: MicroBatch, scores: Sequence[Tensor]) -> tuple[Tensor, Sums]:
        loss = -scores[0].sum() * weight
        return loss, {"loss": float(loss.detach()), "entropy": float(scores[1].detach().sum()) * weight}

    return loss_of


def _as_rollouts(episodes: list[Episode]) -> Rollouts:
    """Convert demonstrations, each as a group of its own, so that `Rollouts.select` picks episodes."""
    return from_episodes(episodes, list(range(len(episodes))))
