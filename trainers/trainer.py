"""The training loop: roll out, select groups, compute advantages, update, validate, checkpoint.

    for record in Trainer(config).run():
        print(record.metrics["success"])

An update is a function of the run's settings, its number and the weights before it: all randomness is derived from
`stable_seed`, never from a generator that other code could advance. So a resumed run continues to the same
numbers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial

from .algorithms.objectives.penalties import apply_overlong_penalty
from .algorithms.schedules import Linear
from .algorithms.selectors import NotEnoughGroups, select_groups
from .checkpoints.components import build_components
from .checkpoints.contents import CheckpointContents
from .checkpoints.interruption import Interruption
from .checkpoints.run_folder import CHECKPOINTS_FOLDER, METRICS_FILE
from .checkpoints.store import CheckpointError, Checkpoints
from .checkpoints.taught_dialogue import DialogueCheck
from .config.run import TrainingConfig
from .config.serialize import flatten, to_plain
from .data.rollouts import Rollouts
from .learning.distributed import any_process
from .learning.memory import memory_failures
from .learning.preparation import Prepared
from .monitor import ROLLED_BACK, current_lineage
from .reporting.env_metrics import env_metrics
from .reporting.metrics import MetricsFile, UpdateRecord, rollout_metrics
from .reporting.samples import SampleEpisodes
from .reporting.trees import TreeFile
from .sampling.collector import Collection
from .sampling.failures import EpisodesFailed, Failures
from .sampling.grafting import GraftText
from .sampling.policy_probe import LearnerProbe
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
        stopped: Reason why the run ended before its last update; None if it did not.
        interrupted: True if the run ended early because a stop was requested.
        checkpoints: Checkpoints of the run.
        checkpoint_seconds: Seconds spent on checkpoints since the last update; reported with the next one.

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
        self.history: list[dict[str, float]] = []
        self.stopped: str | None = None
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
        self._metrics = MetricsFile(config.out / METRICS_FILE)
        self._samples = SampleEpisodes(config.out, components.tokenizer)
        self._trees = TreeFile(config, components.tokenizer)
        self.checkpoint_seconds = self._validation_seconds = 0.0
        self._update_ended = time.perf_counter()
        try:
            if checkpoint is not None:
                self.history = self._contents.load(checkpoint)
                self._apply_lr_scale()
            self._unvalidated = self._take_unvalidated()
            self._open_logs()
        except BaseException:
            self.close()  # Processes that sample or step environments have started.
            raise
        self.activity.end()

    def _take_unvalidated(self) -> UpdateRecord | None:
        """Remove and return the last record if its validation is due but failed before the run was resumed."""
        due = self.state.update > 0 and self._is_due(self.config.validation.every)
        if not due or not self.history or "validation/success" in self.history[-1]:
            return None
        return UpdateRecord(self.history.pop())

    def _open_logs(self) -> None:
        if self.is_main:
            self.config.out.mkdir(parents=True, exist_ok=True)
            self._metrics.restart(self.history)
            self._samples.truncate(self.state.update if self.history else -1)
            self._trees.truncate(self.state.update)
        if self.config.trackers:
            settings = {
                name: value if isinstance(value, (str, int, float)) else json.dumps(value)
                for name, value in flatten(to_plain(self.config)).items()
            }
            self.accelerator.init_trackers("trackers", config=settings)

    @property
    def is_main(self) -> bool:
        """True in the process that writes files and prints."""
        return bool(self.accelerator.is_main_process)

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
            CheckpointError: The last checkpoint could not be written.
        """
        total, validation = self.config.recipe.optimization.updates, self.config.validation
        self._update_ended = time.perf_counter()
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
        while not self._is_over() and self.stopped is None:
            if self._stop_requested():
                self.save_checkpoint()
                self.interrupted = True
                return
            at_most = "" if self.config.recipe.optimization.max_tokens is None else "at most "
            self.activity.place = f"update {self.state.update + 1} of {at_most}{total}"
            record = self._update()
            self.state.update += 1
            self.state.tokens += int(record.metrics["sampled_tokens"])
            self._count_uninformative(record)
            yield self._finish(record, validate=self._is_due(validation.every))

    def _stop_requested(self) -> bool:
        """Return True if any process was asked to stop; a collective operation."""
        return any_process(self.accelerator, self.interruption.requested)

    def _count_uninformative(self, record: UpdateRecord) -> None:
        """Count consecutive updates that took no step for want of advantages, and stop after too many."""
        if record.metrics.get("steps", 0.0) or record.metrics.get("steps_skipped", 0.0):
            self.state.uninformative = 0
            return
        self.state.uninformative += 1
        record.metrics["uninformative"] = float(self.state.uninformative)
        count, limit = self.state.uninformative, self.config.monitor.uninformative
        record.notes.append(
            f"update {self.state.update}: no episode has an advantage, so the policy is "
            f"unchanged ({count} in a row)."
        )
        if limit and count >= limit:
            self.stopped = (
                f"{count} updates in a row had no advantage: all episodes of each prompt had equal returns. "
                f"Choose easier tasks, a better initial model or more {self.config.recipe.sampler.size_setting}, "
                "or raise --monitor.uninformative."
            )

    def _is_due(self, every: int) -> bool:
        is_last = self._is_over() or self.stopped is not None
        return every > 0 and (self.state.update % every == 0 or is_last)

    def _is_over(self) -> bool:
        """Return True if all updates are made, or the limit of generated tokens is reached."""
        return self._is_complete(self.state.update, self.state.tokens)

    def _is_complete(self, updates: int, tokens: int) -> bool:
        optimization = self.config.recipe.optimization
        spent = optimization.max_tokens is not None and tokens >= optimization.max_tokens
        return spent or updates >= optimization.updates

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
            self._log(record)
            self._keep_progress()
            raise
        self.history.append(record.metrics)
        record.notes += self._dialogue_check.notes(record.metrics)
        rolled_back = self._watch(record)
        if rolled_back:
            score = None  # It belongs to the collapsed policy.
        self._log(record)
        # Compared with the history, which every process has; only the main process has the index.
        self._save_if_due(record, score, is_best=score is not None and score > best, rolled_back=rolled_back)
        return record

    def _validate(self, record: UpdateRecord) -> float:
        """Validate the policy, and return its success rate.

        Raises:
            EpisodesFailed: Too many episodes ended with an error.
        """
        start = time.perf_counter()
        # At the final temperature of a schedule, so that the curve does not rise with the schedule alone.
        temperature = self.config.recipe.sampler.temperature
        final = temperature.end if isinstance(temperature, Linear) else temperature
        result = validate_run(self.sampler, self.config.envs, self.config.validation, final, self.config.seed)
        self._validation_seconds = time.perf_counter() - start
        record.metrics |= self.sampler.take_reply_counts().metrics("validation/")
        record.metrics |= {
            "validation/failed": float(result.failures.failed),
            "seconds/validate": self._validation_seconds,
        }
        if self.is_main:
            self._samples.add(self.state.update, result.samples)
        result.failures.check(self.config.monitor.failed, "validation episodes")
        _note_failures(record, result.failures, "validation episodes")
        record.metrics |= result.metrics()
        return result.success.value

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
        target = self._rollback_target() if monitor.action == "rollback" else None
        if target is None:
            self.stopped = str(record.alarms[-1])
            return False
        record.notes.append(self._roll_back(target))
        record.metrics[ROLLED_BACK] = float(target)
        return True

    def _log(self, record: UpdateRecord) -> None:
        if self.is_main:
            self._metrics.append(record.metrics)
        if self.config.trackers:
            self.accelerator.log(record.metrics, step=int(record.metrics["update"]))

    def _save_if_due(self, record: UpdateRecord, score: float | None, *, is_best: bool, rolled_back: bool) -> None:
        is_last = self.stopped is not None or self._is_over()
        due = is_best or is_last or rolled_back or self._is_due(self.config.checkpoint_every)
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

    def _temperature(self, update: int) -> float:
        temperature, total = self.config.recipe.sampler.temperature, self.config.recipe.optimization.updates
        if isinstance(temperature, Linear):
            # The last update has number total - 1 and the final temperature.
            return temperature.at(update, max(total - 1, 1))
        return temperature

    def _update(self) -> UpdateRecord:
        """Roll out, select, and update the policy."""
        recipe, temperature = self.config.recipe, self._temperature(self.state.update)
        start, cpu_start = time.perf_counter(), time.process_time()
        between = start - self._update_ended
        try:
            collection, sampling = self._roll_out(temperature)
        except (EpisodesFailed, NotEnoughGroups):
            self._keep_progress()
            raise
        sampled = time.perf_counter()
        rollouts = Rollouts.concatenate(collection.batches)
        metrics: dict[str, float] = {"update": self.state.update + 1, "temperature": temperature}
        metrics |= rollout_metrics(rollouts, collection.failures.failed)
        metrics |= collection.budget.metrics() | collection.trees
        metrics["batches"] = float(len(collection.batches))
        metrics |= sampling
        metrics["groups_kept"] = len(collection.kept) / rollouts.groups
        metrics |= env_metrics(collection, [env.label for env in self.config.envs])
        trained_tokens = 0
        if collection.kept:
            selected = select_groups(collection.batches, collection.kept)
            selected = recipe.rewards.apply(apply_overlong_penalty(selected, self.learner.recipe.overlong))
            trained_tokens = sum(len(row) for row in selected.rows) * recipe.optimization.passes
            microbatch_tokens = self.config.hardware.microbatch_tokens or self.optimizer.default_microbatch_tokens
            with memory_failures(microbatch_tokens):
                metrics |= self._learn(selected, temperature, collection.scale)
        self.learner.follow_policy()
        ended = time.perf_counter()
        parts = sum(value for name, value in metrics.items() if name.startswith("seconds/"))
        metrics |= {
            "seconds/sample": sampled - start,
            "seconds/learn": ended - sampled - parts,  # without what the credit rule and grafting report apart
            "seconds/checkpoint": self.checkpoint_seconds,  # of the checkpoint before this update
            # Between two updates, beside validation and checkpoints: logging, and the caller's own work. So these
            # phases add up to the run's wall time.
            "seconds/rest": max(between - self.checkpoint_seconds - self._validation_seconds, 0.0),
            "sampled_tokens_per_second": collection.budget.tokens
            / max(sampling.get("sampling_seconds", sampled - start), 1e-9),
            "trained_tokens_per_second": trained_tokens / max(ended - sampled, 1e-9),
        }
        metrics["cpu_seconds"] = time.process_time() - cpu_start
        self.checkpoint_seconds = self._validation_seconds = 0.0
        self._update_ended = ended
        record = UpdateRecord({name: value for name, value in metrics.items() if math.isfinite(value)})
        _note_failures(record, collection.failures, "episodes")
        _note_failures(record, collection.redraw_failures, "redrawn outcomes")
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
        self._ahead.order(None if self._is_complete(update, tokens) else self._temperature(update))
        return delivery.collection, delivery.metrics()

    def _learn(self, rollouts: Rollouts, temperature: float, scale: float) -> dict[str, float]:
        """Assign credit, make preference pairs where the objective has terms on pairs, and take the steps."""
        update = self.state.update
        probe = LearnerProbe(self.learner, self.sampler, temperature)
        prepared = self.learner.prepare(
            rollouts, update=update, temperature=temperature, scale=scale, policy=probe
        )
        if not self.config.recipe.objective.pair_terms:
            self._keep_trees(prepared)
            return self.learner.apply(prepared)
        start = time.perf_counter()
        found = prepared.credit.divergences
        grafts = self.grafter.graft(prepared.rollouts, found, update=update, temperature=temperature)
        self._keep_trees(prepared, grafts.texts)
        pairs = self.learner.add_preferences(grafts.pairs, update)
        seconds = {"seconds/graft": time.perf_counter() - start}
        return self.learner.apply(prepared, pairs) | grafts.metrics | seconds

    def _keep_trees(self, prepared: Prepared, grafts: Sequence[GraftText] = ()) -> None:
        if self.is_main:
            self._trees.add(self.state.update + 1, prepared.rollouts, prepared.credit, grafts)

    # ------------------------------------------------------------------ checkpoints and rollback

    def _rollback_target(self) -> int | None:
        """Return the updates before the checkpoint to roll back to; None if there is none."""
        if self.state.rollbacks >= self.config.monitor.rollbacks:
            return None
        target = [self.checkpoints.index.good]
        if self.optimizer.world_size > 1:
            from accelerate.utils import broadcast_object_list

            target = broadcast_object_list(target)  # only the main process has the index
        return target[0]

    def _roll_back(self, update: int) -> str:
        """Load policy, critic and optimizer of a checkpoint, lower the learning rates, and return a note of it."""
        if self._ahead is not None:
            self._ahead.discard()
        self._contents.roll_back(self.checkpoints.path(update))
        self.state.rollbacks += 1
        self._apply_lr_scale()
        return (
            f"update {self.state.update}: rolled back to the policy after update {update}; learning rates are now "
            f"{self.optimizer.lr_scale:g} × their setting (rollback {self.state.rollbacks} of "
            f"{self.config.monitor.rollbacks})"
        )

    def _apply_lr_scale(self) -> None:
        self.optimizer.lr_scale = self.config.monitor.lr_factor**self.state.rollbacks

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
            self.checkpoint_seconds = time.perf_counter() - start

    def close(self) -> None:
        """Release the model and the trackers, and end the processes that sample or step environments."""
        if self.config.trackers:
            self.accelerator.end_training()
        if self._ahead is not None:
            self._ahead.close()
        if self._workers is not None:
            self._workers.close()
        self.sampler.engine.close()


def _note_failures(record: UpdateRecord, failures: Failures, kind: str) -> None:
    if failures.failed:
        record.notes.append(f"update {record.metrics['update']:g}: {failures.describe(kind)}")
