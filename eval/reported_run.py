"""A run as a report reads it: results under the names that the report gives to its agents, few at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .decisions import Labels
from .index_reader import TaskOutcomes
from .run_index import Cell, RunIndex
from .store import EpisodeKey, Result


@dataclass(frozen=True)
class ReportedRun:
    """A run, as a report shows it.

    Attributes:
        folder: Folder of the run.
        index: Its index, which stays open while the report is made.
        manifest: Content of `run.json`.
        names: Names of the agents in the run, by their names in the report; other agents are not shown.
        labels: Labels of decisions, by the keys of the episodes in the report.
    """

    folder: Path
    index: RunIndex
    manifest: Mapping[str, Any]
    names: Mapping[str, str]
    labels: Mapping[EpisodeKey, Labels] = field(default_factory=dict)

    @cached_property
    def cells(self) -> list[Cell]:
        """Numbers of episodes by agent and entry, in the order in which they were begun."""
        shown = {own: name for name, own in self.names.items()}
        return [cell._replace(agent=shown[cell.agent]) for cell in self.index.cells() if cell.agent in shown]

    def results(self, agent: str, entry: str) -> Iterator[Result]:
        """Yield the results of an agent on an entry by task and repeat; none of an agent that is not shown."""
        if agent in self.names:
            for result in self.index.in_task_order(self.names[agent], entry):
                yield _rename(result, agent)

    def sample(self, agent: str, entry: str, number: int) -> list[Result]:
        """Return at most `number` results of an agent on an entry, evenly spaced in their order."""
        if agent not in self.names:
            return []
        return [_rename(result, agent) for result in self.index.sample(self.names[agent], entry, number)]

    def task_outcomes(self, agent: str, entry: str) -> Iterator[TaskOutcomes]:
        """Yield the outcomes of an agent on each task of an entry that it completed, in order of code points."""
        if agent in self.names:
            yield from self.index.task_outcomes(self.names[agent], entry)

    def complete_of_task(self, agents: Sequence[str], entry: str, task: str, limit: int) -> list[Result]:
        """Return at most `limit` complete results of agents on a task, in their order."""
        own = {self.names[agent]: agent for agent in agents if agent in self.names}
        results = self.index.complete_of_tasks(list(own), entry, [task], limit) if own else []
        return [_rename(result, own[result.key.agent]) for result in results]


def _rename(result: Result, agent: str) -> Result:
    if result.key.agent == agent:
        return result
    return dataclasses.replace(result, key=result.key._replace(agent=agent))
