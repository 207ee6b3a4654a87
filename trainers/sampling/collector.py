"""The episodes that one update learns from: tasks drawn, played in groups, and selected."""

from __future__ import annotations

from collections.abc import Sequence

from ..algorithms.selectors import Dynamic
from ..config.run import Run
from ..data.rollouts import Rollouts, from_episodes
from ..reporting.metrics import Position
from .rollout_plan import plan_chains
from .sampler import Sampler, Unplayable, drawn_tasks, entry_of


class Gathering:
    """Plays generation batches until the recipe's selector has what it wants.

    Args:
        run: the settings.
        sampler: plays.
        position: where the run stands; batches and tasks are counted on in it.
    """

    def __init__(self, run: Run, sampler: Sampler, position: Position) -> None:
        self._run = run
        self.sampler = sampler
        self.position = position
        self.entry = entry_of(run.world, run.world.split)
        self.env = self.entry.make()

    def gather(self, temperature: float) -> tuple[list[Rollouts], int, Sequence[tuple[int, int]], float]:
        """Generation batches, episodes that broke off, the groups to learn from, and what scales advantages."""
        selector = self._run.recipe.selector
        if not isinstance(selector, Dynamic):
            rollouts, failed = self.batch(temperature)
            groups, scale = selector.select(rollouts)
            return [rollouts], failed, [(0, group) for group in groups], scale
        refill = selector.refill(self._run.recipe.sampler.prompts)
        batches: list[Rollouts] = []
        failed, scale = 0, 1.0
        while refill.wants_more:
            rollouts, lost = self.batch(temperature)
            selection = selector.select(rollouts)
            refill = refill.add([(len(batches), group) for group in selection.groups])
            batches.append(rollouts)
            failed += lost
        return batches, failed, refill.batch(), scale

    def draw(self, count: int) -> list[str]:
        return drawn_tasks(self.env.tasks, self.position.task, count, self._run.seed, self._run.world.tasks)

    def batch(self, temperature: float) -> tuple[Rollouts, int]:
        """One generation batch, and how many of its episodes broke off."""
        recipe = self._run.recipe
        tasks = self.draw(recipe.sampler.prompts)
        plan = plan_chains(tasks, recipe.sampler.rollouts, batch=self.position.batch, seed=self._run.seed)
        episodes = self.sampler.play(self.entry, plan.jobs, temperature, keep_states=recipe.anchor == "state")
        whole, keys = plan.arrange(episodes)
        if not whole:
            raise Unplayable(episodes)
        self.position.task += len(tasks)
        self.position.batch += 1
        return from_episodes(whole, keys, anchor=recipe.anchor), len(episodes) - len(whole)
