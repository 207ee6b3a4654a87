"""Figure of an experiment: paired differences of all arms with their intervals, one panel per family of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .table import Cell

_PANEL, _GAP, _LABELS, _ROW, _TOP, _BOTTOM = 180, 36, 150, 17, 34, 34
_COLUMNS = 3
_STYLE = """
text { font: 11px system-ui, sans-serif; fill: #333; }
.title { font-weight: 600; }
.axis { stroke: #999; stroke-width: 1; }
.page { fill: #fff; }
.band { fill: #f6f6f6; }
.up { stroke: #1a7f37; fill: #1a7f37; }
.down { stroke: #c62828; fill: #c62828; }
.none { stroke: #888; fill: #888; }
line { stroke-width: 2; }
"""


def draw_figure(cells: Sequence[Cell]) -> str:
    """Return an SVG image of the differences in `cells`; arms without a difference are left out."""
    shown = [cell for cell in cells if cell.difference is not None]
    arms = list(dict.fromkeys(cell.arm for cell in shown))
    tasks = list(dict.fromkeys(cell.task for cell in shown))
    strip = _TOP + _ROW * len(arms) + _BOTTOM
    width = _LABELS + min(_COLUMNS, len(tasks)) * (_PANEL + _GAP)
    height = strip * -(-len(tasks) // _COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img">',
        "<title>Differences of the area under the curve to the baseline, with 95 % intervals</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
    ]
    for top in range(0, height, strip):
        for row, arm in enumerate(arms):
            y = top + _TOP + _ROW * row
            if row % 2 == 0:
                parts.append(f'<rect class="band" x="0" y="{y}" width="{width}" height="{_ROW}"/>')
            parts.append(f'<text x="{_LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(arm)}</text>')
    for number, task in enumerate(tasks):
        own = [cell for cell in shown if cell.task == task]
        left = _LABELS + number % _COLUMNS * (_PANEL + _GAP) + _GAP // 2
        parts += _draw_panel(task, own, arms, left, number // _COLUMNS * strip)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_panel(task: str, cells: Sequence[Cell], arms: Sequence[str], left: float, top: float) -> list[str]:
    """Return the elements of one family's panel, on a scale of its own."""
    values = [cell.difference.value for cell in cells if cell.difference is not None]
    low, high = min(0.0, *values), max(0.0, *values)
    margin = 0.08 * (high - low) or 0.01
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return left + _PANEL * (min(max(value, low), high) - low) / (high - low)

    zero, bottom = place(0.0), top + _TOP + _ROW * len(arms) + 6
    parts = [
        f'<text class="title" x="{left + _PANEL / 2}" y="{top + 16}" text-anchor="middle">{escape(task)}</text>',
        f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="{top + _TOP - 6}" y2="{bottom}"/>',
        f'<text x="{zero:.1f}" y="{bottom + 12}" text-anchor="middle">0</text>',
    ]
    for extreme in sorted({min(values), max(values)}):
        if abs(place(extreme) - zero) > 24:
            x = place(extreme)
            parts.append(f'<text x="{x:.1f}" y="{bottom + 12}" text-anchor="middle">{extreme:+.2f}</text>')
    for cell in cells:
        assert cell.difference is not None
        y = top + _TOP + _ROW * arms.index(cell.arm) + _ROW / 2
        kind = "none" if not cell.is_visible else "up" if cell.difference.value > 0 else "down"
        value, start, end = (place(bound) for bound in cell.difference)
        parts.append(f'<line class="{kind}" x1="{start:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{kind}" cx="{value:.1f}" cy="{y}" r="3"/>')
    return parts
