"""Observations as terminal text: colors of boards, and no control characters but those."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from itertools import groupby

_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
"""Control characters that could move the cursor or change the terminal, and their replacement."""


def terminal_text(text: str, palette: Mapping[str, str]) -> str:
    """Return a text with the symbols of its board lines in color, as ANSI escape sequences.

    A line belongs to a board if it consists of symbols of the palette.

    Args:
        text: Observation. Control characters other than line breaks and tabs are replaced by U+FFFD.
        palette: Mapping from a symbol to a style of `rich`; empty if the environment has no board.
    """
    clean = text.translate(_CONTROLS)
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
