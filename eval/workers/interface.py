"""Interface of all workers, and how one of them plays an episode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ...agents.episode import Episode
from ...agents.play import Job, TimeLimits, play
from ...envs.core import TextEnv
from ..agents import AgentFactory
from ..planning import PlannedEpisode
from ..store import EncodedEpisode, EpisodeKey, encode_episode
from ..suite import Entry


class FinishedEpisode(NamedTuple):
    """A played episode and its encoding. Workers return it without turns, which the encoding contains."""

    key: EpisodeKey
    encoded: EncodedEpisode
    episode: Episode


class Workers(Protocol):
    """Processes that play episodes."""

    def play(
        self, planned: Iterable[PlannedEpisode], limits: TimeLimits, in_flight: int, /
    ) -> Iterator[FinishedEpisode]:
        """Play episodes, and yield them as they end."""
        ...


@runtime_checkable
class ReplicatingWorkers(Workers, Protocol):
    """Workers that also play agents that must play in one process, each copy in one of its own."""

    def hosts(self, factory: AgentFactory, /) -> bool:
        """Return True if copies of the agent can play, made by `play_replicated`."""
        ...

    def play_replicated(
        self,
        factory: AgentFactory,
        planned: Iterable[PlannedEpisode],
        limits: TimeLimits,
        in_flight: int,
        /,
    ) -> Iterator[FinishedEpisode]:
        """Play episodes of such an agent, and yield them as they end."""
        ...


def play_episode(planned: PlannedEpisode, limits: TimeLimits) -> FinishedEpisode:
    """Play one episode in a worker process, which keeps its environments for later episodes."""
    env = cached_env(planned.entry)
    job = Job(planned.key.task, planned.seed)
    assert planned.agent is not None
    (episode,) = play(
        planned.agent,
        [env],
        [job],
        max_turns=planned.entry.max_turns,
        time_limit=limits.episode,
        step_time_limit=limits.step,
    )
    encoded = encode_episode(planned.key, episode)
    episode.turns = []  # The encoding contains them, so they need not be transferred twice.
    episode.exchanges = []
    return FinishedEpisode(planned.key, encoded, episode)


_envs: dict[str, TextEnv[Any]] = {}


def cached_env(entry: Entry) -> TextEnv[Any]:
    """Return the environment of an entry, which the first call in this process opens."""
    identity = repr(entry)
    if identity not in _envs:
        _envs[identity] = entry.make()
    return _envs[identity]


def failed_episode(planned: PlannedEpisode, error: str, trace: str | None = None) -> FinishedEpisode:
    """Return the record of an episode that never came back from its worker."""
    key = planned.key
    episode = Episode(planned.entry.env, key.task, planned.seed, key.agent, error=error, trace=trace)
    return FinishedEpisode(key, encode_episode(key, episode), episode)
