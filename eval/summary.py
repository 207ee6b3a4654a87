"""From stored episodes to numbers: one `Line` per suite entry and player, with reference lines and comparisons."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ..envs.files import write_atomic
from .statistics import Interval, Paired, mean, paired, rate
from .store import Key, Result, latest, read_manifest
from .suite import Entry, Suite, parse_suite

RANDOM, EXPERT = "random", "expert"


@dataclass(frozen=True)
class Line:
    """The results of one player on one entry, or on one group of its tasks.

    Attributes:
        entry: name of the suite entry.
        group: value of the entry's `group_by` key; None for all tasks together.
        agent: name of the player.
        episodes: whole episodes played.
        expected: episodes that the suite asks for (equals `episodes` within groups).
        failed: episodes that broke off; they count neither as success nor as failure.
        success: success rate with its 95 % interval.
        score: mean of the entry's `score` key times 100, with its 95 % interval; None without such a key.
        mean_return: mean undiscounted return, with its 95 % interval.
        steps: mean number of actions.
        invalid: share of actions that the world refused.
        truncated: share of episodes that ran into a limit.
        seconds: mean wall time of an episode.
        normalised: (success - random) / (expert - random): 0 is chance, 1 the solver; None where undefined.
    """

    entry: str
    group: str | None
    agent: str
    episodes: int
    expected: int
    failed: int
    success: Interval
    score: Interval | None
    mean_return: Interval
    steps: float
    invalid: float
    truncated: float
    seconds: float
    normalised: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Two players on one entry, paired by task."""

    entry: str
    a: str
    b: str
    result: Paired


@dataclass(frozen=True)
class Summary:
    """What a run, or several runs of one suite, came to.

    Attributes:
        errors: reasons for which episodes broke off, with their counts.
        notes: what a reader must know beside the numbers: tokens and cost, players that use success labels.
        episodes, expected: whole episodes, and those that the suite asks for.
    """

    suite: str
    description: str
    agents: list[str]
    lines: list[Line]
    comparisons: list[Comparison]
    errors: dict[str, int]
    notes: list[str]
    episodes: int
    expected: int
    versions: dict[str, str]

    @property
    def complete(self) -> bool:
        """Whether every episode that the suite asks for was played to its end."""
        return self.episodes == self.expected


def load_run(folder: Path) -> tuple[Suite, list[str], dict[Key, Result], dict[str, Any]]:
    """Suite, players and results of a run's folder.

    Raises:
        DataError: the folder holds no run.
    """
    manifest = read_manifest(folder)
    suite = parse_suite(json.dumps(manifest["suite"]), str(folder / "run.json"))
    return suite, list(manifest["agents"]), latest(folder), manifest


def summarise(
    suite: Suite, agents: Sequence[str], results: Mapping[Key, Result], manifest: Mapping[str, Any]
) -> Summary:
    """Compute the summary of a run.

    Args:
        suite: what was asked.
        agents: the players, in the order of the tables.
        results: the latest result of every play.
        manifest: `run.json`; its `expected` says how many episodes each entry has for one player.
    """
    by_cell: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results.values():
        by_cell[result.key.entry, result.key.agent].append(result)
    expected: Mapping[str, int] = manifest.get("expected", {})
    lines: list[Line] = []
    comparisons: list[Comparison] = []
    for entry in suite.entries:
        cells = {agent: by_cell.get((entry.name, agent), []) for agent in agents}
        if not any(cells.values()) and not expected.get(entry.name):
            continue  # skipped for lack of data
        lines += _entry_lines(entry, cells, expected.get(entry.name))
        comparisons += _comparisons(entry, cells)
    errors: dict[str, int] = defaultdict(int)
    for result in results.values():
        if result.error is not None:
            errors[result.error] += 1
    return Summary(
        suite=suite.name,
        description=suite.description,
        agents=list(agents),
        lines=lines,
        comparisons=comparisons,
        errors=dict(errors),
        notes=_notes(agents, results.values(), manifest),
        episodes=sum(result.error is None for result in results.values()),
        expected=sum(expected.values()) * len(agents),
        versions=dict(manifest.get("versions", {})),
    )


