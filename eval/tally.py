"""Tallies of results, from which a summary is computed: their memory does not grow with the number of episodes."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import groupby
from statistics import fmean

from ..agents.episode import SPENT
from .episode_lines import EpisodeKey, Result, amount, score_of
from .statistics import Interval, Moments, tallied_rate
from .suite import Entry

_NUMBER = re.compile(r"\d+")

ReadCell = Callable[[str, str], Iterable[Result]]
"""Function that returns the results of an agent on an entry by task, in order of code points, and repeat."""


def read_from(results: Mapping[EpisodeKey, Result]) -> ReadCell:
    """Return a function that reads cells from results in memory."""
    cells: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for key in sorted(results):
        cells[key.agent, key.entry].append(results[key])
    return lambda agent, entry: cells.get((agent, entry), [])


class CellTally:
    """Tally of the results of an agent on an entry, or on one group of its tasks.

    The results of a task are added together, and `end_task` follows them. Repeats of a task are not independent,
    so statistics are computed over tasks.

    Args:
        score: Key of the score in the details; None for an entry without a score.

    Attributes:
        episodes: Number of complete episodes.
        failed: Number of episodes that broke off, which count nowhere else.
        steps: Number of actions.
        invalid: Number of actions that the environment refused.
        truncated: Number of episodes that a limit ended.
        seconds: Wall times of the episodes.
        amounts: Amounts per episode by key, with 0 where an episode has none; without keys that no episode has.
        tasks: Number of tasks by their numbers of episodes and successes.
        returns: Mean return of each task.
        has_score: True if the details of an episode have the score.
        lacks_score: True if those of a successful episode do not.
    """

    def __init__(self, score: str | None) -> None:
        self._score = score
        self.has_score = self.lacks_score = False
        self.episodes = self.failed = self.steps = self.invalid = self.truncated = 0
        self.seconds, self.returns = Moments(), Moments()
        self.amounts: dict[str, float] = {}
        self.tasks: Counter[tuple[int, int]] = Counter()
        self._successes = 0
        self._returns, self._scores = array("d"), array("d")
        self._mean_scores = Moments()
        self._all_or_nothing: Counter[tuple[int, int]] | None = Counter()
        self._is_share = True

    def add(self, result: Result) -> None:
        """Add a result of the current task."""
        if result.error is not None:
            self.failed += 1
            return
        details = result.details
        self.episodes += 1
        self.steps += result.steps
        self.invalid += result.invalid
        self.truncated += result.truncated
        self.seconds.add(result.seconds)
        self._successes += result.success
        self._returns.append(result.total_reward)
        if self._score is not None:
            value = score_of(details, self._score)
            self.has_score |= value is not None
            self.lacks_score |= value is None and result.success
            self._scores.append(value or 0.0)
        for key in ("completion_tokens", "simulated_steps"):
            if key in details:
                self.amounts[key] = self.amounts.get(key, 0.0) + amount(details, key)

    def end_task(self) -> tuple[int, int] | None:
        """End the current task, and return its numbers of episodes and successes; None without episodes."""
        if not self._returns:
            return None
        found = len(self._returns), self._successes
        self.tasks[found] += 1
        self.returns.add(fmean(self._returns))
        if self._scores:
            self._end_scores()
        self._successes = 0
        del self._returns[:], self._scores[:]
        return found

    def _end_scores(self) -> None:
        self._mean_scores.add(fmean(self._scores))
        self._is_share &= all(0.0 <= score <= 1.0 for score in self._scores)
        full = self._scores.count(1.0)
        if full + self._scores.count(0.0) < len(self._scores):
            self._all_or_nothing = None
        elif self._all_or_nothing is not None:
            self._all_or_nothing[len(self._scores), full] += 1

    def score(self) -> Interval:
        """Return the mean score times 100, with the interval of a success rate if all scores are 0 or 1."""
        if self._all_or_nothing:
            found = tallied_rate(self._all_or_nothing)
        else:
            found = self._mean_scores.share() if self._is_share else self._mean_scores.interval()
        return Interval(*(100.0 * bound for bound in found))


class RunTally:
    """Tally of the results of a run.

    Args:
        agents: Names of the agents.
        read: Function that reads the results of a cell.

    Attributes:
        errors: Number of episodes that broke off, by reason, the most frequent first.
        amounts: Sums of `prompt_tokens`, `completion_tokens` and `cost`, by agent and key.
        refused: Numbers of episodes that ended because the model did not take a prompt, with the agent and the
            first of the reasons that differ only in numbers.
    """

    def __init__(self, agents: Sequence[str], read: ReadCell) -> None:
        self._agents, self._read = agents, read
        self._errors: Counter[str] = Counter()
        self.amounts: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._refused: Counter[tuple[str, str]] = Counter()
        self._first_reasons: dict[tuple[str, str], str] = {}

    @property
    def refused(self) -> list[tuple[str, int, str]]:
        return [(key[0], count, self._first_reasons[key]) for key, count in self._refused.most_common()]

    @property
    def errors(self) -> dict[str, int]:
        return dict(sorted(self._errors.items(), key=lambda one: (-one[1], one[0])))

    def tally_entry(self, entry: Entry) -> EntryTally:
        """Read the results of an entry, and return their tally."""
        found = EntryTally(entry)
        # All agents side by side, since comparisons are by task. Streams in order have few results in memory.
        streams = [self._read(agent, entry.name) for agent in self._agents]
        for _, results in groupby(merge(*streams, key=_task), key=_task):
            found.add_task(self._note(result) for result in results)
        return found

    def _note(self, result: Result) -> Result:
        if result.error is not None:
            self._errors[result.error] += 1
        if result.details:
            for key in ("prompt_tokens", "completion_tokens", "cost"):
                self.amounts[result.key.agent, key] += amount(result.details, key)
            reason = result.details.get("ended")
            if isinstance(reason, str) and not reason.endswith(SPENT):
                kind = result.key.agent, _NUMBER.sub("", reason)
                self._refused[kind] += 1
                self._first_reasons.setdefault(kind, reason)
        return result


def _task(result: Result) -> str:
    return result.key.task


class EntryTally:
    """Tally of the results of an entry.

    Args:
        entry: The entry.

    Attributes:
        cells: Tallies by group and agent. The group None has all tasks.
        pairs: For each pair of agents, in the order of their names, the number of tasks that both completed by
            the numbers of episodes and successes of both.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._keys: set[str] = set()
        self.cells: dict[tuple[str | None, str], CellTally] = {}
        self.pairs: dict[tuple[str, str], Counter[tuple[tuple[int, int], tuple[int, int]]]] = {}

    @property
    def problems(self) -> list[str]:
        """A sentence for each key of the entry, `score` and `group_by`, that no episode has."""
        cells = [cell for (group, _), cell in self.cells.items() if group is None and cell.episodes]
        keys = ", ".join(sorted(self._keys)) or "none"
        missing = []
        if not self.has_score:
            missing.append(f"a number under {self._entry.score!r}, its score,")
        group_by = self._entry.group_by
        if cells and group_by is not None and not self.groups and group_by not in self._keys:
            missing.append(f"{group_by!r}, its group_by,")
        return [f"{self._entry.name}: no episode has {what} in its details; they have {keys}" for what in missing]

    @property
    def has_score(self) -> bool:
        """True if an episode has the entry's score, or if all that could tell otherwise failed."""
        cells = self.cells.values()
        return any(cell.has_score for cell in cells) or not any(cell.lacks_score for cell in cells)

    @property
    def groups(self) -> list[str]:
        """Names of the groups: those that the entry names in its order, then the others."""
        named = {group for group, _ in self.cells if group is not None}
        return [group for group in self._entry.groups if group in named] + sorted(named - set(self._entry.groups))

    def cell(self, group: str | None, agent: str) -> CellTally:
        """Return the tally of an agent on a group, or on all tasks."""
        key = group, agent
        found = self.cells.get(key)
        if found is None:
            found = self.cells[key] = CellTally(self._entry.score)
        return found

    def pair(self, a: str, b: str) -> dict[tuple[tuple[int, int], tuple[int, int]], int]:
        """Return the number of tasks by the numbers of episodes and successes of a, and those of b."""
        if a < b:
            return dict(self.pairs.get((a, b), {}))
        return {(ours, theirs): count for (theirs, ours), count in self.pairs.get((b, a), {}).items()}

    def add_task(self, results: Iterable[Result]) -> None:
        """Add all results of a task."""
        touched: dict[tuple[str | None, str], CellTally] = {}
        group_by = self._entry.group_by
        for result in results:
            agent = result.key.agent
            touched[None, agent] = cell = self.cell(None, agent)
            cell.add(result)
            self._keys.update(result.details)
            if group_by is not None and (value := result.details.get(group_by)) not in (None, ""):
                touched[str(value), agent] = cell = self.cell(str(value), agent)
                cell.add(result)
        outcomes: dict[str, tuple[int, int]] = {}
        for (group, agent), cell in touched.items():
            outcome = cell.end_task()
            if group is None and outcome is not None:
                outcomes[agent] = outcome
        agents = sorted(outcomes)
        for place, a in enumerate(agents):
            for b in agents[place + 1 :]:
                pair = self.pairs.setdefault((a, b), Counter())
                pair[outcomes[a], outcomes[b]] += 1
