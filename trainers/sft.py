"""Supervised fine-tuning on expert episodes: the warm start of a training run."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..agents.episode import Episode
from ..envs.errors import DataError
from ..envs.seeding import stable_seed
from .algorithms.objectives.loss import Sums
from .algorithms.recipe import Optimisation
from .checkpoints.store import Checkpoints
from .config.run import MODEL, Lesson
from .data.microbatches import MicroBatch, optimizer_batches
from .data.rollouts import Rollouts, from_episodes
from .learning.accumulation import run_micros, shared_micros
from .learning.distributed import make_accelerator
from .learning.optimizer import make_descent
from .learning.policy import Policy, export, load_causal, on_device
from .learning.sharding import merged, put_state, whole_state
from .sampling.demonstrations import expert_episodes, quality
from .sampling.policy_engine import shared
from .sampling.sampler import Sampler, entry_of


@dataclass
class Tuning:
    """A warm start under way.

    Args:
        lesson: the settings.
        resume: continue from the last checkpoint in its folder, if there is one.

    Attributes:
        demonstrations: what is learnt from; played when the object is made.
        held_out: further demonstrations, on which the loss is measured.
        steps: optimizer steps in all.
        history: the metrics of all steps so far.

    Raises:
        DataError: the checkpoint cannot be read.
    """

    lesson: Lesson
    resume: bool = False
    demonstrations: list[Episode] = field(init=False)
    held_out: list[Episode] = field(init=False)
    steps: int = field(init=False)
    history: list[dict[str, float]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        lesson, hardware = self.lesson, self.lesson.hardware
        self.accelerator = make_accelerator(hardware.device, hardware.precision)
        causal, self.tokenizer = load_causal(
            lesson.model,
            str(self.accelerator.device),
            lora=hardware.lora,
            gradient_checkpointing=hardware.gradient_checkpointing,
        )
        live = shared(causal, self.tokenizer, hardware.in_flight)
        self.sampler = Sampler(
            live, lesson.speech, lesson.chains, in_flight=hardware.in_flight, accelerator=self.accelerator
        )
        spare = max(1, lesson.episodes // 16)
        played = expert_episodes(
            entry_of(lesson.world, lesson.world.split),
            lesson.episodes + spare,
            tokenizer=self.tokenizer,
            context=self.sampler.engine.context,
            dialogue=self.sampler.dialogue,
            expert=lesson.expert,
            template=lesson.speech.template,
            tasks=lesson.world.tasks,
            seed=lesson.seed,
            at_once=hardware.in_flight,
        )
        self.demonstrations, self.held_out = played[:-spare], played[-spare:]
        self._rollouts = _arrays(self.demonstrations)
        self._unseen = _arrays(self.held_out)
        a_pass = len(optimizer_batches(self._rollouts, lesson.batch, seed=0))
        self.steps = a_pass * lesson.epochs
        optimisation = Optimisation(
            updates=self.steps,
            lr=lesson.lr,
            schedule="cosine",
            warmup=min(lesson.warmup, self.steps - 1),
            weight_decay=lesson.weight_decay,
        )
        self.descent = make_descent(self.accelerator, Policy(causal), optimisation)
        self._micro_tokens = hardware.micro_tokens or self.descent.micro_tokens

        self.checkpoints = Checkpoints(lesson.out / "checkpoints")
        if self.resume and self.checkpoints.last is not None:
            self._load(self.checkpoints.last)

    def go(self) -> Iterator[dict[str, float]]:
        """Learn, and yield the metrics of every step: `loss` and `entropy` a token before it, `grad_norm`, `lr`.

        The first and the last record of an epoch also hold `held_out/loss`.

        Raises:
            Diverged: gradients were NaN or infinite three times in a row.
            CheckpointError: a checkpoint could not be written.
        """
        lesson = self.lesson
        lesson.out.mkdir(parents=True, exist_ok=True)
        path = lesson.out / "metrics.jsonl"
        if self.accelerator.is_main_process:
            path.write_text("".join(json.dumps(record) + "\n" for record in self.history), encoding="utf-8")
        done = len(self.history)
        step = 0
        for epoch in range(lesson.epochs):
            batches = optimizer_batches(
                self._rollouts, lesson.batch, seed=stable_seed("epoch", lesson.seed, epoch)
            )
            for number, episodes in enumerate(batches, 1):
                step += 1
                if step <= done:
                    continue
                unseen = self.loss(self._unseen) if step == 1 else None
                start = time.perf_counter()
                rate = self.descent.set_rates(step - 1)
                part = self._rollouts.select(episodes)
                sums = self._run(part)
                taken = self.descent.step()
                record = {"step": step, "epoch": epoch + 1, **sums, "grad_norm": taken.grad_norm, "lr": rate}
                record["skipped"] = float(taken.skipped)
                record["tokens_per_second"] = sum(map(len, part.rows)) / (time.perf_counter() - start)
                if unseen is None and number == len(batches):
                    unseen = self.loss(self._unseen)
                if unseen is not None:
                    record["held_out/loss"] = unseen
                self.history.append(record)
                if self.accelerator.is_main_process:
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                if step % lesson.checkpoint_every == 0 and step < self.steps:
                    self._save(step)
                yield record

    def _save(self, step: int) -> None:
        causal = self.descent.policy.causal
        learnt = {name for name, weight in causal.named_parameters() if weight.requires_grad}
        # Whole, so that all processes must ask for it.
        weights = {name: weight for name, weight in whole_state(causal).items() if name in learnt}
        state = {"weights": weights, "descent": self.descent.state()}
        try:
            if self.accelerator.is_main_process:
                self.checkpoints.save(step, partial(self._write, state))
        finally:
            self.accelerator.wait_for_everyone()

    def _write(self, state: Mapping[str, Any], folder: Path) -> None:
        torch.save(state, folder / "tuning.pt")
        (folder / "metrics.json").write_text(json.dumps(self.history), encoding="utf-8")

    def _load(self, folder: Path) -> None:
        try:
            state = torch.load(folder / "tuning.pt", map_location="cpu", weights_only=True)
            self.history = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        except Exception as error:  # whatever a damaged archive raises
            raise DataError(folder, f"is no checkpoint that can be resumed ({error}).") from None
        put_state(self.descent.policy.causal, state["weights"])
        self.descent.load(state["descent"])

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def loss(self, rollouts: Rollouts) -> float:
        """The mean loss a token on rollouts that nothing is learnt from."""
        total = 0.0
        for micro, counts in shared_micros(self.descent, rollouts, self._micro_tokens):
            with self.descent.autocast():
                logp, _, _ = self.descent.model(**on_device(micro, self.accelerator.device), temperature=1.0)
            total -= float(logp.sum()) if counts else 0.0
        summed = self.accelerator.reduce(torch.tensor(total, device=self.accelerator.device), "sum")
        return float(summed) / max(rollouts.actions, 1)

    def _run(self, rollouts: Rollouts) -> dict[str, float]:
        micros = list(shared_micros(self.descent, rollouts, self._micro_tokens))
        parts = run_micros(self.descent, micros, 1.0, imitation(rollouts))
        if self.descent.world > 1:
            from accelerate.utils import gather_object

            parts = gather_object(parts)
        return {name: sum(part[name] for part in parts) for name in ("loss", "entropy")}

    def quality(self) -> dict[str, float]:
        """How good the demonstrations are."""
        return quality(self.demonstrations)

    def export(self) -> Path:
        """Write the model, a plain Hugging Face folder, into the run's folder; whole or not at all.

        Then the checkpoints are not needed any more.
        """
        folder = self.lesson.out / MODEL
        causal = self.descent.policy.causal
        weights = {name: weight.cpu() for name, weight in merged(causal) if self.accelerator.is_main_process}
        if self.accelerator.is_main_process:
            export_whole(causal, self.tokenizer, folder, weights)
            shutil.rmtree(self.checkpoints.folder, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        return folder

    def close(self) -> None:
        """Let go of the model."""
        self.sampler.engine.close()


def imitation(rollouts: Rollouts) -> Callable[[MicroBatch, Sequence[Tensor]], tuple[Tensor, Sums]]:
    """The loss of imitating all sampled tokens of an optimizer batch, as `run_micros` takes it."""
    share = 1.0 / max(rollouts.actions, 1)

    def loss_of(micro: MicroBatch, scores: Sequence[Tensor]) -> tuple[Tensor, Sums]:
        loss = -scores[0].sum() * share
        return loss, {"loss": float(loss.detach()), "entropy": float(scores[1].detach().sum()) * share}

    return loss_of


def export_whole(
    causal: object, tokenizer: object, folder: Path, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write a plain Hugging Face folder beside its place, then put it there; what was there before is replaced."""
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        export(causal, tokenizer, part, weights)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _arrays(episodes: list[Episode]) -> Rollouts:
    """Each demonstration is a group of its own, so that `select` picks episodes."""
    return from_episodes(episodes, list(range(len(episodes))))


__all__ = ["Tuning", "export_whole", "imitation"]