def _notes(agents: Sequence[str], results: Iterable[Result], manifest: Mapping[str, Any]) -> list[str]:
    prompt, sampled, cost = (defaultdict[str, float](float) for _ in range(3))
    for result in results:
        prompt[result.key.agent] += result.details.get("prompt_tokens", 0)
        sampled[result.key.agent] += result.details.get("completion_tokens", 0)
        cost[result.key.agent] += result.details.get("cost", 0.0)
    notes = []
    for agent in agents:
        if sampled[agent]:
            dollars = f", ${cost[agent]:.2f}" if cost[agent] else ""
            notes.append(f"{agent}: {prompt[agent]:,.0f} prompt and {sampled[agent]:,.0f} sampled tokens{dollars}")
    for agent in manifest.get("uses_success_labels", ()):
        notes.append(f"{agent} is told by the world whether it succeeded, and tries again if it did not")
    return notes


def _entry_lines(entry: Entry, cells: Mapping[str, list[Result]], expected: int | None) -> list[Line]:
    groups: list[str | None] = [None]
    if entry.group_by is not None:
        found = {_group(entry, result) for results in cells.values() for result in results}
        named = found - {None}
        groups += [g for g in entry.groups if g in named] + sorted(named - set(entry.groups), key=str)
    lines = []
    for group in groups:
        row = [
            _line(
                entry, group, agent, [r for r in results if group is None or _group(entry, r) == group], expected
            )
            for agent, results in cells.items()
        ]
        lines += _normalise(row)
    return lines


def _group(entry: Entry, result: Result) -> str | None:
    value = result.details.get(entry.group_by) if entry.group_by is not None else None
    return None if value is None else str(value)


def _line(entry: Entry, group: str | None, agent: str, results: Iterable[Result], expected: int | None) -> Line:
    whole, failed = [], 0
    for result in results:
        if result.error is None:
            whole.append(result)
        else:
            failed += 1
    tasks = _by_task(whole).values()
    score = None
    if entry.score is not None:
        score = mean([fmean(100.0 * float(r.details.get(entry.score) or 0.0) for r in task) for task in tasks])
    steps = sum(r.steps for r in whole)
    return Line(
        entry=entry.name,
        group=group,
        agent=agent,
        episodes=len(whole),
        expected=len(whole) if group is not None or expected is None else expected,
        failed=failed,
        success=rate([[r.success for r in task] for task in tasks]),
        score=score,
        mean_return=mean([fmean(r.total_reward for r in task) for task in tasks]),
        steps=steps / len(whole) if whole else math.nan,
        invalid=sum(r.invalid for r in whole) / steps if steps else 0.0,
        truncated=fmean(r.truncated for r in whole) if whole else math.nan,
        seconds=fmean(r.seconds for r in whole) if whole else math.nan,
    )


def _by_task(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The results of each task: repeats are not independent, so means are taken over tasks."""
    found: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        found[result.key.task].append(result)
    return found


def _normalise(row: list[Line]) -> list[Line]:
    rates = {line.agent: line.success.value for line in row if line.episodes}
    low, high = rates.get(RANDOM, math.nan), rates.get(EXPERT, math.nan)
    if not high > low:  # also when either is missing
        return row
    return [
        Line(**{**vars(line), "normalised": (line.success.value - low) / (high - low)}) if line.episodes else line
        for line in row
    ]


def _comparisons(entry: Entry, cells: Mapping[str, list[Result]]) -> list[Comparison]:
    """Every later player against every earlier one, on the tasks that both finished."""
    agents = list(cells)
    outcomes = {agent: _by_task([r for r in results if r.error is None]) for agent, results in cells.items()}
    found = []
    for j, b in enumerate(agents):
        for a in agents[j + 1 :]:
            shared = sorted(outcomes[a].keys() & outcomes[b].keys())
            if shared:
                result = paired(
                    [[r.success for r in outcomes[a][task]] for task in shared],
                    [[r.success for r in outcomes[b][task]] for task in shared],
                )
                found.append(Comparison(entry.name, a, b, result))
    return found


def write_summary(folder: Path, summary: Summary) -> None:
    """Write `summary.json`: the summary as plain data, NaN and infinities as null."""
    write_atomic(folder / "summary.json", json.dumps(_plain(asdict(summary)), indent=2, ensure_ascii=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
