"""Summary of stored episodes: one `Line` of statistics per suite entry and agent, and paired comparisons."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ..envs.files import write_atomic
from .decisions import DecisionLine
from .manifest import MANIFEST_FILE, read_manifest
from .paper_results import FilledTable, fill_tables
from .provenance import count_words
from .repeats import Repeats, summarize_repeats
from .run_index import open_index
from .statistics import Interval, Paired, mean, paired, rate
from .store import EpisodeKey, Result, amount
from .suite import Entry, Suite, read_suite

RANDOM, EXPERT = "random", "expert"


@dataclass(frozen=True)
class Line:
    """Results of one agent on one entry, or on one group of its tasks.

    Attributes:
        entry: Name of the suite entry.
        group: Value of the entry's `group_by` key; None for all tasks together.
        agent: Name of the agent.
        episodes: Number of complete episodes.
        expected: Number of episodes that the suite asks for (equals `episodes` within groups).
        failed: Number of episodes that broke off with an error; the statistics exclude them.
        success: Success rate with its 95 % interval.
        score: Mean of the entry's `score` key times 100, with its 95 % interval; None without such a key.
        mean_return: Mean undiscounted return, with its 95 % interval.
        steps: Mean number of actions per episode.
        invalid: Fraction of actions that the environment refused.
        truncated: Fraction of episodes that a limit ended.
        seconds: Mean wall time of an episode.
        tokens: Mean number of tokens that an episode sampled, those of a search included; None without a model.
        simulated_steps: Mean number of actions per episode that a search executed in branches, in addition to
            `steps`; None without a search.
        normalized: (success - random) / (expert - random): 0 for the random agent, 1 for the expert; None without
            both of them, or if the expert is not better than the random agent.
        repeats: pass@k, pass^k and the share of tasks that flip between repeats; None with one episode per task.
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
    tokens: float | None = None
    simulated_steps: float | None = None
    normalized: float | None = None
    repeats: Repeats | None = None


@dataclass(frozen=True)
class Comparison:
    """Comparison of agents `a` and `b` on one entry, paired by task."""

    entry: str
    a: str
    b: str
    result: Paired


