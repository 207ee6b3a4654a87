"""Rollouts of one update: tasks drawn, episodes sampled in groups, and groups selected."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ...agents.episode import Episode
from ..algorithms.samplers import Trees
from ..algorithms.selectors import NotEnoughGroups
from ..config.resolve import make_entry
from ..config.run import TrainingConfig
from ..data.episodes import DrawKey, from_episodes
from ..data.rollouts import Redraw, Rollouts
from ..state import TrainerState
from .budget import Budget
from .failures import EpisodesFailed, Failures
from .rollout_plan import plan_chains
from .sampler import RolloutSampler
from .tasks import draw_tasks
from .tree_growth import Prompt, TreeEpisode, arrange_forest, tree_metrics


class Batch(NamedTuple):
    """One generation batch.

    Attributes:
        rollouts: Complete episodes.
        failures: Episodes that ended with an error and are left out.
        budget: Interaction with model and environment, of all episodes.
        trees: All episodes of trees; empty for chains.
    """

    rollouts: Rollouts
    failures: Failures
    budget: Budget
    trees: Sequence[TreeEpisode] = ()


class Collection(NamedTuple):
    """Rollouts of one update.

    Attributes:
        batches: Complete episodes of the generation batches, in order.
        failures: Episodes that ended with an error and are left out.
        budget: Interaction with model and environment, of all episodes.
        kept: Groups to train on, each (generation batch, group).
        scale: Factor on the advantages.
        trees: Statistics of trees, see `tree_metrics`; empty for chains.
    """

    batches: list[Rollouts]
    failures: Failures
    budget: Budget
    kept: Sequence[tuple[int, int]]
    scale: float
    trees: dict[str, float]


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
        sampler.dialogue = sampler.dialogue.bind(self.env)

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
        trees: list[TreeEpisode] = []
        failures, budget, scale = Failures(), Budget(), 1.0
        while refill.wants_more:
            batch = self.roll_out(temperature)
            groups, scale = recipe.selector.select(recipe.rewards.rescale(batch.rollouts))
            refill = refill.add([(len(batches), group) for group in groups])
            batches.append(batch.rollouts)
            failures, budget = failures.add(batch.failures), budget.add(batch.budget)
            trees += batch.trees
        metrics = tree_metrics(trees) if trees else {}
        return Collection(batches, failures, budget, refill.batch(), scale, metrics)

    def roll_out(self, temperature: float) -> Batch:
        """Return one generation batch.

        Raises:
            EpisodesFailed: More episodes ended with an error than the share that `Monitor.failed` allows.
        """
        config, sampler = self._config, self._config.recipe.sampler
        tasks = draw_tasks(self.env.tasks, self.state.task, sampler.prompts, config.seed, config.env.tasks)
        roll_out = self._roll_out_trees if isinstance(sampler, Trees) else self._roll_out_chains
        batch = roll_out(tasks, temperature)
        self.state.task += len(tasks)
        self.state.batch += 1
        return batch

    def _roll_out_chains(self, tasks: Sequence[str], temperature: float) -> Batch:
        config, recipe = self._config, self._config.recipe
        plan = plan_chains(tasks, recipe.sampler.rollouts, batch=self.state.batch, seed=config.seed)
        episodes = self.sampler.roll_out(self.entry, plan.jobs, temperature, keep=recipe.credit.keep)
        failures = Failures.among(episodes)
        failures.check(config.monitor.failed, "episodes")
        budget = Budget.spent(((episode, 0) for episode in episodes), self.env.calls_tool)
        arranged, groups = plan.arrange(episodes)
        redraws, redrawn = self._redraw(arranged, groups)
        return Batch(
            from_episodes(arranged, groups, redraws=redraws), failures, budget._replace(redrawn_steps=redrawn)
        )

    def _roll_out_trees(self, tasks: Sequence[str], temperature: float) -> Batch:
        config, recipe = self._config, self._config.recipe
        assert isinstance(recipe.sampler, Trees)
        prompts = [Prompt((self.state.batch, number), task) for number, task in enumerate(tasks)]
        played = self.sampler.grow_trees(
            self.entry, prompts, recipe.sampler, temperature, seed=config.seed, keep=recipe.credit.keep
        )
        failures = Failures.among([one.episode for one in played])
        failures.check(config.monitor.failed, "episodes")
        budget = Budget.spent(((one.episode, one.shared) for one in played), self.env.calls_tool)
        forest = arrange_forest(played)
        redraws, redrawn = self._redraw(forest.episodes, forest.groups)
        rollouts = from_episodes(
            forest.episodes, forest.groups, trees=forest.trees, branches=forest.branches, redraws=redraws
        )
        return Batch(rollouts, failures, budget._replace(redrawn_steps=redrawn), played)

    def _redraw(
        self, episodes: Sequence[Episode], groups: Sequence[Hashable]
    ) -> tuple[dict[DrawKey, tuple[Redraw, ...]] | None, int]:
        """Return the further outcomes that the credit asks for, and the number of actions executed for them."""
        count = self._config.recipe.credit.redraws
        if not count:
            return None, 0
        redraws = self.sampler.redraw(self.entry, episodes, groups, count)
        return redraws, sum(one.actions for drawn in redraws.values() for one in drawn)
