"""`report.html`: results table, plot of success rates and episode viewer in one file that needs no network.

Text of environments and agents is untrusted. Jinja escapes all markup, and the viewer inserts episodes, which are
embedded as compressed JSON, only through `textContent`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from ..envs.errors import DataError
from ..envs.files import write_atomic
from .decisions import REASONS, DecisionLine, Labels
from .decisions.coverage import describe_unknown
from .decisions.file import plain_labels
from .page_data import encode_page, pack
from .paper_text import make_grid
from .provenance import describe_run
from .report_trees import collect_trees
from .reported_run import ReportedRun
from .statistics import Interval
from .statistics.crossed import holm
from .statistics.power import ALPHA
from .store import EpisodeKey, Result, read_episodes
from .suite import Entry, read_suite
from .summary import EXPERT, RANDOM, Comparison, Line, Summary
from .texts import read_texts
from .trees import Place, Tree, pack_trees

CHUNK = 32
"""Number of episodes that the page unpacks at once."""

MAX_BYTES = 3_000_000
"""Size of the episodes that a page embeds, in bytes; a run with more shows a sample of each entry and agent."""

MAX_TREE_BYTES = 1_000_000
"""Size of the trees that a page embeds, in bytes."""

MAX_EPISODES = 5_000
"""Number of episodes that a page embeds at most, however short they are."""


def write_report(path: Path, summary: Summary, runs: Sequence[ReportedRun]) -> None:
    """Write the report of an evaluation.

    Args:
        path: HTML file.
        summary: Summary of the runs.
        runs: The runs.
    """
    template = make_templates().get_template("report.html")
    texts: dict[str, str] = {}
    for run in runs:
        texts |= read_texts(run.folder)
    trees, left_out = pack_trees(_collect_trees(runs), MAX_TREE_BYTES)
    cells = _pack_cells(runs, summary)
    page = template.render(
        summary=summary,
        facts=[(run.folder, describe_run(run.manifest)) for run in runs],
        rows=_group_lines(summary),
        series=_number_series(summary.agents),
        comparisons=_group_comparisons(summary),
        level=ALPHA,
        cells=[cell for cell in cells if cell["chunks"]],
        left_out=[cell for cell in cells if cell["left_out"]],
        texts=pack(texts),
        trees=trees,
        trees_left_out=left_out,
        decisions=_group_decisions(summary),
        unknown=describe_unknown(summary.decisions),
        outcomes=list(REASONS),
        seen_outcomes={name for line in summary.decisions for name in line.outcomes},
        reasons=REASONS,
        partial=any(line.labelled < line.episodes for line in summary.decisions),
        has_cost=any(line.simulated_steps is not None for line in summary.lines),
        has_score=any(line.score is not None for line in summary.lines),
        papers=[make_grid(table) for table in summary.tables],
    )
    write_atomic(path, encode_page(page))


def make_templates(*loaders: BaseLoader) -> Environment:
    """Return the Jinja environment of report pages, with the shared style sheet, episode viewer and filters.

    Args:
        loaders: Loaders of further templates, which take precedence.
    """
    templates = Environment(
        loader=ChoiceLoader([*loaders, PackageLoader(__package__, "templates")]),
        autoescape=select_autoescape(default=True, default_for_string=True),
    )
    for function in (percent, interval, number, p_value, signed, signed_interval):
        templates.filters[function.__name__] = _with_minus_signs(function)
    templates.filters["code"] = mark_code
    return templates


def _with_minus_signs(function: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: function(*args).replace("-", "\N{MINUS SIGN}")


def mark_code(sentence: str) -> Markup:
    """Return a sentence as HTML, with what is between backticks as code."""
    parts = sentence.split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def percent(value: float) -> str:
    """Format a rate as a percentage with one decimal; NaN as a dash."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def interval(value: Interval, scale: float = 100.0) -> str:
    """Format the bounds of an interval times a scale, a rate's as percentages; NaN and ∞ as an empty string."""
    if math.isnan(value.value) or math.isinf(value.high):
        return ""
    return f"{scale * value.low:z.1f} to {scale * value.high:z.1f}"


def number(value: float | None, digits: int = 2) -> str:
    """Format a number with fixed decimals; None, NaN and infinities as a dash."""
    return "–" if value is None or not math.isfinite(value) else f"{value:z.{digits}f}"


def p_value(value: float) -> str:
    """Format a p-value with three decimals, or as "< 0.001"."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def signed(value: float, digits: int = 1) -> str:
    """Format a number with its sign, where a minus sign is not mistaken for a dash; NaN as a dash."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "+∞" if value > 0 else "\N{MINUS SIGN}∞"
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def signed_interval(low: float, high: float, digits: int = 1) -> str:
    """Format the bounds of a difference's interval, such as "−66.8 to −15.4"; NaN as an empty string."""
    return "" if math.isnan(low) else f"{signed(low, digits)} to {signed(high, digits)}"


def _group_lines(summary: Summary) -> list[list[Line]]:
    """Group the lines of the results table by entry and group."""
    rows: dict[tuple[str, str | None], list[Line]] = {}
    for line in summary.lines:
        rows.setdefault((line.entry, line.group), []).append(line)
    return list(rows.values())


def _group_comparisons(summary: Summary) -> list[list[tuple[Comparison, float]]]:
    """Group the comparisons by entry, each with its p-value after Holm's correction for all of them."""
    compared = [one for one in summary.comparisons if one.result.n]
    adjusted = holm([one.result.p_value for one in compared])
    rows: dict[str, list[tuple[Comparison, float]]] = {}
    for comparison, p in zip(compared, adjusted, strict=True):
        rows.setdefault(comparison.entry, []).append((comparison, p))
    return list(rows.values())


