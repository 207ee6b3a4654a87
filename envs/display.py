"""Foreign text for a terminal, which must not interpret it, and the colors of boards."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from itertools import groupby

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, delete, and C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # bidirectional controls, line and paragraph separators
    "\ud800-\udfff]"  # lone surrogates, which no encoding can write
)


def _picture(control: re.Match[str]) -> str:
    point = ord(control[0])
    return chr(0x2400 + point) if point < 0x20 else "␡" if point == 0x7F else "\ufffd"


def visible(text: str) -> str:
    """Return a text in which a visible symbol stands for every character that controls a terminal.

    C0 controls and delete become their pictures, such as ␛ for escape; C1 controls, bidirectional controls and
    lone surrogates become U+FFFD. Tabs and line feeds are kept.
    """
    return text if text.isprintable() else _CONTROLS.sub(_picture, text)


def terminal_text(text: str, palette: Mapping[str, str]) -> str:
    """Return a text with the symbols of its board lines in color, as ANSI escape sequences.

    A line belongs to a board if it consists of symbols of the palette.

    Args:
        text: Observation; see `visible` for its control characters.
        palette: Mapping from a symbol to a style of `rich`; empty if the environment has no board.
    """
    clean = visible(text)
    if not palette:
        return clean
    symbols = set(palette)
    return "\n".join(
        _color_line(line, palette) if line.strip() and set(line.strip()) <= symbols else line
        for line in clean.split("\n")
    )


def _color_line(line: str, palette: Mapping[str, str]) -> str:
    from rich.color import ColorSystem
    from rich.style import Style

    return "".join(
        Style.parse(style).render("".join(symbols), color_system=ColorSystem.STANDARD)
        for style, symbols in groupby(line, lambda symbol: palette.get(symbol, ""))
    )


def show(observation: str, palette: Mapping[str, str], action: str | None = None) -> None:
    """Print an observation to standard output, after the action that led to it.

    Args:
        observation: Observation.
        palette: Mapping from a symbol to a style of `rich`, used if standard output is a terminal and the
            environment variable `NO_COLOR` is not set.
        action: Action, or None after a reset.
    """
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    entered = "" if action is None else f"> {terminal_text(str(action), {})}\n"
    sys.stdout.write(f"{entered}{terminal_text(observation, palette if colored else {}).rstrip()}\n\n")
    sys.stdout.flush()