@dataclass(frozen=True)
class Summary:
    """Summary of a run, or of several runs of one suite.

    Attributes:
        suite: Name of the suite.
        description: Description of the suite.
        agents: Names of the agents, in the order of the tables.
        lines: Results, by entry, group and agent.
        comparisons: Paired comparisons, by entry and pair of agents.
        errors: Number of episodes that broke off, by reason.
        problems: One sentence for each stored line that is left out.
        notes: Remarks on agents: tokens and cost, use of success labels.
        episodes: Number of complete episodes.
        expected: Number of episodes that the suite asks for.
        versions: Versions of Arboretum, Python and libraries, by name.
        decisions: Quality of the decisions, by entry and agent; empty before they are labelled.
        tables: Results in the layout of the papers, if the suite defines tables.
        unlabelled: One sentence for each run of whose episodes some have no labels.
    """

    suite: str
    description: str
    agents: list[str]
    lines: list[Line]
    comparisons: list[Comparison]
    errors: dict[str, int]
    problems: list[str]
    notes: list[str]
    episodes: int
    expected: int
    versions: dict[str, str]
    decisions: list[DecisionLine] = field(default_factory=list)
    tables: list[FilledTable] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True if every episode that the suite asks for is complete."""
        return self.episodes == self.expected


class StoredRun(NamedTuple):
    """Content of a run's folder.

    Attributes:
        suite: The suite of the run.
        agents: Names of the agents.
        results: Latest result of every episode.
        manifest: Content of `run.json`.
        problems: One sentence for each line of `episodes.jsonl` that is left out.
    """

    suite: Suite
    agents: list[str]
    results: dict[EpisodeKey, Result]
    manifest: dict[str, Any]
    problems: list[str]


def load_run(folder: Path) -> StoredRun:
    """Load a run from its folder, without lines that are damaged or belong to no episode of the run.

    Raises:
        DataError: The folder holds no run.
    """
    manifest = read_manifest(folder)
    suite = read_suite(manifest["suite"], str(folder / MANIFEST_FILE))
    agents = list(manifest["agents"])
    with open_index(folder) as index:
        return StoredRun(suite, agents, index.results(), manifest, index.problems())


def summarize(
    suite: Suite,
    agents: Sequence[str],
    results: Mapping[EpisodeKey, Result],
    manifest: Mapping[str, Any],
    problems: Sequence[str] = (),
) -> Summary:
    """Compute the summary of a run.

    Args:
        suite: Suite of the run.
        agents: Names of the agents. In the tables, those that are not references come first.
        results: Latest result of every episode.
        manifest: Content of `run.json`; its `expected` is the number of episodes per agent, by entry.
        problems: One sentence for each stored line that is left out.
    """
    agents = sorted(agents, key=_is_reference)
    by_cell: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results.values():
        by_cell[result.key.entry, result.key.agent].append(result)
    expected: Mapping[str, int] = manifest.get("expected", {})
    lines: list[Line] = []
    comparisons: list[Comparison] = []
    for entry in suite.entries:
        cells = {agent: by_cell.get((entry.name, agent), []) for agent in agents}
        if not any(cells.values()) and not expected.get(entry.name):
            continue  # The entry has no episodes: nothing was played, and none is expected.
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
        problems=list(problems),
        notes=_notes(agents, results.values(), manifest),
        episodes=sum(result.error is None for result in results.values()),
        expected=sum(expected.values()) * len(agents),
        versions=dict(manifest.get("versions", {})),
        tables=fill_tables(
            suite.tables, lines, agents, {entry.name: entry.repeats for entry in suite.entries}, manifest
        ),
    )


def _notes(agents: Sequence[str], results: Iterable[Result], manifest: Mapping[str, Any]) -> list[str]:
    prompt, sampled, cost = (defaultdict[str, float](float) for _ in range(3))
    for result in results:
        prompt[result.key.agent] += amount(result.details, "prompt_tokens")
        sampled[result.key.agent] += amount(result.details, "completion_tokens")
        cost[result.key.agent] += amount(result.details, "cost")
    notes = []
    for agent in agents:
        if sampled[agent]:
            dollars = f", ${cost[agent]:.2f}" if cost[agent] else ""
            notes.append(f"{agent}: {prompt[agent]:,.0f} prompt and {sampled[agent]:,.0f} sampled tokens{dollars}")
    for agent, budgets in manifest.get("budgets", {}).items():
        notes += _budget_notes(agent, budgets)
    facts = manifest.get("entries", {}).values()
    missing = list(dict.fromkeys(file for one in facts for file in one.get("missing", ())))
    if missing:
        notes.append(f"the data folder lacks {', '.join(missing)}; entries that need them played other tasks")
    searching = manifest.get("uses_simulator", ())
    for agent in manifest.get("uses_success_labels", ()):
        if agent not in searching:
            notes.append(f"{agent} uses the success label of each episode and retries failed tasks")
    for agent in searching:
        notes.append(
            f"{agent} searches with the environment as a simulator: it plays branches of an episode and sees their"
            " rewards before it chooses; compare it at its cost, the tokens and steps per episode"
        )
    return notes


def _budget_notes(agent: str, budgets: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for each budget of an agent that the random agent and the expert do not have."""
    entries: dict[str, list[str]] = defaultdict(list)
    for entry, limits in budgets.items():
        words = [count_words(limit, name) for name, limit in limits.items()]
        entries[" and ".join(words)].append(entry)
    return [
        f"{agent} has at most {limits} per episode in {', '.join(names)}; the random agent and the expert have"
        " only the environment's step limit"
        for limits, names in entries.items()
    ]


