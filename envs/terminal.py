"""Console for text from environments, models, pages and servers, which a terminal must not interpret.

Such text can hold escape sequences that move the cursor, set the title or write to the clipboard, and controls
that reverse the direction of the text around them. Everything that the package prints goes through `Terminal`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from .display import visible


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
        # Rich would drop some controls unseen, and print ":x:" in a user's text as an emoji.
        return super().render_str(visible(text), *args, **{**options, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable():
                yield segment
            else:
                yield segment._replace(text=visible(text))
