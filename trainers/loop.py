"""The training loop: play, select, give credit, learn, look, keep.

    for record in Training(run).go():
        print(record.metrics["success"])

What an update does is a function of the run's settings, its number and the weights before it: it draws its luck
from `stable_seed`, never from a generator that other code could move. So a resumed run continues to the same
numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..envs.errors import DataError
from .arrays import group_statistics
from .checkpoint import CheckpointError, Checkpoints
from .descent import make_descent
from .learner import Learner
from .live import live_engine
from .monitor import Alarm
from .objectives.penalties import shaped
from .objectives.settings import Overlong
from .plan import plan_chains
from .policy import Policy, Reference, adapters, load_causal
from .processes import make_accelerator
from .rollouts import Rollouts, from_episodes
from .run import Run
from .sampler import Sampler, broken, drawn_tasks, entry_of, episode_limit
from .schedules import Linear
from .selectors import Dynamic, gathered
from .weights import put_state, whole_state


@dataclass
class Record:
    """One update, or the look before the first.

    Attributes:
        metrics: by name; what the names mean is told by `measured`, `Learner.update` and `loss.metrics`.
        alarms: what the monitor saw for the first time.
        notes: what else a person should read.
    """

    metrics: dict[str, float]
    alarms: list[Alarm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Position:
    """Where a run stands.

    Attributes:
        update: updates made.
        batch: generation batches played.
        task: tasks drawn.
    """

    update: int = 0
    batch: int = 0
    task: int = 0


class Training:
    """A run: fresh, or continued from its last checkpoint.

    Args:
        run: the settings.
        resume: continue from the last checkpoint in the run's folder, if there is one.

    Attributes:
        history: the metrics of all records so far.
        stopped: why the run ended before its last update; None where it did not.

    Raises:
        ConfigurationError: the model cannot be had, or does not fit the run.
    """

    def __init__(self, run: Run, *, resume: bool = False) -> None:
        self.run = run
        self.stopped: str | None = None
        self.history: list[dict[str, float]] = []
        self.position = Position()
        self._saving = 0.0
        self.checkpoints = Checkpoints(run.out / "checkpoints")
        last = self.checkpoints.last if resume else None
        hardware, recipe = run.hardware, run.recipe
        self.accelerator = make_accelerator(hardware.device, hardware.precision, run.trackers, str(run.out))
        device = str(self.accelerator.device)
        load: dict[str, Any] = {"lora": hardware.lora, "gradient_checkpointing": hardware.gradient_checkpointing}
        source = run.model if last is None or hardware.lora is not None else last / "model"
        causal, self.tokenizer = load_causal(source, device, **load)
        reference = None
        if recipe.needs_reference:
            first = causal if source == run.model else load_causal(run.model, device, **load)[0]
            reference = Reference(first)
        policy = Policy(causal, critic=recipe.critic is not None)
        self.descent = make_descent(self.accelerator, policy, recipe.optimisation, recipe.critic)
        self.learner = Learner(recipe, self.descent, reference, micro_tokens=hardware.micro_tokens, seed=run.seed)
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
        self._entry = entry_of(run.world, run.world.split)
        self._env = self._entry.make()
        self._overlong = _limited(
            recipe.overlong,
            episode_limit(self.sampler.dialogue, recipe.sampler, self._env, self.sampler.engine.context),
        )
        self.sampler.check_room(
            self._entry, self._draw(min(recipe.sampler.prompts, 8)), recipe.sampler.reply_tokens
        )
        if last is not None:
            self._load(last)
        if self.is_main:
            run.out.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(record) + "\n" for record in self.history]
            self._metrics.write_text("".join(lines), encoding="utf-8")
        if run.trackers:
            self.accelerator.init_trackers("arboretum", config={"recipe": recipe.name, "seed": run.seed})

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
            CheckpointError: the last checkpoint could not be written.
        """
        total = self.run.recipe.optimisation.updates
        if self.position.update == 0 and not self.history and self.run.validation.every:
            yield self._close(Record({"update": 0}), validate=True)
        while self.position.update < total and self.stopped is None:
            record = Record(self._update())
            self.position.update += 1
            yield self._close(record, validate=self._is_due(self.run.validation.every))
        if self.run.trackers:
            self.accelerator.end_training()

    def _is_due(self, every: int) -> bool:
        done = self.position.update
        return every > 0 and (done % every == 0 or done == self.run.recipe.optimisation.updates)

    def _close(self, record: Record, *, validate: bool) -> Record:
        """Validate, write the numbers down, and keep a checkpoint, where each is due."""
        score = None
        if validate:
            start = time.perf_counter()
            found = self.sampler.validate(self.run.world, self.run.validation, self._temperature(), self.run.seed)
            score = found.success.value
            record.metrics |= {
                "validation/success": score,
                "validation/low": found.success.low,
                "validation/high": found.success.high,
                "validation/return": found.mean_return,
                "validation/failed": float(found.failed),
                "seconds/validate": time.perf_counter() - start,
            }
        self.history.append(record.metrics)
        updates = [metrics for metrics in self.history if metrics["update"]]
        record.alarms = self.run.monitor.alarms(updates) if record.metrics["update"] else []
        if self.run.monitor.stops(record.alarms):
            self.stopped = str(record.alarms[-1])
        if self.is_main:
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record.metrics) + "\n")
        if self.run.trackers:
            self.accelerator.log(record.metrics, step=int(record.metrics["update"]))
        # Told from the history, which every process has; the index is the main process's.
        scores = [m["validation/success"] for m in self.history[:-1] if m["update"] and "validation/success" in m]
        better = score is not None and score > max(scores, default=-1.0)
        is_last = self.stopped is not None or self.position.update == self.run.recipe.optimisation.updates
        if self.position.update and (self._is_due(self.run.checkpoint_every) or better or is_last):
            try:
                self.save(score)
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
        batches, failed, kept, scale = self._gather(temperature)
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
            "seconds/checkpoint": self._saving,  # of the one before this update
            "sampled_tokens_per_second": played.actions / max(sampled - start, 1e-9),
            "learnt_tokens_per_second": learnt / max(done - sampled, 1e-9),
        }
        self._saving = 0.0
        return metrics

    def _gather(self, temperature: float) -> tuple[list[Rollouts], int, Sequence[tuple[int, int]], float]:
        """Generation batches, episodes that broke off, the groups to learn from, and what scales advantages."""
        selector = self.run.recipe.selector
        if not isinstance(selector, Dynamic):
            rollouts, failed = self._generate(temperature)
            groups, scale = selector.select(rollouts)
            return [rollouts], failed, [(0, group) for group in groups], scale
        refill = selector.refill(self.run.recipe.sampler.prompts)
        batches: list[Rollouts] = []
        failed, scale = 0, 1.0
        while refill.wants_more:
            rollouts, lost = self._generate(temperature)
            selection = selector.select(rollouts)
            refill = refill.add([(len(batches), group) for group in selection.groups])
            batches.append(rollouts)
            failed += lost
        return batches, failed, refill.batch(), scale

    def _draw(self, count: int) -> list[str]:
        return drawn_tasks(self._env.tasks, self.position.task, count, self.run.seed, self.run.world.tasks)

    def _generate(self, temperature: float) -> tuple[Rollouts, int]:
        """One generation batch, and how many of its episodes broke off."""
        recipe = self.run.recipe
        tasks = self._draw(recipe.sampler.prompts)
        plan = plan_chains(tasks, recipe.sampler.rollouts, batch=self.position.batch, seed=self.run.seed)
        episodes = self.sampler.play(self._entry, plan.jobs, temperature, keep_states=recipe.anchor == "state")
        whole, keys = plan.arrange(episodes)
        if not whole:
            raise broken(episodes)
        self.position.task += len(tasks)
        self.position.batch += 1
        return from_episodes(whole, keys, anchor=recipe.anchor), len(episodes) - len(whole)

    # ------------------------------------------------------------------ checkpoints

    def save(self, score: float | None = None) -> None:
        """Keep a checkpoint of where the run stands.

        Raises:
            CheckpointError: it could not be written.
        """
        start = time.perf_counter()
        held = self._held()
        try:
            if self.is_main:
                self.checkpoints.save(self.position.update, partial(self._write, held), score)
        finally:
            self.accelerator.wait_for_everyone()
            self._saving = time.perf_counter() - start

    def _held(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The policy's weights (of adapters, where it has any) and the learner's state: whole, so that any number
        of processes can resume; all must ask for it."""
        causal = self.descent.policy.causal
        weights = whole_state(causal)
        if adapters(causal) is not None:
            learnt = {name for name, weight in causal.named_parameters() if weight.requires_grad}
            weights = {name: weight for name, weight in weights.items() if name in learnt}
        return weights, self.learner.state()

    def _write(self, held: tuple[dict[str, torch.Tensor], dict[str, Any]], folder: Path) -> None:
        weights, learner = held
        causal = self.descent.policy.causal
        adapted = adapters(causal)
        if adapted is None:
            causal.save_pretrained(folder / "model", state_dict=weights)
        else:
            named = {f"base_model.model.{name}": weight for name, weight in weights.items()}
            adapted.save_pretrained(folder / "adapter", state_dict=named)
        self.tokenizer.save_pretrained(folder / ("model" if adapted is None else "adapter"))
        state = {
            "learner": learner,
            "adapters": None if adapted is None else weights,
            "position": vars(self.position),
            "rng": torch.get_rng_state(),
            "device_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        torch.save(state, folder / "trainer.pt")
        lines = [json.dumps(record) + "\n" for record in self.history]
        (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")

    def _load(self, folder: Path) -> None:
        try:
            state = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=True)
            text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
            self.history = [json.loads(line) for line in text.splitlines()]
        except Exception as error:  # whatever a damaged archive raises
            raise DataError(folder, f"is no checkpoint that can be resumed ({error}).") from None
        if state["adapters"] is not None:
            put_state(self.descent.policy.causal, state["adapters"])
        self.learner.load(state["learner"])
        self.position = Position(**state["position"])
        torch.set_rng_state(state["rng"])
        if torch.cuda.is_available() and state["device_rng"]:
            torch.cuda.set_rng_state_all(state["device_rng"])

    def close(self) -> None:
        """Let go of the model."""
        self.sampler.engine.close()


def measured(rollouts: Rollouts) -> dict[str, float]:
    """What the episodes of an update were like, before anything was selected.

    `success`, `return` (undiscounted, without penalties), `group_return_std` (mean over groups), `silent_groups`
    (fraction of groups whose returns are all equal), `valid_turns` (fraction of turns that kept to the format and
    held only actions that the world took), `truncated`, `turns` an episode, `reply_tokens` a turn, `penalty` an
    episode, `episodes`, `tokens` sampled.
    """
    returns = rollouts.returns(penalties=False)
    statistics = group_statistics(returns, rollouts.group, rollouts.groups)
    episodes = max(rollouts.episodes, 1)
    return {
        "success": float(rollouts.success.mean()),
        "return": float(returns.mean()),
        "group_return_std": float(statistics.std.mean()),
        "silent_groups": float(np.mean(statistics.std == 0)),
        "valid_turns": float(1.0 - rollouts.turn_invalid.mean()) if rollouts.turns else 0.0,
        "truncated": float(rollouts.truncated.mean()),
        "turns": rollouts.turns / episodes,
        "reply_tokens": rollouts.actions / max(rollouts.turns, 1),
        "penalty": float(rollouts.turn_penalty.sum() / episodes),
        "episodes": float(rollouts.episodes),
        "sampled_tokens": float(rollouts.actions),
    }


def _limited(overlong: Overlong, limit: int | None) -> Overlong:
    """With the run's own limit where the recipe names none; a soft zone too long for it shrinks to its last fifth,
    the share that it has in the paper."""
    if overlong.coef == 0 or overlong.max_tokens is not None or limit is None:
        return overlong
    cache = overlong.cache if overlong.cache < limit else max(1, limit // 5)
    return replace(overlong, max_tokens=limit, cache=cache)