def _entry_lines(entry: Entry, cells: Mapping[str, list[Result]], expected: int | None) -> list[Line]:
    groups: list[str | None] = [None]
    if entry.group_by is not None:
        found = {_group_of(entry, result) for results in cells.values() for result in results}
        named = found - {None}
        groups += [g for g in entry.groups if g in named] + sorted(named - set(entry.groups), key=str)
    lines = []
    for group in groups:
        row = []
        for agent, results in cells.items():
            selected = [r for r in results if group is None or _group_of(entry, r) == group]
            row.append(_summarize_line(entry, group, agent, selected, expected))
        lines += _add_normalized(row)
    return lines


def _group_of(entry: Entry, result: Result) -> str | None:
    value = result.details.get(entry.group_by) if entry.group_by is not None else None
    return None if value is None else str(value)


def _summarize_line(
    entry: Entry, group: str | None, agent: str, results: Iterable[Result], expected: int | None
) -> Line:
    complete, failed = [], 0
    for result in results:
        if result.error is None:
            complete.append(result)
        else:
            failed += 1
    tasks = _by_task(complete).values()
    outcomes = [[r.success for r in task] for task in tasks]
    score = None
    if entry.score is not None:
        score = mean([fmean(100.0 * float(r.details.get(entry.score) or 0.0) for r in task) for task in tasks])
    steps = sum(r.steps for r in complete)
    return Line(
        entry=entry.name,
        group=group,
        agent=agent,
        episodes=len(complete),
        expected=len(complete) if group is not None or expected is None else expected,
        failed=failed,
        success=rate(outcomes),
        score=score,
        mean_return=mean([fmean(r.total_reward for r in task) for task in tasks]),
        steps=steps / len(complete) if complete else math.nan,
        invalid=sum(r.invalid for r in complete) / steps if steps else 0.0,
        truncated=fmean(r.truncated for r in complete) if complete else math.nan,
        seconds=fmean(r.seconds for r in complete) if complete else math.nan,
        tokens=_mean_amount(complete, "completion_tokens"),
        simulated_steps=_mean_amount(complete, "simulated_steps"),
        repeats=summarize_repeats(outcomes),
    )


def _mean_amount(results: Sequence[Result], key: str) -> float | None:
    """Return the mean of an amount in the details; None if no episode has it."""
    if not any(key in result.details for result in results):
        return None
    return fmean(amount(result.details, key) for result in results)


def _by_task(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Group results by task. Repeats of a task are not independent, so statistics are computed over tasks."""
    found: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        found[result.key.task].append(result)
    return found


def _add_normalized(row: list[Line]) -> list[Line]:
    """Return the lines of all agents on one entry or group with `normalized` set where it is defined."""
    rates = {line.agent: line.success.value for line in row if line.episodes}
    low, high = rates.get(RANDOM, math.nan), rates.get(EXPERT, math.nan)
    if not high > low:  # Also if either is missing (NaN).
        return row
    return [
        dataclasses.replace(line, normalized=(line.success.value - low) / (high - low)) if line.episodes else line
        for line in row
    ]


def _is_reference(agent: str) -> bool:
    return agent in (RANDOM, EXPERT)


def _comparisons(entry: Entry, cells: Mapping[str, list[Result]]) -> list[Comparison]:
    """Compare every agent with the references and with earlier agents, on the tasks that both completed."""
    # The first of a pair is never a reference, unless both are.
    agents = sorted(cells, key=lambda agent: not _is_reference(agent))
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
    return sorted(found, key=lambda comparison: _is_reference(comparison.a))


def write_summary(folder: Path, summary: Summary) -> None:
    """Write `summary.json`: the summary as plain data, with null for NaN and infinite values."""
    write_atomic(folder / "summary.json", encode_results(summary))


def encode_results(results: Any) -> bytes:
    """Return a dataclass of results as JSON: null for NaN and infinite values, escapes for lone surrogates."""
    text = json.dumps(_to_plain(dataclasses.asdict(results)), indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")  # The escape of a surrogate is JSON's, too.


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return _to_plain(value._asdict())
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
