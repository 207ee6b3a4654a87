"""`report.html`: one file, no network, readable on a phone; the table, a plot, and every episode step by step.

All text of worlds and players is data: the page's markup is escaped by Jinja, and episodes travel as compressed
JSON that the page shows through `textContent` only.
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

from ..envs.files import write_atomic
from .statistics import Interval
from .store import Result, read_episode
from .summary import Line, Summary

EPISODES_PER_CELL = 256
"""At most this many episodes of one player on one entry are put into the page; the rest stay in the run."""


def write_report(path: Path, summary: Summary, runs: Sequence[tuple[Path, Sequence[Result]]]) -> None:
    """Write the report.

    Args:
        path: the HTML file.
        summary: the numbers.
        runs: folders of runs, each with the results whose episodes are to be shown.
    """
    page = (
        pages()
        .get_template("report.html")
        .render(
            summary=summary,
            rows=_rows(summary),
            plot=_plot(summary),
            comparisons=[c for c in summary.comparisons if c.result.n],
            cells=_cells(runs),
            has_score=any(line.score is not None for line in summary.lines),
        )
    )
    write_atomic(path, page)


def pages(*loaders: BaseLoader) -> Environment:
    """Where pages come from; all of them share the style and the viewer of episodes that lie here.

    Args:
        loaders: of further templates.
    """
    environment = Environment(
        loader=ChoiceLoader([*loaders, PackageLoader(__package__, "templates")]),
        autoescape=select_autoescape(default=True, default_for_string=True),
    )
    environment.filters.update(percent=percent, interval=interval, number=number, p_value=p_value)
    return environment


def percent(value: float) -> str:
    """A rate as a percentage with one decimal."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def interval(value: Interval) -> str:
    """The bounds of a rate's interval, as percentages."""
    return "" if math.isnan(value.value) else f"{100 * value.low:.1f}–{100 * value.high:.1f}"


def number(value: float | None, digits: int = 2) -> str:
    """A number with fixed decimals; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def p_value(value: float) -> str:
    """A p-value as papers print it."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _rows(summary: Summary) -> list[list[Line]]:
    """The table's lines, those of one entry (and group) together."""
    rows: dict[tuple[str, str | None], list[Line]] = {}
    for line in summary.lines:
        rows.setdefault((line.entry, line.group), []).append(line)
    return list(rows.values())


def _plot(summary: Summary) -> dict[str, Any]:
    """Geometry of the plot: one band an entry, one dot and whisker a player, success from 0 to 100 %."""
    left, width, step, gap = 120, 340, 16, 12
    bands, marks = [], []
    y = 10
    for row in _rows(summary):
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


def _cells(runs: Sequence[tuple[Path, Sequence[Result]]]) -> list[dict[str, Any]]:
    """Episodes by entry and player, gzipped and base64-encoded; the page unpacks one when it is asked for."""
    found: dict[tuple[str, str], list[tuple[Path, Result]]] = defaultdict(list)
    for folder, results in runs:
        for result in results:
            found[result.key.entry, result.key.agent].append((folder, result))
    cells = []
    for (entry, agent), stored in found.items():
        shown = [
            {"repeat": result.key.repeat, **read_episode(folder, result).to_dict()}
            for folder, result in stored[:EPISODES_PER_CELL]
        ]
        cells.append(cell(entry, agent, shown, len(stored)))
    return cells


def cell(entry: str, agent: str, episodes: Sequence[dict[str, Any]], total: int) -> dict[str, Any]:
    """Episodes as the page's viewer finds them.

    Args:
        entry, agent: what they are found by.
        episodes: as plain data.
        total: how many there are, those that are not in the page included.
    """
    text = json.dumps([_visible(episode) for episode in episodes], ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode()
    return {"entry": entry, "agent": agent, "total": total, "shown": len(episodes), "data": packed}


def _visible(episode: dict[str, Any]) -> dict[str, Any]:
    """The episode without what a reader cannot read: token ids, log-probabilities, masks."""
    hidden = ("token_ids", "logprobs", "loss_mask")
    episode["turns"] = [{k: v for k, v in turn.items() if k not in hidden} for turn in episode["turns"]]
    return episode
