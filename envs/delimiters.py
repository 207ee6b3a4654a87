"""Search for text between delimiters, in linear time.

A regular expression such as `<a>(.*?)</a>` scans the rest of the text from every `<a>` that is not closed, which
is quadratic. The functions here give the same matches, and stop at the first `<a>` that is not closed, because
then no later one is closed either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Passage(NamedTuple):
    """Passage of a text, with its delimiters.

    Attributes:
        start: Index of the opening delimiter.
        end: Index after the closing delimiter.
        content: Text between the delimiters.
    """

    start: int
    end: int
    content: str


def find_between(text: str, opening: str, closing: str, start: int = 0) -> Passage | None:
    """Return the first passage from the first `opening` to the first `closing` after it, or None.

    Args:
        text: Text to search.
        opening: Opening delimiter.
        closing: Closing delimiter.
        start: Index in `text` at which the search begins.
    """
    first = text.find(opening, start)
    if first < 0:
        return None
    inside = first + len(opening)
    last = text.find(closing, inside)
    return None if last < 0 else Passage(first, last + len(closing), text[inside:last])


def iterate_between(text: str, opening: str, closing: str) -> Iterator[Passage]:
    """Yield the passages of a text in order, without overlaps."""
    start = 0
    while found := find_between(text, opening, closing, start):
        yield found
        start = found.end


def first_element(text: str, tags: tuple[str, ...]) -> tuple[str, Passage] | None:
    """Return (tag, passage) of the first complete element `<tag>…</tag>` with one of several tags, or None."""
    found = [(passage, tag) for tag in tags if (passage := find_between(text, f"<{tag}>", f"</{tag}>"))]
    passage, tag = min(found, default=(None, ""))
    return None if passage is None else (tag, passage)
