"""Rollouts of one update: tasks drawn, episodes sampled in groups, and groups selected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...agents.episode import Episode
from ...envs.core import TextEnv
from ...eval.suite import Entry
from ..algorithms.samplers import Trees
from ..algorithms.selectors import NotEnoughGroups, select_by_env
from ..config.resolve import make_entry
from ..config.run import TrainingConfig
from ..config.settings import EnvConfig
from ..data.episodes import DrawKey, from_episodes
from ..data.rollouts import Redraw, Rollouts
from ..state import TrainerState
from .budget import Budget
from .failures import EpisodesFailed, Failures
from .rollout_plan import GroupKey, plan_chains
from .sampler import RolloutSampler
from .schedule import EnvSchedule
from .tasks import draw_tasks
from .tree_growth import Prompt, TreeEpisode, arrange_forest, tree_metrics


class Batch(NamedTuple):
    """One generation batch.

    Attributes:
        rollouts: Complete episodes.
        failures: Episodes that ended with an error and are left out.
        budget: Interaction with model and environment, of all episodes.
        trees: All episodes of trees; empty for chains.
        env_failures: Failures in each environment of the run.
        redraw_failures: Redrawn outcomes in whose place the environment failed.
    """

    rollouts: Rollouts
    failures: Failures
    budget: Budget
    trees: Sequence[TreeEpisode] = ()
    env_failures: tuple[Failures, ...] = ()
    redraw_failures: Failures = Failures()


class Collection(NamedTuple):
    """Rollouts of one update.

    Attributes:
        batches: Complete episodes of the generation batches, in order.
        failures: Episodes that ended with an error and are left out.
        budget: Interaction with model and environment, of all episodes.
        kept: Groups to train on, each (generation batch, group).
        scale: Factor on the advantages.
        trees: Statistics of trees, see `tree_metrics`; empty for chains.
        env_failures: Failures in each environment of the run.
        redraw_failures: Redrawn outcomes in whose place the environment failed.
    """

    batches: list[Rollouts]
    failures: Failures
    budget: Budget
    kept: Sequence[tuple[int, int]]
    scale: float
    trees: dict[str, float]
    env_failures: tuple[Failures, ...]
    redraw_failures: Failures


class _Source(NamedTuple):
    """Environment that prompts are drawn from.

    Attributes:
        config: Environment and tasks.
        entry: Its suite entry.
        env: Instance whose tasks are drawn.
    """

    config: EnvConfig
    entry: Entry
    env: TextEnv[Any]


class _Redrawn(NamedTuple):
    """Redrawn outcomes of a generation batch: by target (None if the credit asks for none), actions, failures."""

    outcomes: dict[DrawKey, tuple[Redraw, ...]] | None = None
    actions: int = 0
    failures: Failures = Failures()


class _Drawn(NamedTuple):
    """Prompt of a generation batch: number of its environment, and task."""

    env: int
    task: str


class Collector:
    """Rolls out generation batches until the recipe's selector has enough groups.

    In a run on several environments, prompts are drawn from each in the ratio of the weights (see `EnvSchedule`),
    and groups are selected among those of one environment, since returns of different environments have
    different scales.

    Args:
        config: Configuration of the run.
        sampler: Sampler of episodes.
        state: Counters of the run; batches and tasks are counted in it.
    """

    def __init__(self, config: TrainingConfig, sampler: RolloutSampler, state: TrainerState) -> None:
        self._config = config
        self.sampler = sampler
        self.state = state
        self._sources = []
        for env in config.envs:
            entry = make_entry(env, env.split)
            self._sources.append(_Source(env, entry, entry.make()))
        self._schedule = EnvSchedule([env.weight for env in config.envs])
        if len(self._sources) == 1:
            sampler.dialogue = sampler.dialogue.bind(self.env)

    @property
    def envs(self) -> list[TextEnv[Any]]:
        """Instance of each environment of the run, whose tasks are drawn."""
        return [source.env for source in self._sources]

    @property
    def env(self) -> TextEnv[Any]:
        """Instance of the first environment."""
        return self._sources[0].env

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
        failures, redraw_failures, budget, scale = Failures(), Failures(), Budget(), 1.0
        env_failures = [Failures() for _ in self._sources]
        while refill.wants_more:
            batch = self.roll_out(temperature)
            groups, scale = select_by_env(recipe.selector, recipe.rewards.rescale(batch.rollouts))
            refill = refill.add([(len(batches), group) for group in groups])
            batches.append(batch.rollouts)
            failures, budget = failures.add(batch.failures), budget.add(batch.budget)
            redraw_failures = redraw_failures.add(batch.redraw_failures)
            env_failures = [old.add(new) for old, new in zip(env_failures, batch.env_failures, strict=True)]
            trees += batch.trees
        metrics = tree_metrics(trees) if trees else {}
        return Collection(
            batches, failures, budget, refill.batch(), scale, metrics, tuple(env_failures), redraw_failures
        )

    def roll_out(self, temperature: float) -> Batch:
        """Return one generation batch.

        Raises:
            EpisodesFailed: More episodes, or redrawn outcomes, ended with an error than the share that
                `Monitor.failed` allows.
        """
        sampler = self._config.recipe.sampler
        drawn = self._draw_prompts(sampler.prompts)
        roll_out = self._roll_out_trees if isinstance(sampler, Trees) else self._roll_out_chains
        batch = roll_out(drawn, temperature)
        self.state.task += len(drawn)
        self.state.batch += 1
        return batch

    def _draw_prompts(self, count: int) -> dict[GroupKey, _Drawn]:
        """Return the next prompts by their groups; every environment goes through its own tasks."""
        first = self.state.task
        envs = self._schedule.draw(first, count)
        tasks = []
        for number, source in enumerate(self._sources):
            before = self._schedule.count_before(first, number)
            names = draw_tasks(
                source.env.tasks, before, envs.count(number), self._config.seed, source.config.tasks
            )
            tasks.append(iter(names))
        return {
            (self.state.batch, prompt): _Drawn(number, next(tasks[number])) for prompt, number in enumerate(envs)
        }

    def _roll_out_chains(self, drawn: Mapping[GroupKey, _Drawn], temperature: float) -> Batch:
        config, recipe = self._config, self._config.recipe
        plan = plan_chains(
            [one.task for one in drawn.values()], recipe.sampler.rollouts, batch=self.state.batch, seed=config.seed
        )
        played: list[list[Episode]] = []
        for number, source in enumerate(self._sources):
            jobs = [job for job, key in zip(plan.jobs, plan.keys, strict=True) if drawn[key].env == number]
            keep = recipe.credit.keep
            played.append(self.sampler.roll_out(source.entry, jobs, temperature, keep=keep) if jobs else [])
        failures = self._check_failures(played)
        budget = self._budget([[(episode, 0) for episode in episodes] for episodes in played])
        arranged, groups = plan.arrange(episode for episodes in played for episode in episodes)
        redrawn = self._redraw(arranged, groups, drawn)
        rollouts = from_episodes(arranged, groups, redraws=redrawn.outcomes, envs=self._env_numbers(groups, drawn))
        return Batch(
            rollouts,
            Failures.among([episode for episodes in played for episode in episodes]),
            budget._replace(redrawn_steps=redrawn.actions),
            env_failures=failures,
            redraw_failures=redrawn.failures,
        )

    def _roll_out_trees(self, drawn: Mapping[GroupKey, _Drawn], temperature: float) -> Batch:
        config, recipe = self._config, self._config.recipe
        assert isinstance(recipe.sampler, Trees)
        played: list[list[TreeEpisode]] = []
        for number, source in enumerate(self._sources):
            prompts = [Prompt(key, one.task) for key, one in drawn.items() if one.env == number]
            grown = (
                self.sampler.grow_trees(
                    source.entry, prompts, recipe.sampler, temperature, seed=config.seed, keep=recipe.credit.keep
                )
                if prompts
                else []
            )
            played.append(grown)
        failures = self._check_failures([[one.episode for one in grown] for grown in played])
        budget = self._budget([[(one.episode, one.shared) for one in grown] for grown in played])
        grown = [one for part in played for one in part]
        forest = arrange_forest(grown)
        redrawn = self._redraw(forest.episodes, forest.groups, drawn)
        rollouts = from_episodes(
            forest.episodes,
            forest.groups,
            trees=forest.trees,
            branches=forest.branches,
            redraws=redrawn.outcomes,
            envs=self._env_numbers(forest.groups, drawn),
        )
        return Batch(
            rollouts,
            Failures.among([one.episode for one in grown]),
            budget._replace(redrawn_steps=redrawn.actions),
            grown,
            failures,
            redrawn.failures,
        )

    def _check_failures(self, played: Sequence[Sequence[Episode]]) -> tuple[Failures, ...]:
        """Return the failures in each environment.

        Raises:
            EpisodesFailed: Too many episodes failed, or all of an environment.
        """
        limit = self._config.monitor.failed
        failures = tuple(Failures.among(episodes) for episodes in played)
        for source, one in zip(self._sources, failures, strict=True):
            if one.failed == one.episodes and len(failures) > 1:
                one.check(limit, f"episodes of {source.config.label}")
        Failures.among([episode for episodes in played for episode in episodes]).check(limit, "episodes")
        return failures

    def _budget(self, played: Sequence[Sequence[tuple[Episode, int]]]) -> Budget:
        """Return the budget that the episodes of each environment cost; see `Budget.spent`."""
        spent = Budget()
        for source, episodes in zip(self._sources, played, strict=True):
            spent = spent.add(Budget.spent(episodes, source.env.calls_tool))
        return spent

    def _env_numbers(self, groups: Sequence[Any], drawn: Mapping[GroupKey, _Drawn]) -> list[int] | None:
        """Return the environment of each episode by its group; None in a run on a single one."""
        return None if len(self._sources) == 1 else [drawn[key].env for key in groups]

    def _redraw(
        self, episodes: Sequence[Episode], groups: Sequence[Any], drawn: Mapping[GroupKey, _Drawn]
    ) -> _Redrawn:
        """Return the further outcomes that the credit asks for.

        Raises:
            EpisodesFailed: The environment failed in the place of too many of them.
        """
        count = self._config.recipe.credit.redraws
        if not count:
            return _Redrawn()
        outcomes: dict[DrawKey, tuple[Redraw, ...]] = {}
        failures = Failures()
        for number, source in enumerate(self._sources):
            places = [place for place, key in enumerate(groups) if drawn[key].env == number]
            if places:
                own = [episodes[place] for place in places], [groups[place] for place in places]
                found, failed = self.sampler.redraw(source.entry, *own, count)
                outcomes |= found
                failures = failures.add(failed)
        failures.check(self._config.monitor.failed, "redrawn outcomes")
        return _Redrawn(outcomes, sum(one.actions for found in outcomes.values() for one in found), failures)
