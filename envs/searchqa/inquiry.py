"""State of an episode: the documents shown so far, the open page and the answer, as an immutable value."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any, NamedTuple

from ..retrieval.interface import Document
from .tags import FormatState


class Inquiry(NamedTuple):
    """State of an episode.

    Attributes:
        observation: Last observation.
        known: (id, title) of every document shown so far, in the order of first appearance.
        page: Sentences of the open page (react).
        keyword: Keyword of the last lookup on that page (react).
        looked_up: Number of results of that keyword shown so far (react).
        format: State of the format grammar after the dialogue so far (tags).
        evidence: True if a gold answer occurred in a retrieved text.
        answer: Final answer, or None if it has not been given.
    """

    observation: str
    known: tuple[tuple[str, str], ...] = ()
    page: tuple[str, ...] = ()
    keyword: str = ""
    looked_up: int = 0
    format: FormatState = FormatState.START
    evidence: bool = False
    answer: str | None = None

    def show(self, documents: Sequence[Document], observation: str, **changes: Any) -> Inquiry:
        """Return the state after an observation that shows documents.

        Args:
            documents: Documents of which the observation shows at least the beginning.
            observation: The observation.
            **changes: Further fields that change.
        """
        fresh = dict.fromkeys((document.id, document.title) for document in documents)
        known = tuple(dict.fromkeys((*self.known, *fresh)))
        return self._replace(observation=observation, known=known, **changes)

    def shown_titles(self) -> set[str]:
        """Return the titles of the documents shown so far."""
        return {title for _, title in self.known}


_FIELD_TYPES = [[str, tuple, tuple, str, int, FormatState, bool, answer] for answer in (NoneType, str)]
"""Types of an `Inquiry`'s fields, before and after the answer."""


def is_well_typed(state: object) -> bool:
    """Return True for an `Inquiry` with fields, and elements of its sequences, of the declared types."""
    return (
        type(state) is Inquiry
        and list(map(type, state)) in _FIELD_TYPES
        and set(map(type, state.page)) <= {str}
        and all(type(pair) is tuple and list(map(type, pair)) == [str, str] for pair in state.known)
        and 0 <= state.looked_up <= len(state.page)
    )
