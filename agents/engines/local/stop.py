"""Finding stop texts in a reply as it is sampled, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopTexts:
    """Looks for texts after which a reply ends.

    A stop text is completed by the newest token, which then holds the stop's last characters. Whether a token can
    do so is remembered by id; only for those that can is the end of the reply decoded. Shared by all requests with
    the same stop texts.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stop for stop in stops if stop)
        # No token is shorter than a byte, so this many hold the longest stop text and a split character before it.
        self._window = max((len(stop.encode()) for stop in self._stops), default=0) + 4
        self._may_end: dict[int, bool] = {}

    def cut(self, reply: Sequence[int]) -> str | None:
        """The reply's text up to and including the stop text that its last token completed; None if it did not.

        Args:
            reply: all tokens sampled so far.
        """
        last = reply[-1]
        may_end = self._may_end.get(last)
        if may_end is None:
            may_end = self._may_end[last] = self._can_end(self._decode([last]))
        if not may_end:
            return None
        tail = self._decode(reply[-self._window :])
        if not any(stop in tail for stop in self._stops):
            return None
        text = self._decode(reply)
        ends = [text.index(stop) + len(stop) for stop in self._stops if stop in text]
        return text[: min(ends)] if ends else None

    def _can_end(self, piece: str) -> bool:
        if "\ufffd" in piece:  # part of a character: what it is shows only beside its neighbours
            return True
        # Some tokenizers drop the space before a token that is decoded alone.
        return any(
            stop in text or any(text.startswith(stop[n:]) for n in range(len(stop)))
            for stop in self._stops
            for text in (piece, f" {piece}")
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return decode(self._tokenizer, ids)


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of tokens, special ones included, to the letter."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
