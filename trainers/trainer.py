"""The training loop: roll out, select groups, compute advantages, update, validate, checkpoint.

    for record in Trainer(config).run():
        print(record.metrics["success"])

An update is a function of the run's settings, its number and the weights before it: all randomness is derived from
`stable_seed`, never from a generator that other code could advance. So a resumed run continues to the same
numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial

from .algorithms.objectives.penalties import apply_overlong_penalty
from .algorithms.selectors import NotEnoughGroups, select_groups
from .checkpoints.components import build_components
from .checkpoints.contents import CheckpointContents
from .checkpoints.interruption import Interruption
from .checkpoints.rollback import Rollback
from .checkpoints.run_folder import CHECKPOINTS_FOLDER, record_code
from .checkpoints.store import CheckpointError, Checkpoints
from .checkpoints.taught_dialogue import DialogueCheck
from .config.run import TrainingConfig
from .data.rollouts import Rollouts
from .learning.distributed import any_process
from .learning.memory import memory_failures
from .monitor import ROLLED_BACK, current_lineage
from .reporting.metrics import UpdateRecord
from .reporting.run_log import RunLog
from .reporting.update_metrics import UpdateTimer, collection_metrics
from .sampling.collector import Collection
from .sampling.failures import EpisodesFailed
from .sampling.policy_probe import LearnerProbe
from .sampling.run_schedule import RunSchedule
from .sampling.validation import validate_run
from .state import Activity, TrainerState


class Trainer:
    """Training run, new or resumed from its last checkpoint.

    Args:
        config: Configuration of the run.
        resume: Continue from the last checkpoint in the run's folder, if there is one.
        activity: Receives the phase in progress, for a display in another thread.
        interruption: Requests to stop. None makes one that nothing requests.

    Attributes:
        config: Configuration of the run.
        activity: Phase in progress.
        state: Counters of the run.
        history: Metrics of all records so far.
        interrupted: True if the run ended early because a stop was requested.
        checkpoints: Checkpoints of the run.

    Raises:
        ConfigurationError: A value is out of range, or the model cannot be loaded or does not fit the run.
        DataError: The checkpoint is damaged.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        resume: bool = False,
        activity: Activity | None = None,
        interruption: Interruption | None = None,
    ) -> None:
        config.check_values()
        self.config = config
        self.activity = activity or Activity()
        self.interruption = interruption or Interruption(self.activity)
        self.interrupted = False
        self.activity.begin(f"loading {config.model}")
        self.state = TrainerState()
        self._schedule = RunSchedule(config, self.state)
        self.history: list[dict[str, float]] = []
        self.checkpoints = Checkpoints(config.out / CHECKPOINTS_FOLDER, config.checkpoint_keep)
        checkpoint = self.checkpoints.last if resume else None
        components = build_components(config, self.state, checkpoint)
        self.accelerator = components.accelerator
        self.optimizer = components.optimizer
        self.learner = components.learner
        self.sampler = components.sampler
        self.collector = components.collector
        self.grafter, self._ahead = components.grafter, components.ahead
        self._workers = components.workers
        self.learner.activity = self.sampler.activity = self.activity
        self._dialogue_check = DialogueCheck(
            self.optimizer.policy.model, self.sampler.dialogue.name, config.recipe.sampler.reply_tokens
        )
        self._contents = CheckpointContents(
            components.optimizer, components.learner, components.tokenizer, self.state, self._ahead
        )
        self._rollback = Rollback(config.monitor, self.checkpoints, self._contents)
        self._log = RunLog(config, components.tokenizer, components.accelerator)
        self._timer = UpdateTimer()
        try:
            if checkpoint is not None:
                self.history = self._contents.load(checkpoint)
                self._rollback.apply_lr_scale()
            self._unvalidated = self._take_unvalidated()
            self._log.open(self.history, self.state.update)
            if self.is_main and checkpoint is not None and not self._schedule.is_over:
                record_code(config)
        except BaseException:
            self.close()  # Processes that sample or step environments have started.
            raise
        self.activity.end()

    def _take_unvalidated(self) -> UpdateRecord | None:
        """Remove and return the last record if its validation is due but failed before the run was resumed."""
        due = self.state.update > 0 and self._schedule.is_due(self.config.validation.every)
        if not due or not self.history or "validation/success" in self.history[-1]:
            return None
        return UpdateRecord(self.history.pop())

    @property
    def is_main(self) -> bool:
        """True in the process that writes files and prints."""
        return bool(self.accelerator.is_main_process)

    @property
    def stopped(self) -> str | None:
        """Reason why the run ended before its last update; None if it did not."""
        return self._schedule.stopped

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds spent on checkpoints since the last update; reported with the next one."""
        return self._timer.checkpoint

    # ------------------------------------------------------------------ the loop

    def run(self) -> Iterator[UpdateRecord]:
        """Make the remaining updates, and yield a record of each once its metrics are written.

        Raises:
            Diverged: Gradients were NaN or infinite in three consecutive steps.
            NotEnoughGroups: See `Refill.batch`. A checkpoint of the last complete update is written before.
            EpisodesFailed: Too many episodes of a generation batch or of a validation ended with an error; see
                `Monitor.failed`. A checkpoint of the last complete update is written before.
            SamplingFailed: The engine failed.
            OutOfMemory: Memory ran out during an update.
            PartFailed: A credit rule, a selector or a term of another package failed.
            CheckpointError: The last checkpoint could not be written.
        """
        validation = self.config.validation
        self._timer.restart()
        self.activity.place = "before the first update"
        if self.state.update == 0 and not self.history and validation.every:
            yield self._finish(UpdateRecord({"update": 0}), validate=True)
        if self.state.update == 0 and self.config.monitor.action == "rollback":
            # The initial policy is better than a collapsed one.
            self.save_checkpoint(sound=True, probation=0)
        self.interruption.defer()
        if self._unvalidated is not None:
            record, self._unvalidated = self._unvalidated, None
            yield self._finish(record, validate=True)
        while not self._schedule.is_over:
            if self._stop_requested():
                self.save_checkpoint()
                self.interrupted = True
                return
            self.activity.place = self._schedule.place
            record = self._update()
            self.state.update += 1
            self.state.tokens += int(record.metrics["sampled_tokens"])
            if record.metrics.get("steps", 0.0) or record.metrics.get("steps_skipped", 0.0):
                self.state.uninformative = 0
            else:
                selected = record.metrics["groups_kept"] > 0
                record.notes.append(self._schedule.count_uninformative(selected=selected))
                record.metrics["uninformative"] = float(self.state.uninformative)
            yield self._finish(record, validate=self._schedule.is_due(validation.every))

    def _stop_requested(self) -> bool:
        """Return True if any process was asked to stop; a collective operation."""
        return any_process(self.accelerator, self.interruption.requested)

    def _finish(self, record: UpdateRecord, *, validate: bool) -> UpdateRecord:
        """Validate, watch for collapse, log, and save a checkpoint, each if due."""
        best = max(
            (m["validation/success"] for m in current_lineage(self.history) if "validation/success" in m),
            default=-1.0,
        )
        try:
            score = self._validate(record) if validate else None
        except EpisodesFailed:
            self.history.append(record.metrics)
            self._log.add(record.metrics)
            self._keep_progress()
            raise
        self.history.append(record.metrics)
        record.notes += self._dialogue_check.notes(record.metrics)
        rolled_back = self._watch(record)
        if rolled_back:
            score = None  # It belongs to the collapsed policy.
        self._log.add(record.metrics)
        # Compared with the history, which every process has; only the main process has the index.
        self._save_if_due(record, score, is_best=score is not None and score > best, rolled_back=rolled_back)
        return record

    def _validate(self, record: UpdateRecord) -> float:
        """Validate the policy, and return its success rate.

        Raises:
            EpisodesFailed: Too many episodes ended with an error.
        """
        start = time.perf_counter()
        result = validate_run(self.sampler, self.config)
        self._timer.validation = time.perf_counter() - start
        record.metrics |= self.sampler.take_reply_counts().metrics("validation/")
        record.metrics["validation/failed"] = float(result.failures.failed)
        record.metrics["seconds/validate"] = self._timer.validation
        self._log.add_samples(self.state.update, result.samples)
        for name, one in result.by_env.items():
            if one.failures.failed == one.failures.episodes:
                one.failures.check(self.config.monitor.failed, f"validation episodes of {name}")
        result.failures.check(self.config.monitor.failed, "validation episodes")
        record.note_failures(result.failures, "validation episodes")
        record.metrics |= result.metrics()
        return result.success.value

    def end(self, reason: str) -> None:
        """End the run before its next update; a validation that is due is made up for."""
        self._schedule.stopped = reason

    def _keep_progress(self) -> None:
        """Save a checkpoint of the last complete update before the run fails; all processes fail alike."""
        if self.state.update:
            self.save_checkpoint()

    def _watch(self, record: UpdateRecord) -> bool:
        """Detect signs of collapse, and stop the run or roll back where they are fatal; True after a rollback."""
        monitor = self.config.monitor
        record.alarms = monitor.alarms(current_lineage(self.history)) if record.metrics["update"] else []
        if not monitor.is_fatal(record.alarms):
            return False
        target = self._rollback.target() if monitor.action == "rollback" else None
        if target is None:
            self._schedule.stopped = str(record.alarms[-1])
            return False
        record.notes.append(self._rollback.roll_back(target))
        record.metrics[ROLLED_BACK] = float(target)
        return True

    def _save_if_due(self, record: UpdateRecord, score: float | None, *, is_best: bool, rolled_back: bool) -> None:
        is_last = self._schedule.is_over
        due = is_best or is_last or rolled_back or self._schedule.is_due(self.config.checkpoint_every)
        if not self.state.update or not due:
            return
        monitor, sound = self.config.monitor, None
        if monitor.action == "rollback":
            sound = not rolled_back and monitor.is_sound(current_lineage(self.history))
        try:
            self.save_checkpoint(score, sound=sound, probation=monitor.window)
        except CheckpointError as error:
            if is_last:
                raise
            record.notes.append(str(error))

    # ------------------------------------------------------------------ one update

    def _update(self) -> UpdateRecord:
        """Roll out, select, and update the policy."""
        recipe, temperature = self.config.recipe, self._schedule.temperature(self.state.update)
        self._timer.begin()
        try:
            collection, sampling = self._roll_out(temperature)
        except (EpisodesFailed, NotEnoughGroups):
            self._keep_progress()
            raise
        self._timer.end_sampling()
        metrics: dict[str, float] = {"update": self.state.update + 1, "temperature": temperature}
        metrics |= collection_metrics(collection, sampling, [env.label for env in self.config.envs])
        if recipe.rewards.scale != 1.0:
            metrics["reward_scale"] = recipe.rewards.scale
        trained_tokens = 0
        if collection.kept:
            selected = select_groups(collection.batches, collection.kept)
            selected = recipe.rewards.apply(apply_overlong_penalty(selected, self.learner.recipe.overlong))
            trained_tokens = sum(len(row) for row in selected.rows) * recipe.optimization.passes
            microbatch_tokens = self.config.hardware.microbatch_tokens or self.optimizer.default_microbatch_tokens
            with memory_failures(microbatch_tokens):
                metrics |= self._learn(selected, temperature, collection)
            if "tokens" not in metrics:  # No rollout had an advantage, so there was no step.
                trained_tokens = 0
        self.learner.follow_policy()
        metrics |= self._timer.end(metrics, sampled_tokens=collection.budget.tokens, trained_tokens=trained_tokens)
        record = UpdateRecord({name: value for name, value in metrics.items() if math.isfinite(value)})
        record.note_failures(collection.failures, "episodes")
        record.note_failures(collection.redraw_failures, "redrawn outcomes")
        return record

    def _roll_out(self, temperature: float) -> tuple[Collection, dict[str, float]]:
        """Return this update's rollouts and metrics of sampling; if that is asynchronous, order the next ones."""
        if self._ahead is None:
            collection = self.collector.collect(temperature)
            return collection, self.sampler.take_reply_counts().metrics()
        self.activity.begin("waiting for rollouts")
        delivery = self._ahead.receive(temperature)
        self.activity.end()
        update, tokens = self.state.update + 1, self.state.tokens + delivery.collection.budget.tokens
        is_last = self.config.recipe.optimization.is_complete(update, tokens)
        self._ahead.order(None if is_last else self._schedule.temperature(update))
        return delivery.collection, delivery.metrics()

    def _learn(self, rollouts: Rollouts, temperature: float, collection: Collection) -> dict[str, float]:
        """Assign credit, make preference pairs where the objective has terms on pairs, and take the steps."""
        update = self.state.update
        probe = LearnerProbe(self.learner, self.sampler, temperature)
        prepared = self.learner.prepare(
            rollouts, update=update, temperature=temperature, scale=collection.scale, policy=probe
        )
        is_last = self.config.recipe.optimization.is_complete(
            update + 1, self.state.tokens + collection.budget.tokens
        )
        if not self.config.recipe.objective.pair_terms:
            self._log.add_trees(update + 1, prepared, is_last=is_last)
            return self.learner.apply(prepared)
        start = time.perf_counter()
        found = prepared.credit.divergences
        grafts = self.grafter.graft(prepared.rollouts, found, update=update, temperature=temperature)
        self._log.add_trees(update + 1, prepared, grafts.texts, is_last=is_last)
        pairs = self.learner.add_preferences(grafts.pairs, update)
        seconds = {"seconds/graft": time.perf_counter() - start}
        return self.learner.apply(prepared, pairs) | grafts.metrics | seconds

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(
        self, score: float | None = None, *, sound: bool | None = None, probation: int = 0
    ) -> None:
        """Save a checkpoint of the run.

        Args:
            score: Success rate of the policy on held-out tasks; None if it was not validated.
            sound, probation: See `Checkpoints.save`.

        Raises:
            CheckpointError: The checkpoint could not be written.
        """
        start = time.perf_counter()
        self.activity.begin("saving a checkpoint")
        self._dialogue_check.record(current_lineage(self.history))
        full = self._contents.full_state()
        try:
            if self.is_main:
                write = partial(self._contents.write, full, self.history)
                self.checkpoints.save(self.state.update, write, score, sound=sound, probation=probation)
        finally:
            self.accelerator.wait_for_everyone()
            self.activity.end()
            self._timer.checkpoint = time.perf_counter() - start

    def close(self) -> None:
        """Release the model and the trackers, and end the processes that sample or step environments."""
        self._log.close()
        if self._ahead is not None:
            self._ahead.close()
        if self._workers is not None:
            self._workers.close()
        self.sampler.engine.close()
