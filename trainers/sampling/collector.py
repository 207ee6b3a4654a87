"""Rollouts of one update: tasks drawn, episodes sampled in groups, and groups selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..algorithms.selectors import NotEnoughGroups
from ..config.resolve import make_entry
from ..config.run import TrainingConfig
from ..data.episodes import from_episodes
from ..data.rollouts import Rollouts
from ..state import TrainerState
from .failures import EpisodesFailed, Failures
from .rollout_plan import plan_chains
from .sampler import RolloutSampler
from .tasks import draw_tasks


class Collection(NamedTuple):
    """Rollouts of one update.

    Attributes:
        batches: Generation batches, in order.
        failures: Episodes that ended with an error and are left out.
        kept: Groups to train on, each (generation batch, group).
        scale: Factor on the advantages.
    """

    batches: list[Rollouts]
    failures: Failures
    kept: Sequence[tuple[int, int]]
    scale: float


class Collector:
    """Rolls out generation batches until the recipe's selector has enough groups.

    Args:
        config: Configuration of the run.
        sampler: Sampler of episodes.
        state: Counters of the run; batches and tasks are counted in it.
    """

    def __init__(self, config: TrainingConfig, sampler: RolloutSampler, state: TrainerState) -> None:
        self._config = config
        self.sampler = sampler
        self.state = state
        self.entry = make_entry(config.env, config.env.split)
        self.env = self.entry.make()

    def collect(self, temperature: float) -> Collection:
        """Roll out the episodes of one update.

        If that fails, the counters of batches and tasks are those of the last complete update.

        Raises:
            EpisodesFailed: Too many episodes of a generation batch ended with an error.
            NotEnoughGroups: See `Refill.batch`.
        """
        batch, task = self.state.batch, self.state.task
        try:
            return self._collect(temperature)
        except (EpisodesFailed, NotEnoughGroups):
            self.state.batch, self.state.task = batch, task
            raise

    def _collect(self, temperature: float) -> Collection:
        recipe = self._config.recipe
        refill = recipe.selector.refill(recipe.sampler.prompts)
        batches: list[Rollouts] = []
        failures, scale = Failures(), 1.0
        while refill.wants_more:
            rollouts, failed = self.roll_out(temperature)
            groups, scale = recipe.selector.select(recipe.rewards.rescale(rollouts))
            refill = refill.add([(len(batches), group) for group in groups])
            batches.append(rollouts)
            failures = failures.add(failed)
        return Collection(batches, failures, refill.batch(), scale)

    def roll_out(self, temperature: float) -> tuple[Rollouts, Failures]:
        """Return one generation batch, and its episodes that ended with an error, which are left out.

        Raises:
            EpisodesFailed: They are more than the share that `Monitor.failed` allows.
        """
        config, recipe = self._config, self._config.recipe
        tasks = draw_tasks(self.env.tasks, self.state.task, recipe.sampler.prompts, config.seed, config.env.tasks)
        plan = plan_chains(tasks, recipe.sampler.rollouts, batch=self.state.batch, seed=config.seed)
        episodes = self.sampler.roll_out(self.entry, plan.jobs, temperature, keep=recipe.credit.keep)
        failures = Failures.among(episodes)
        failures.check(config.monitor.failed, "episodes")
        complete, keys = plan.arrange(episodes)
        self.state.task += len(tasks)
        self.state.batch += 1
        return from_episodes(complete, keys), failures
