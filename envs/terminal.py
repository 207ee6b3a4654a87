"""Console for text from environments, models, pages and servers, which a terminal must not interpret.

Such text can hold escape sequences that move the cursor, set the title or write to the clipboard, and controls
that reverse the direction of the text around them. Everything that the package prints goes through `Terminal`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

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


def literal(text: str, style: str = "") -> Text:
    """Return foreign text for printing: visible, and without markup of rich."""
    return Text(visible(text), style)


class VisibleFormatter(logging.Formatter):
    """Formatter of log messages, which name files and repeat errors of servers."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class Terminal(Console):
    """Console that prints every text as by `visible`, in tables and live displays, too."""

    def render_str(self, text: str, *args: Any, **options: Any) -> Text:
        return super().render_str(visible(text), *args, **options)  # Rich would drop some controls unseen.

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable():
                yield segment
            else:
                yield segment._replace(text=visible(text))