def _group_decisions(summary: Summary) -> list[list[DecisionLine]]:
    """Group the lines of the table of decisions by entry."""
    rows: dict[str, list[DecisionLine]] = {}
    for line in summary.decisions:
        rows.setdefault(line.entry, []).append(line)
    return list(rows.values())


def _number_series(agents: Sequence[str]) -> dict[str, int]:
    """Return the number of each agent's color; reference agents have the same ones in every report."""
    others = [agent for agent in agents if agent not in (RANDOM, EXPERT)]
    return {RANDOM: 0, EXPERT: 1} | {agent: 2 + n % 6 for n, agent in enumerate(others)}


def _pack_cells(runs: Sequence[ReportedRun], summary: Summary) -> list[dict[str, Any]]:
    """Return one cell of viewer data per entry and agent, in the order of the tables.

    A cell has further a number `left_out` of episodes that a sample, evenly spaced, leaves out.
    Damaged episodes are left out, and added to the summary's problems.
    """
    found: dict[tuple[str, str], list[tuple[ReportedRun, int]]] = {}
    for run in runs:
        for cell in run.cells:
            found.setdefault((cell.entry, cell.agent), []).append((run, cell.episodes))

    labels: dict[EpisodeKey, Labels] = {}
    for run in runs:
        labels |= run.labels

    def read(folder: Path, results: list[Result]) -> Iterator[tuple[Result, dict[str, Any] | None]]:
        for result, episode in zip(results, read_episodes(folder, results), strict=True):
            if isinstance(episode, DataError):
                summary.problems.append(f"{episode} Its result counts, but it is not shown.")
                yield result, None
            else:
                record = _without_token_data(episode.record)
                if result.key in labels:
                    record["decisions"] = plain_labels(labels[result.key])
                yield result, record

    cells = []
    for entry, agent in dict.fromkeys((line.entry, line.agent) for line in summary.lines):
        stored = found.get((entry, agent), [])
        number = sum(episodes for _, episodes in stored)
        shown = []
        for run, episodes in stored:
            share = episodes / number / len(found)
            results = run.sample(agent, entry, max(CHUNK, int(MAX_EPISODES * share)))
            shown += _within(MAX_BYTES * share, read(run.folder, sorted(results, key=_task_order)))
        heads = [_index_row(result) for result, _ in shown]
        packed = pack_cell(entry, agent, heads, (record for _, record in shown), MAX_BYTES)
        cells.append({**packed, "left_out": max(0, number - len(shown))})
    return cells


def _within(
    max_bytes: float, read: Iterable[tuple[Result, dict[str, Any] | None]]
) -> list[tuple[Result, dict[str, Any] | None]]:
    """Return all records, or evenly spaced ones, that together take at most `max_bytes` on a page."""
    kept: dict[int, tuple[Result, dict[str, Any] | None]] = {}
    sizes: dict[int, int] = {}
    step = 1
    for number, one in enumerate(read):
        if number % step:
            continue
        size = len(pack(one[1]))  # In a chunk of similar ones it takes less.
        if size > max_bytes:
            continue
        kept[number], sizes[number] = one, size
        while sum(sizes.values()) > max_bytes:
            step *= 2
            for other in [other for other in kept if other % step]:
                del kept[other], sizes[other]
    return list(kept.values())


def _collect_trees(runs: Sequence[ReportedRun]) -> Iterator[tuple[Place, Tree]]:
    """Yield the trees of all entries."""
    entries: dict[str, Entry] = {}
    for run in runs:
        for entry in read_suite(run.manifest["suite"], str(run.folder)).entries:
            entries.setdefault(entry.name, entry)
    for entry in entries.values():
        yield from collect_trees(entry, runs)


def _task_order(result: Result) -> tuple[list[tuple[int, str]], int]:
    """Return a key that sorts by task, with the numbers in its name by value, and repeat."""
    parts = re.split(r"([0-9]+)", result.key.task)
    return [(int(part) if part.isdecimal() else 0, part) for part in parts], result.key.repeat


def _index_row(result: Result) -> list[Any]:
    outcome = "error" if result.error is not None else "solved" if result.success else "unsolved"
    key = result.key
    return [outcome, key.task, key.repeat, result.total_reward, result.steps, result.turns]


def pack_cell(
    entry: str,
    agent: str,
    index: Sequence[Sequence[Any]],
    records: Iterable[dict[str, Any] | None],
    max_bytes: int,
) -> dict[str, Any]:
    """Return a cell of the episode viewer: an index, and chunks of `CHUNK` episodes.

    Args:
        entry: Label of the viewer's first selection.
        agent: Label of the viewer's second selection.
        index: Of each episode the outcome ("solved", "unsolved" or "error"), task, repeat, return, steps, turns.
        records: The episodes in the order of the index, as `Episode.to_dict` returns them or as they are stored;
            None for an episode that cannot be shown.
        max_bytes: Maximum size of the chunks. Further episodes are left out.
    """
    chunks: list[str] = []
    size = 0
    source = iter(records)
    while size < max_bytes and (
        chunk := [record and _without_token_data(record) for record in islice(source, CHUNK)]
    ):
        chunks.append(pack(chunk))
        size += len(chunks[-1])
    return {"entry": entry, "agent": agent, "index": pack(index), "chunk": CHUNK, "chunks": chunks}


def _without_token_data(episode: dict[str, Any]) -> dict[str, Any]:
    """Remove token ids, log-probabilities and loss masks, which the viewer does not show, from an episode."""
    hidden = ("token_ids", "logprobs", "loss_mask")
    for trial in (*episode.get("trials", ()), episode):
        trial["turns"] = [{k: v for k, v in turn.items() if k not in hidden} for turn in trial["turns"]]
    return episode
