"""Console for text from environments, models, pages and servers, which a terminal must not interpret.

Such text can hold escape sequences that move the cursor, set the title or write to the clipboard, and controls
that reverse the direction of the text around them. Everything that the package prints goes through `Terminal`.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from .display import visible
from .errors import ConfigurationError
from .files import shown_paths

_NO_BREAK = "\N{NO-BREAK SPACE}"


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


def replace_unencodable() -> None:
    """Have standard output replace characters that its encoding lacks, instead of raising UnicodeEncodeError.

    On Windows the encoding of a file or a pipe is a code page, which lacks the lines of tables and the curves.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Context of a command, in which errors that the user can fix print one sentence and end the process.

    The exit status is 2 after a `ConfigurationError`, 1 after an error of the operating system, 130 after Ctrl-C,
    and 141 if the reader of the output, such as `head`, has closed the pipe.
    """
    try:
        yield
    except ConfigurationError as error:
        _print_error(str(error))
        sys.exit(2)
    except BrokenPipeError:
        # Python must not flush into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _print_error(f"{error.filename}: {error.strerror}." if error.filename else f"{error}.")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _print_error(text: str) -> None:
    Terminal(stderr=True, highlight=False).print(f"arboretum: {shown_paths(text)}", markup=False, soft_wrap=True)


def fit_parts(parts: Sequence[str], width: int, *, indent: str = "  ", head: str = "") -> str:
    """Return parts with commas between them as a line, folded between parts only where it is too wide.

    Args:
        parts: Parts, such as "success 50.0 %".
        width: Width in columns.
        indent: Begin of the first line; the others begin with two more spaces.
        head: Text before the parts, from which it may be folded.
    """
    head, *kept = (text.replace(" ", _NO_BREAK) for text in (head, *parts))
    text = f"{head} {', '.join(kept)}".lstrip(" ")
    folded = textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return folded.replace(_NO_BREAK, " ")
