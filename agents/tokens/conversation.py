"""A conversation as an append-only list of token ids, with what was sampled marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """A stretch of a conversation: three lists of equal length, named as in `Turn`."""

    token_ids: list[int]
    logprobs: list[float]
    loss_mask: list[int]


class Conversation:
    """Token ids in the order in which the model saw them; they are only ever added to.

    Attributes:
        ids: all tokens.
        logprobs: the log-probability of each under the sampling policy; 0.0 where it was not sampled.
        loss_mask: 1 where the policy sampled the token, 0 elsewhere.
    """

    __slots__ = ("ids", "logprobs", "loss_mask")

    def __init__(self, ids: Sequence[int] = ()) -> None:
        """Begin with the prompt `ids`."""
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.loss_mask: list[int] = []
        self.add_prompt(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def add_prompt(self, ids: Sequence[int]) -> None:
        """Append tokens that were given to the model."""
        self.ids.extend(ids)
        self.logprobs.extend([0.0] * len(ids))
        self.loss_mask.extend([0] * len(ids))

    def add_reply(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append tokens that the model sampled, end-of-turn token included.

        Raises:
            ValueError: the two differ in length.
        """
        if len(ids) != len(logprobs):
            raise ValueError(f"a reply of {len(ids)} tokens came with {len(logprobs)} log-probabilities")
        self.ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.loss_mask.extend([1] * len(ids))

    def since(self, mark: int) -> Piece:
        """What was added after the conversation was `mark` tokens long."""
        return Piece(self.ids[mark:], self.logprobs[mark:], self.loss_mask[mark:])

    def fork(self) -> Conversation:
        """A branch with the same past. Copies three flat lists: about 10 µs per thousand tokens."""
        branch = Conversation()
        branch.ids, branch.logprobs, branch.loss_mask = self.ids[:], self.logprobs[:], self.loss_mask[:]
        return branch
