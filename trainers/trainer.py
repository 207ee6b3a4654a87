"""The training loop: play, select, give credit, learn, look, keep.

    for record in Training(run).go():
        print(record.metrics["success"])

What an update does is a function of the run's settings, its number and the weights before it: it draws its luck
from `stable_seed`, never from a generator that other code could move. So a resumed run continues to the same
numbers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .algorithms.objectives.penalties import limited, shaped
from .algorithms.schedules import Linear
from .algorithms.selectors import gathered
from .checkpoints.contents import Kept
from .checkpoints.store import CheckpointError, Checkpoints
from .config.run import Run, flat, plain
from .data.rollouts import Rollouts
from .learning.distributed import make_accelerator
from .learning.learner import Learner
from .learning.optimizer import make_descent
from .learning.policy import Policy, Reference, load_causal
from .monitor import ROLLED_BACK, line
from .reporting.metrics import Position, Record, measured
from .reporting.samples import Samples
from .sampling.collector import Gathering
from .sampling.context_check import check_room
from .sampling.policy_engine import live_engine
from .sampling.sampler import Sampler, episode_limit


class Training:
    """A run: fresh, or continued from its last checkpoint.

    Args:
        run: the settings.
        resume: continue from the last checkpoint in the run's folder, if there is one.

    Attributes:
        history: the metrics of all records so far.
        stopped: why the run ended before its last update; None where it did not.
        saving: seconds that the checkpoint since the last update took; the next update's metrics hold them.

    Raises:
        ConfigurationError: the model cannot be had, or does not fit the run.
    """

    def __init__(self, run: Run, *, resume: bool = False) -> None:
        self.run = run
        self.stopped: str | None = None
        self.history: list[dict[str, float]] = []
        self.position = Position()
        self.saving = self._validating = 0.0
        self._ended = time.perf_counter()
        self.checkpoints = Checkpoints(run.out / "checkpoints")
        last = self.checkpoints.last if resume else None
        hardware, recipe = run.hardware, run.recipe
        self.accelerator = make_accelerator(hardware.device, hardware.precision, run.trackers, str(run.out))
        device = str(self.accelerator.device)
        load: dict[str, Any] = {"lora": hardware.lora, "gradient_checkpointing": hardware.gradient_checkpointing}
        source = run.model if last is None or hardware.lora is not None else last / "model"
        check_room(source, run)
        causal, self.tokenizer = load_causal(source, device, **load)
        reference = None
        if recipe.needs_reference:
            first = causal if source == run.model else load_causal(run.model, device, **load)[0]
            reference = Reference(first)
        policy = Policy(causal, critic=recipe.critic is not None)
        self.descent = make_descent(self.accelerator, policy, recipe.optimisation, recipe.critic)
        self.learner = Learner(
            recipe,
            self.descent,
            reference,
            micro_tokens=hardware.micro_tokens,
            seed=run.seed,
            # Elsewhere rounding differs between sampling and learning.
            own_samples=hardware.engine == "transformers" and hardware.precision == "float32",
        )
        live = live_engine(
            hardware,
            self.descent,
            self.tokenizer,
            lambda: load_causal(run.model, device, lora=hardware.lora)[0],
            run.model,
        )
        self.sampler = Sampler(
            live, run.speech, recipe.sampler, in_flight=hardware.in_flight, accelerator=self.accelerator
        )
        self._samples = Samples(run.out, self.tokenizer)
        self.gathering = Gathering(run, self.sampler, self.position)
        self._overlong = limited(
            recipe.overlong,
            episode_limit(self.sampler.dialogue, recipe.sampler, self.gathering.env, self.sampler.engine.context),
        )
        self._kept = Kept(self.descent, self.learner, self.tokenizer, self.position)
        if last is not None:
            self.history = self._kept.load(last)
            self._slow_down()
        if self.is_main:
            run.out.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(record) + "\n" for record in self.history]
            self._metrics.write_text("".join(lines), encoding="utf-8")
            self._samples.keep(self.position.update if self.history else -1)
        if run.trackers:
            config = {
                name: value if isinstance(value, (str, int, float)) else json.dumps(value)
                for name, value in flat(plain(run)).items()
            }
            self.accelerator.init_trackers("trackers", config=config)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks."""
        return bool(self.accelerator.is_main_process)

    @property
    def _metrics(self) -> Path:
        return self.run.out / "metrics.jsonl"

    # ------------------------------------------------------------------ the loop

    def go(self) -> Iterator[Record]:
        """Make the updates that are left, and yield each when its numbers are written.

        Raises:
            Diverged: gradients were NaN or infinite three times in a row.
            Starved: see `Refill.batch`.
            Unplayable: not one episode of a batch was played to its end.
            CheckpointError: the last checkpoint could not be written.
        """
        total = self.run.recipe.optimisation.updates
        self._ended = time.perf_counter()
        if self.position.update == 0 and not self.history and self.run.validation.every:
            yield self._close(Record({"update": 0}), validate=True)
        if self.position.update == 0 and self.run.monitor.action == "rollback":
            self.save(sound=True, probation=0)  # the first policy is better than a collapsed one
        while self.position.update < total and self.stopped is None:
            record = Record(self._update())
            self.position.update += 1
            yield self._close(record, validate=self._is_due(self.run.validation.every))

    def _is_due(self, every: int) -> bool:
        done = self.position.update
        return every > 0 and (done % every == 0 or done == self.run.recipe.optimisation.updates)

    def _close(self, record: Record, *, validate: bool) -> Record:
        """Validate, write the numbers down, and keep a checkpoint, where each is due."""
        score = None
        if validate:
            start = time.perf_counter()
            # Of a line of temperatures the end: a held-out curve must not rise with it.
            temperature = self.run.recipe.sampler.temperature
            last = temperature.end if isinstance(temperature, Linear) else temperature
            found = self.sampler.validate(self.run.world, self.run.validation, last, self.run.seed)
            self._validating = time.perf_counter() - start
            record.metrics |= {
                "validation/failed": float(found.failed),
                "seconds/validate": self._validating,
            }
            if found.episodes:
                score = found.success.value
                record.metrics |= {
                    "validation/success": score,
                    "validation/low": found.success.low,
                    "validation/high": found.success.high,
                    "validation/return": found.mean_return,
                }
            else:
                record.notes.append(
                    f"update {self.position.update}: none of {found.failed} held-out episodes could be played to "
                    "its end, so there is no score."
                )
            if self.is_main:
                self._samples.add(self.position.update, found.samples)
        monitor = self.run.monitor
        scores = [m["validation/success"] for m in line(self.history) if "validation/success" in m]
        self.history.append(record.metrics)
        record.alarms = monitor.alarms(line(self.history)) if record.metrics["update"] else []
        back = None
        if monitor.is_fatal(record.alarms):
            back = self._goal() if monitor.action == "rollback" else None
            if back is None:
                self.stopped = str(record.alarms[-1])
            else:
                record.notes.append(self._go_back(back))
                record.metrics[ROLLED_BACK] = float(back)
                score = None  # it was the collapsed policy's
        if self.is_main:
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record.metrics) + "\n")
        if self.run.trackers:
            self.accelerator.log(record.metrics, step=int(record.metrics["update"]))
        # Told from the history, which every process has; the index is the main process's.
        better = score is not None and score > max(scores, default=-1.0)
        is_last = self.stopped is not None or self.position.update == self.run.recipe.optimisation.updates
        due = better or is_last or back is not None or self._is_due(self.run.checkpoint_every)
        if self.position.update and due:
            try:
                sound = None
                if monitor.action == "rollback":
                    sound = back is None and not monitor.signs(line(self.history))
                self.save(score, sound=sound, probation=monitor.window)
            except CheckpointError as error:
                if is_last:
                    raise
                record.notes.append(str(error))
        return record

    # ------------------------------------------------------------------ one update

    def _temperature(self) -> float:
        temperature, total = self.run.recipe.sampler.temperature, self.run.recipe.optimisation.updates
        if isinstance(temperature, Linear):
            # The last update is number total - 1, and reaches the end of the line.
            return temperature.at(self.position.update, max(total - 1, 1))
        return temperature

    def _update(self) -> dict[str, float]:
        recipe, temperature = self.run.recipe, self._temperature()
        start = time.perf_counter()
        between = start - self._ended
        batches, failed, kept, scale = self.gathering.gather(temperature)
        sampled = time.perf_counter()
        played = Rollouts.joined(batches)
        metrics: dict[str, float] = {"update": self.position.update + 1, "temperature": temperature}
        metrics |= measured(played) | {"failed": float(failed), "batches": float(len(batches))}
        metrics["groups_kept"] = len(kept) / played.groups
        learnt = 0
        if kept:
            rollouts = shaped(gathered(batches, kept), self._overlong)
            learnt = sum(len(row) for row in rollouts.rows) * recipe.optimisation.passes
            metrics |= self.learner.update(
                rollouts, update=self.position.update, temperature=temperature, scale=scale
            )
        done = time.perf_counter()
        metrics |= {
            "seconds/sample": sampled - start,
            "seconds/learn": done - sampled,
            "seconds/checkpoint": self.saving,  # of the one before this update
            # What lies between two updates and is neither validation nor a checkpoint: writing numbers down, and
            # what the caller does with a record. So these five account for all of a run's time.
            "seconds/rest": max(between - self.saving - self._validating, 0.0),
            "sampled_tokens_per_second": played.actions / max(sampled - start, 1e-9),
            "learnt_tokens_per_second": learnt / max(done - sampled, 1e-9),
        }
        self.saving = self._validating = 0.0
        self._ended = done
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    # ------------------------------------------------------------------ checkpoints

    def _goal(self) -> int | None:
        """The updates before the checkpoint to go back to; None where there is none, or it was done enough."""
        if self.position.rollbacks >= self.run.monitor.rollbacks:
            return None
        good = [self.checkpoints.index.good]
        if self.descent.world > 1:
            from accelerate.utils import broadcast_object_list

            good = broadcast_object_list(good)  # the index is the main process's
        return good[0]

    def _go_back(self, update: int) -> str:
        """Take the policy, critic and optimizer of a checkpoint, learn more slowly from now on, and say so."""
        self._kept.go_back(self.checkpoints.path(update))
        self.position.rollbacks += 1
        self._slow_down()
        return (
            f"update {self.position.update}: went back to the policy after update {update}; learning rates are "
            f"now {self.descent.slowdown:g} of what they were set to "
            f"(rollback {self.position.rollbacks} of {self.run.monitor.rollbacks})"
        )

    def _slow_down(self) -> None:
        self.descent.slowdown = self.run.monitor.lr_factor**self.position.rollbacks

    def save(self, score: float | None = None, *, sound: bool | None = None, probation: int = 0) -> None:
        """Keep a checkpoint of where the run stands.

        Args:
            score: of the policy on held-out tasks.
            sound, probation: see `Checkpoints.save`.

        Raises:
            CheckpointError: it could not be written.
        """
        start = time.perf_counter()
        held = self._kept.held()
        try:
            if self.is_main:
                write = partial(self._kept.write, held, self.history)
                self.checkpoints.save(self.position.update, write, score, sound=sound, probation=probation)
        finally:
            self.accelerator.wait_for_everyone()
            self.saving = time.perf_counter() - start

    def close(self) -> None:
        """Let go of the model, and of the trackers."""
        if self.run.trackers:
            self.accelerator.end_training()
        self.sampler.engine.close()
