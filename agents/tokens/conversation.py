"""A conversation as an append-only list of token ids with a mask of the sampled ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Segment(NamedTuple):
    """A contiguous part of a conversation: three lists of equal length, as in `Turn`.

    Attributes:
        token_ids: The tokens.
        logprobs: Log-probability of each token under the sampling policy; 0.0 for prompt tokens.
        loss_mask: 1 for sampled tokens, 0 for prompt tokens.
    """

    token_ids: list[int]
    logprobs: list[float]
    loss_mask: list[int]


class Conversation:
    """Append-only token ids of a conversation.

    Args:
        ids: Prompt tokens to begin with.

    Attributes:
        ids: All tokens.
        logprobs: Log-probability of each token under the sampling policy; 0.0 for prompt tokens.
        loss_mask: 1 for sampled tokens, 0 for prompt tokens.
    """

    __slots__ = ("ids", "logprobs", "loss_mask")

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.loss_mask: list[int] = []
        self.add_prompt(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def add_prompt(self, ids: Sequence[int]) -> None:
        """Append prompt tokens."""
        self.ids.extend(ids)
        self.logprobs.extend([0.0] * len(ids))
        self.loss_mask.extend([0] * len(ids))

    def add_reply(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append sampled tokens, end-of-turn token included.

        Args:
            ids: The tokens.
            logprobs: Log-probability of each token.

        Raises:
            ValueError: `ids` and `logprobs` differ in length.
        """
        if len(ids) != len(logprobs):
            raise ValueError(f"a reply of {len(ids)} tokens came with {len(logprobs)} log-probabilities")
        self.ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.loss_mask.extend([1] * len(ids))

    def since(self, mark: int) -> Segment:
        """Return everything after the first `mark` tokens."""
        return Segment(self.ids[mark:], self.logprobs[mark:], self.loss_mask[mark:])

    def fork(self, length: int | None = None) -> Conversation:
        """Return an independent copy. It copies three flat lists, in about 10 µs per thousand tokens.

        Args:
            length: Number of leading tokens to copy; None for all.
        """
        branch = Conversation()
        branch.ids, branch.logprobs = self.ids[:length], self.logprobs[:length]
        branch.loss_mask = self.loss_mask[:length]
        return branch
