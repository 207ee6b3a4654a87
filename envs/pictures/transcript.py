"""Transcripts of episodes as SVG pictures, for environments whose observations are text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Literal
from xml.sax.saxutils import escape

from ..display import visible

Role = Literal["observation", "action"]

COLUMNS = 92
"""Characters of a line; longer ones are wrapped."""

_ADVANCE, _LINE, _MARGIN = 7.8, 19, 16
"""Width of a character, height of a line and margin in pixels."""
_PROMPT = "> "
_STYLE = """\
    rect { fill: #fbfaf6; stroke: #d5d3c8 }
    text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre }
    .observation { fill: #2c332f }
    .action { fill: #1b5aa6; font-weight: bold }
    @media (prefers-color-scheme: dark) {
      rect { fill: #1c211f; stroke: #3c4540 }
      .observation { fill: #d9ded9 }
      .action { fill: #84b9f2 }
    }
"""


def transcript_svg(parts: Sequence[tuple[Role, str]], max_lines: int = 40) -> str:
    """Return the SVG picture of a transcript, which has its own background, dark where the reader prefers that.

    Every line states its length, so that the layout is the same in every monospaced font.

    Args:
        parts: Role and text of each part, an observation last; actions are shown after a prompt.
        max_lines: Lines of the longest observation; what follows is replaced by an ellipsis.
    """
    lines = [line for role, text in parts for line in _lines(role, text, max_lines)][:-1]
    width = round(COLUMNS * _ADVANCE) + 2 * _MARGIN
    height = len(lines) * _LINE + 2 * _MARGIN - 6
    rows = []
    for number, (role, line) in enumerate(lines):
        if line:
            y = _MARGIN + 11 + number * _LINE
            place = f'x="{_MARGIN}" y="{y}" textLength="{len(line) * _ADVANCE:.1f}"'
            rows.append(f'  <text class="{role}" {place}>{escape(line)}</text>\n')
    size = f'width="{width}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size}>\n'
        f"  <style>\n{_STYLE}  </style>\n"
        f'  <rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>\n{"".join(rows)}</svg>\n'
    )


def _lines(role: Role, text: str, max_lines: int) -> Iterator[tuple[Role, str]]:
    """Yield the lines of one part, wrapped, and an empty one after it."""
    prompt = _PROMPT if role == "action" else ""
    wrapped = [
        piece
        for line in visible(text).expandtabs().strip("\n").split("\n")
        for piece in textwrap.wrap(line, COLUMNS - len(prompt), replace_whitespace=False) or [""]
    ]
    if len(wrapped) > max_lines:
        wrapped = [*wrapped[: max_lines - 1], "…"]
    for number, line in enumerate(wrapped):
        yield role, (prompt if number == 0 else " " * len(prompt)) + line.rstrip()
    if role == "observation":
        yield role, ""
