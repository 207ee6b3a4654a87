"""Which episodes one update rolls out, and which of them belong together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ...agents.episode import Episode
from ...agents.play import Job
from ...envs.errors import ConfigurationError
from ...envs.seeding import stable_seed

GroupKey = tuple[int, int]
"""(generation batch, prompt instance in it): used once in a training run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs of one generation batch.

    Attributes:
        jobs: what to play, the rollouts of a prompt side by side.
        keys: the group of each job. A task that was drawn twice makes two groups.
    """

    jobs: tuple[Job, ...]
    keys: tuple[GroupKey, ...]

    def arrange(self, episodes: Iterable[Episode]) -> tuple[list[Episode], list[Hashable]]:
        """Played episodes in the order of the jobs, with their group keys; those that broke off are left out.

        `play` yields episodes as they end; what is learnt must not depend on that order.

        Raises:
            ConfigurationError: an episode that is not of this plan, or is given twice.
        """
        places = {job.seed: i for i, job in enumerate(self.jobs)}
        played: dict[int, Episode] = {}
        for episode in episodes:
            place = places.get(episode.seed)
            if place is None or self.jobs[place].task not in (None, episode.task) or place in played:
                raise ConfigurationError(
                    f"the episode of task {episode.task!r} (seed {episode.seed}) was not asked for by this plan."
                )
            played[place] = episode
        whole = [place for place in sorted(played) if played[place].error is None]
        return [played[place] for place in whole], [self.keys[place] for place in whole]


def plan_chains(tasks: Sequence[str], rollouts: int, *, batch: int, seed: int) -> Plan:
    """P prompts × N independent rollouts.

    Args:
        tasks: the P tasks of this generation batch; repetitions are separate prompts.
        rollouts: N, episodes from each start.
        batch: running number of the generation batch in the training run; makes group keys and luck fresh.
        seed: of the training run.
    """
    jobs, keys = [], []
    for prompt, task in enumerate(tasks):
        for rollout in range(rollouts):
            # 53 bits survive a round trip through JSON, and do not collide in any run's lifetime.
            jobs.append(Job(task, stable_seed("rollout", seed, batch, prompt, rollout) >> 11))
            keys.append((batch, prompt))
    return Plan(tuple(jobs), tuple(keys))
