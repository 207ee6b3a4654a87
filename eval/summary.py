"""Summary of stored episodes: one `Line` of statistics per suite entry and agent, and paired comparisons."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..envs.files import write_atomic
from .decisions import DecisionLine
from .manifest import MANIFEST_FILE, SUMMARY_FILE, read_manifest
from .paper_results import FilledTable, fill_tables
from .provenance import count_words, edited_code, played_versions
from .run_index import RunIndex, open_index
from .statistics import Interval, Paired, tallied_pairs, tallied_rate
from .statistics.repeats import Repeats, tallied_repeats
from .store import EpisodeKey, Result
from .suite import Entry, Suite, read_suite
from .tally import CellTally, EntryTally, ReadCell, RunTally, read_from

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
        notes: Remarks: tokens and cost of agents, their use of success labels, keys that no episode has.
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


@dataclass(frozen=True)
class OpenRun:
    """A run whose results are read as they are needed; context of its open index.

    Attributes:
        suite: The suite of the run.
        agents: Names of the agents.
        manifest: Content of `run.json`.
        index: Index of the run.
    """

    suite: Suite
    agents: list[str]
    manifest: dict[str, Any]
    index: RunIndex

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.index.close()


def open_run(folder: Path) -> OpenRun:
    """Open a run.

    Raises:
        DataError: The folder holds no run.
    """
    manifest = read_manifest(folder)
    suite = read_suite(manifest["suite"], str(folder / MANIFEST_FILE))
    return OpenRun(suite, list(manifest["agents"]), manifest, open_index(folder))


def load_run(folder: Path) -> StoredRun:
    """Load a run from its folder, without lines that are damaged or belong to no episode of the run.

    Its memory grows with the number of episodes; `open_run` reads them as they are needed.

    Raises:
        DataError: The folder holds no run.
    """
    with open_run(folder) as run:
        return StoredRun(run.suite, run.agents, run.index.results(), run.manifest, run.index.problems())


def summarize(
    suite: Suite,
    agents: Sequence[str],
    results: Mapping[EpisodeKey, Result] | ReadCell,
    manifest: Mapping[str, Any],
    problems: Sequence[str] = (),
) -> Summary:
    """Compute the summary of a run. It reads each result once, and holds few at a time.

    Args:
        suite: Suite of the run.
        agents: Names of the agents. In the tables, those that are not references come first.
        results: Latest result of every episode; or a function that reads those of an agent and entry.
        manifest: Content of `run.json`; its `expected` is the number of episodes per agent, by entry.
        problems: One sentence for each stored line that is left out.
    """
    agents = sorted(agents, key=_is_reference)
    tally = RunTally(agents, read_from(results) if isinstance(results, Mapping) else results)
    expected: Mapping[str, int] = manifest.get("expected", {})
    lines: list[Line] = []
    comparisons: list[Comparison] = []
    missing_keys: list[str] = []
    for entry in suite.entries:
        tallied = tally.tally_entry(entry)
        if not tallied.cells and not expected.get(entry.name):
            continue  # The entry has no episodes: nothing was played, and none is expected.
        lines += _entry_lines(entry, agents, tallied, expected.get(entry.name))
        comparisons += _comparisons(entry, agents, tallied)
        missing_keys += tallied.problems
    return Summary(
        suite=suite.name,
        description=suite.description,
        agents=list(agents),
        lines=lines,
        comparisons=comparisons,
        errors=tally.errors,
        problems=list(problems),
        notes=[*_notes(agents, tally.amounts, manifest), *map(_refused_note, tally.refused), *missing_keys],
        episodes=sum(line.episodes for line in lines if line.group is None),
        expected=sum(expected.values()) * len(agents),
        versions=played_versions(manifest),
        tables=fill_tables(
            suite.tables, lines, agents, {entry.name: entry.repeats for entry in suite.entries}, manifest
        ),
    )


def _notes(
    agents: Sequence[str], amounts: Mapping[tuple[str, str], float], manifest: Mapping[str, Any]
) -> list[str]:
    notes = []
    for agent in agents:
        prompt, sampled, cost = (
            amounts.get((agent, key), 0.0) for key in ("prompt_tokens", "completion_tokens", "cost")
        )
        if sampled:
            dollars = f", ${cost:.2f}" if cost else ""
            notes.append(f"{agent}: {prompt:,.0f} prompt and {sampled:,.0f} sampled tokens{dollars}")
    for agent, budgets in manifest.get("budgets", {}).items():
        notes += _budget_notes(agent, budgets)
    facts = manifest.get("entries", {}).values()
    missing = list(dict.fromkeys(file for one in facts for file in one.get("missing", ())))
    if missing:
        notes.append(
            f"ARBORETUM_DATA names no folder with {', '.join(missing)}, so entries that need them played other"
            " tasks; `arboretum data list` shows the commands that get the data"
        )
    notes += [
        f"the code of {name} was edited between the calls that played this run, so that its episodes are of"
        " several versions; play it in another --out to have one"
        for name in edited_code(manifest)
    ]
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


def _refused_note(refused: tuple[str, int, str]) -> str:
    agent, count, reason = refused
    episodes = count_words(count, "episodes")
    return f"{agent}: {episodes} ended because the model did not take a prompt, such as: {reason}"


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


def _entry_lines(entry: Entry, agents: Sequence[str], tallied: EntryTally, expected: int | None) -> list[Line]:
    lines = []
    has_score = entry.score is not None and tallied.has_score
    for group in (None, *tallied.groups):
        row = [
            _make_line(entry, group, agent, tallied.cell(group, agent), has_score, expected) for agent in agents
        ]
        lines += _add_normalized(row)
    return lines


def _make_line(
    entry: Entry, group: str | None, agent: str, cell: CellTally, has_score: bool, expected: int | None
) -> Line:
    n = cell.episodes

    def mean_amount(key: str) -> float | None:
        return cell.amounts[key] / n if key in cell.amounts else None

    return Line(
        entry=entry.name,
        group=group,
        agent=agent,
        episodes=n,
        expected=n if group is not None or expected is None else expected,
        failed=cell.failed,
        success=tallied_rate(cell.tasks),
        score=cell.score() if has_score else None,
        mean_return=cell.returns.interval(),
        steps=cell.steps / n if n else math.nan,
        invalid=cell.invalid / cell.steps if cell.steps else 0.0,
        truncated=cell.truncated / n if n else math.nan,
        seconds=cell.seconds.mean(),
        tokens=mean_amount("completion_tokens"),
        simulated_steps=mean_amount("simulated_steps"),
        repeats=tallied_repeats(cell.tasks),
    )


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


def _comparisons(entry: Entry, agents: Sequence[str], tallied: EntryTally) -> list[Comparison]:
    """Compare every agent with the references and with earlier agents, on the tasks that both completed."""
    # The first of a pair is never a reference, unless both are.
    agents = sorted(agents, key=lambda agent: not _is_reference(agent))
    found = []
    for j, b in enumerate(agents):
        for a in agents[j + 1 :]:
            shared = tallied.pair(a, b)
            if shared:
                found.append(Comparison(entry.name, a, b, tallied_pairs(shared)))
    return sorted(found, key=lambda comparison: _is_reference(comparison.a))


def write_summary(folder: Path, summary: Summary) -> None:
    """Write `summary.json`: the summary as plain data, with null for NaN and infinite values."""
    write_atomic(folder / SUMMARY_FILE, encode_results(summary))


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
