"""Episodes of a run in the order of an export, read one at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ...agents.episode import Episode
from ...envs.errors import ConfigurationError, DataError, unknown_name
from ..episode_filter import EpisodeFilter
from ..manifest import MANIFEST_FILE, check_is_evaluation, read_manifest
from ..run_index import open_index
from ..store import Result, StoredEpisode, read_episodes
from ..suite import read_suite
from ..texts import FILE as TEXTS_FILE
from ..texts import has_lost_texts, read_texts
from .conversation import clean


class ExportedEpisode(NamedTuple):
    """An episode to export.

    Attributes:
        result: Its head.
        episode: Its record.
        instructions: Instructions of its environment; empty if it cannot be made here.
    """

    result: Result
    episode: Episode
    instructions: str


class Source:
    """Episodes of a run. Their heads are in memory, and the episodes are read one at a time.

    Args:
        folder: Folder of an evaluation run.
        agents: Names of the agents whose episodes are exported; empty for all.

    Attributes:
        folder: Folder of the run.
        manifest: Content of its `run.json`.
        suite: Its suite.
        problems: One sentence for each line that is left out, and for each damaged episode that was left out so
            far.
        exported: Number of episodes read so far.

    Raises:
        ConfigurationError: It is the folder of a training run, or the run has no agent of a name.
        DataError: It is the folder of no run.
    """

    def __init__(self, folder: Path, agents: Sequence[str] = ()) -> None:
        check_is_evaluation(folder, "export")
        self.folder = folder
        self.manifest: Mapping[str, Any] = read_manifest(folder)
        self.suite = read_suite(self.manifest["suite"], str(folder / MANIFEST_FILE))
        self.problems: list[str] = []
        self.exported = 0
        self._lost = 0
        for name in agents:
            if name not in self.manifest["agents"]:
                raise unknown_name("agent", name, self.manifest["agents"])
        self._agents = tuple(agents)

    def results(self, which: EpisodeFilter, sort: str = "order") -> list[Result]:
        """Return the heads of the selected episodes.

        Args:
            which: Episodes to select.
            sort: One of `SORT_KEYS`.

        Raises:
            ConfigurationError: There are none.
        """
        with open_index(self.folder) as index:
            which = dataclasses.replace(which, agents=self._agents)
            found = index.page(which, sort=sort, limit=None)
            self.problems += index.problems()
            if not found:
                number = index.count()
                reason = "it has no episodes" if not number else f"none of its {number} episodes is of this kind"
                raise ConfigurationError(f"{self.folder}: there is nothing to export ({reason}).")
        return found

    def episodes(self, results: list[Result]) -> Iterator[ExportedEpisode]:
        """Yield the episodes of results, without damaged ones and those whose conversations have lost a text.

        The damaged ones are added to `problems`, and the others counted for `describe_lost`.
        """
        for result, stored in zip(results, read_episodes(self.folder, results), strict=True):
            if isinstance(stored, StoredEpisode) and has_lost_texts(stored.record, self._texts):
                self._lost += 1
            elif isinstance(stored, StoredEpisode):
                self.exported += 1
                yield ExportedEpisode(result, stored.episode, self._instructions.get(result.key.entry, ""))
            elif isinstance(stored, DataError):
                self.problems.append(f"{stored} It is left out.")

    def describe_lost(self) -> list[str]:
        """Return a sentence about the episodes that were left out because a text is lost, if there are any.

        Raises:
            ConfigurationError: No episode is left.
        """
        if not self._lost:
            return []
        reason = f"their system messages are missing, because {TEXTS_FILE} is lost or damaged"
        if not self.exported:
            raise ConfigurationError(f"{self.folder}: there is nothing to export ({reason}).")
        return [describe_left_out(self._lost, f"{reason}.")]

    @cached_property
    def _texts(self) -> dict[str, str]:
        """System messages of the run, by digest."""
        return read_texts(self.folder)

    @cached_property
    def _instructions(self) -> dict[str, str]:
        """Instructions of the environments, by entry."""
        found = {}
        for entry in self.suite.entries:
            try:
                found[entry.name] = entry.make().instructions
            except Exception:  # Its data or its package is missing here.
                found[entry.name] = ""
        return found


def describe_left_out(number: int, reason: str) -> str:
    """Return a sentence about the number of episodes that are left out for a reason."""
    return f"{number:,} {'episode is' if number == 1 else 'episodes are'} left out: {reason}"


def head(result: Result) -> dict[str, Any]:
    """Return the head of an episode as a flat row, without its details."""
    return {
        **clean(result.key._asdict()),
        "seed": result.seed,
        "success": result.success,
        "reward": float(result.total_reward),
        "steps": result.steps,
        "turns": result.turns,
        "invalid": result.invalid,
        "truncated": result.truncated,
        "seconds": float(result.seconds),
        "error": clean(result.error),
    }


def identity(one: ExportedEpisode) -> dict[str, Any]:
    """Return the identity and the result of an episode, for a row of training data."""
    result = one.result
    return {
        **clean(result.key._asdict()),
        "env": one.episode.env,
        "seed": result.seed,
        "success": result.success,
        "reward": result.total_reward,
    }
