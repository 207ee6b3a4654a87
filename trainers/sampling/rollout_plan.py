"""Episodes that one update rolls out, and the groups that they form."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ...agents.episode import Episode
from ...agents.play import Job
from ...envs.errors import ConfigurationError
from ...envs.seeding import stable_seed

GroupKey = tuple[int, int]
"""Generation batch and prompt within it: unique in a training run."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Jobs of one generation batch.

    Attributes:
        jobs: Episodes to roll out; those of one prompt are adjacent.
        keys: Group of each job. A task that was drawn twice forms two groups.
    """

    jobs: tuple[Job, ...]
    keys: tuple[GroupKey, ...]

    def arrange(self, episodes: Iterable[Episode]) -> tuple[list[Episode], list[Hashable]]:
        """Return episodes in the order of the jobs, with their group keys, leaving out those that failed.

        `play` yields episodes as they end; the order restores reproducibility.

        Raises:
            ConfigurationError: An episode does not belong to this plan, or occurs twice.
        """
        places = {job.seed: i for i, job in enumerate(self.jobs)}
        by_place: dict[int, Episode] = {}
        for episode in episodes:
            place = places.get(episode.seed)
            if place is None or self.jobs[place].task not in (None, episode.task) or place in by_place:
                raise ConfigurationError(
                    f"the episode of task {episode.task!r} (seed {episode.seed}) does not belong to this plan."
                )
            by_place[place] = episode
        complete = [place for place in sorted(by_place) if by_place[place].error is None]
        return [by_place[place] for place in complete], [self.keys[place] for place in complete]


def rollout_seed(seed: int, key: GroupKey, rollout: int) -> int:
    """Return the seed of an episode that begins at the start of its task.

    Args:
        seed: Seed of the run.
        key: Group of the episode.
        rollout: Number of the episode within its group.
    """
    # 53 bits survive a round trip through JSON and do not collide within a run.
    return stable_seed("rollout", seed, *key, rollout) >> 11


def plan_chains(tasks: Sequence[str], rollouts: int, *, batch: int, seed: int) -> RolloutPlan:
    """Plan P prompts × N independent episodes.

    Args:
        tasks: Tasks of the P prompts; a repeated task is a separate prompt.
        rollouts: Episodes N per prompt.
        batch: Number of the generation batch in the run, from 0; part of group keys and seeds.
        seed: Seed of the run.
    """
    jobs, keys = [], []
    for prompt, task in enumerate(tasks):
        for rollout in range(rollouts):
            jobs.append(Job(task, rollout_seed(seed, (batch, prompt), rollout)))
            keys.append((batch, prompt))
    return RolloutPlan(tuple(jobs), tuple(keys))
