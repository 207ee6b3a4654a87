"""Detection of stop texts in a reply, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class StopTextMatcher:
    """Matcher of texts that end a reply.

    A stop text is completed by the newest token, which then contains its last characters. Whether a token can
    complete one is cached by token id, and the end of the reply is decoded only for tokens that can. Requests with
    the same stop texts share a matcher.

    Args:
        tokenizer: The tokenizer.
        stops: The stop texts; empty ones are ignored.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stop for stop in stops if stop)
        # A token has at least one byte: this many contain the longest stop text and a split character before it.
        self._window = max((len(stop.encode()) for stop in self._stops), default=0) + 4
        self._may_end: dict[int, bool] = {}

    def match(self, reply: Sequence[int]) -> str | None:
        """Return the reply's text up to and including the stop text that its last token completed, if any.

        Args:
            reply: All token ids sampled so far.

        Returns:
            None if the last token completed no stop text.
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

    def _can_end(self, token_text: str) -> bool:
        """Return True if a token with this text can complete a stop text."""
        if "\ufffd" in token_text:  # part of a character, which is decodable only with its neighbors
            return True
        # Some tokenizers drop a leading space when they decode a token on its own.
        return any(
            stop in text or any(text.startswith(stop[n:]) for n in range(len(stop)))
            for stop in self._stops
            for text in (token_text, f" {token_text}")
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return decode(self._tokenizer, ids)


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the exact text of tokens, special tokens included."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
