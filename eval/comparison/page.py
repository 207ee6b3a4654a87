"""The comparison of evaluation runs as one self-contained HTML page, and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ...envs.files import write_atomic
from ..page_data import encode_page
from ..report import make_templates
from ..statistics.power import ALPHA
from ..summary import encode_results
from .analysis import SUCCESS, Difference, RunComparison
from .measures import find_measure
from .table import MEASURE_NOTE, OVERALL, describe

_SPANS = (5, 10, 20, 40, 60, 100)
"""Half-widths of the picture's axis in points; the first that holds all intervals is taken."""


class Section(NamedTuple):
    """Table of the differences in one measure.

    Attributes:
        measure: Name of the measure.
        groups: Differences by pair of agents.
        scale: Factor from values to the table's unit.
        digits: Decimals.
        higher_is_better: True if more is better; None if neither is.
        note: Sentences below the table.
    """

    measure: str
    groups: list[list[Difference]]
    scale: float
    digits: int
    higher_is_better: bool | None
    note: str


def write_page(comparison: RunComparison, path: Path) -> None:
    """Write the comparison as one HTML page that needs no network."""
    sections = [_section(name, rows, comparison) for name, rows in comparison.measures.items()]
    rows = comparison.measures[SUCCESS]
    intervals = [row.result.difference for row in rows]
    widest = max(100 * max(abs(one.low), abs(one.high)) for one in intervals)
    template = make_templates().get_template("evaluation_comparison.html")
    text = template.render(
        comparison=comparison,
        sections=sections,
        overall=OVERALL,
        level=ALPHA,
        span=next((span for span in _SPANS if span >= widest), _SPANS[-1]),
        success=SUCCESS,
        note=MEASURE_NOTE if len(sections) > 1 else "",
    )
    write_atomic(path, encode_page(text))


def write_json(comparison: RunComparison, path: Path) -> None:
    """Write the comparison as JSON: the fields of `RunComparison`, with rates and differences from -1 to 1."""
    write_atomic(path, encode_results(comparison))


def _section(measure: str, rows: list[Difference], comparison: RunComparison) -> Section:
    groups: dict[tuple[str, str], list[Difference]] = {}
    for row in rows:
        groups.setdefault((row.first, row.second), []).append(row)
    note, rows_by_pair = describe(comparison, measure), list(groups.values())
    if measure == SUCCESS:
        return Section(measure, rows_by_pair, 100.0, 1, True, note)
    found = find_measure(measure)
    return Section(measure, rows_by_pair, 1.0, found.digits, found.higher_is_better, note)
