"""`report.html`: results table, plot of success rates and episode viewer in one file that needs no network.

Text of environments and agents is untrusted. Jinja escapes all markup, and the viewer inserts episodes, which are
embedded as compressed JSON, only through `textContent`.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, select_autoescape

from ..envs.errors import DataError
from ..envs.files import write_atomic
from .statistics import Interval
from .store import Result, read_episode
from .summary import Line, Summary

EPISODES_PER_CELL = 256
"""Maximum number of episodes per agent and entry that the page embeds; `episodes.jsonl` holds all of them."""


def write_report(path: Path, summary: Summary, runs: Sequence[tuple[Path, Sequence[Result]]]) -> None:
    """Write the report of an evaluation.

    Args:
        path: HTML file.
        summary: Summary of the runs.
        runs: Folder of each run, with the results whose episodes the report shows.
    """
    template = make_templates().get_template("report.html")
    page = template.render(
        summary=summary,
        rows=_group_lines(summary),
        plot=_plot(summary),
        comparisons=[c for c in summary.comparisons if c.result.n],
        cells=_pack_cells(runs, summary.problems),
        has_score=any(line.score is not None for line in summary.lines),
    )
    write_atomic(path, page)


def make_templates(*loaders: BaseLoader) -> Environment:
    """Return the Jinja environment of report pages, with the shared style sheet, episode viewer and filters.

    Args:
        loaders: Loaders of further templates, which take precedence.
    """
    templates = Environment(
        loader=ChoiceLoader([*loaders, PackageLoader(__package__, "templates")]),
        autoescape=select_autoescape(default=True, default_for_string=True),
    )
    templates.filters.update(percent=percent, interval=interval, number=number, p_value=p_value)
    return templates


def percent(value: float) -> str:
    """Format a rate as a percentage with one decimal; NaN as a dash."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def interval(value: Interval) -> str:
    """Format the bounds of a rate's interval as percentages; NaN as an empty string."""
    return "" if math.isnan(value.value) else f"{100 * value.low:.1f}–{100 * value.high:.1f}"


def number(value: float | None, digits: int = 2) -> str:
    """Format a number with fixed decimals; None, NaN and infinities as a dash."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def p_value(value: float) -> str:
    """Format a p-value with three decimals, or as "< 0.001"."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _group_lines(summary: Summary) -> list[list[Line]]:
    """Group the lines of the results table by entry and group."""
    rows: dict[tuple[str, str | None], list[Line]] = {}
    for line in summary.lines:
        rows.setdefault((line.entry, line.group), []).append(line)
    return list(rows.values())


def _plot(summary: Summary) -> dict[str, Any]:
    """Return the geometry of the plot: one band per entry, one dot with whiskers per agent, from 0 to 100 %."""
    left, width, step, gap = 120, 340, 16, 12
    bands, marks = [], []
    y = 10
    for row in _group_lines(summary):
        if row[0].group is not None:
            continue
        top = y
        for line in row:
            if line.episodes:
                marks.append(
                    {
                        "y": y + step / 2,
                        "x": left + width * line.success.value,
                        "low": left + width * line.success.low,
                        "high": left + width * line.success.high,
                        "series": summary.agents.index(line.agent) % 8,
                        "title": f"{line.agent} on {line.entry}: {percent(line.success.value)} %"
                        f" ({interval(line.success)}), n = {line.episodes}",
                    }
                )
                y += step
        bands.append({"name": row[0].entry, "top": top, "height": y - top})
        y += gap
    ticks = [{"x": left + width * t / 100, "label": f"{t}"} for t in (0, 25, 50, 75, 100)]
    return {"bands": bands, "marks": marks, "ticks": ticks, "left": left, "right": left + width, "height": y}


def _pack_cells(runs: Sequence[tuple[Path, Sequence[Result]]], problems: list[str]) -> list[dict[str, Any]]:
    """Return one cell of viewer data per entry and agent; damaged episodes are added to `problems`."""
    found: dict[tuple[str, str], list[tuple[Path, Result]]] = defaultdict(list)
    for folder, results in runs:
        for result in results:
            found[result.key.entry, result.key.agent].append((folder, result))
    cells = []
    for (entry, agent), stored in found.items():
        shown = []
        for folder, result in stored[:EPISODES_PER_CELL]:
            try:
                shown.append({"repeat": result.key.repeat, **read_episode(folder, result).to_dict()})
            except DataError as error:
                problems.append(f"{error} Its result counts, but it is not shown.")
        cells.append(pack_cell(entry, agent, shown, len(stored)))
    return cells


def pack_cell(entry: str, agent: str, episodes: Sequence[dict[str, Any]], total: int) -> dict[str, Any]:
    """Return a cell of the episode viewer: gzipped, base64-encoded JSON, which the page unpacks on demand.

    Args:
        entry: Label of the viewer's first selection.
        agent: Label of the viewer's second selection.
        episodes: Episodes as plain data.
        total: Number of episodes, including those that the page does not embed.
    """
    text = json.dumps(
        [_without_token_data(episode) for episode in episodes], ensure_ascii=False, separators=(",", ":")
    )
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode()
    return {"entry": entry, "agent": agent, "total": total, "shown": len(episodes), "data": packed}


def _without_token_data(episode: dict[str, Any]) -> dict[str, Any]:
    """Remove token ids, log-probabilities and loss masks, which the viewer does not show, from an episode."""
    hidden = ("token_ids", "logprobs", "loss_mask")
    episode["turns"] = [{k: v for k, v in turn.items() if k not in hidden} for turn in episode["turns"]]
    return episode
