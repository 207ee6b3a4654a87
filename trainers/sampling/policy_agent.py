"""The policy as an agent: a language agent that counts its replies, so that their failures become visible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...agents.base import Reply, Seat
from ...agents.engines.base import Completion
from ...agents.language import LanguageAgent
from ..state import Activity


class ReplyCounts(NamedTuple):
    """Number of replies, and of those that failed.

    Attributes:
        replies: Sampled replies.
        invalid: Replies that are not in the form that the dialogue requires, so that no action was parsed.
        truncated: Replies that the limit of their length or the context window ended.
    """

    replies: int = 0
    invalid: int = 0
    truncated: int = 0

    @staticmethod
    def add_up(counts: Iterable[ReplyCounts]) -> ReplyCounts:
        """Return the sum of several counts."""
        return ReplyCounts(*(sum(column) for column in zip(*counts, strict=True)))

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """Return the counts as metrics: `replies`, `invalid_replies` and `truncated_replies`."""
        return {
            f"{prefix}replies": float(self.replies),
            f"{prefix}invalid_replies": float(self.invalid),
            f"{prefix}truncated_replies": float(self.truncated),
        }


class PolicyAgent(LanguageAgent):
    """Language agent that counts its replies; the arguments are those of `LanguageAgent`.

    Attributes:
        counts: Replies since the last call of `take_counts`.
        activity: Phase in progress, whose turns are counted.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.counts = ReplyCounts()
        self.activity = Activity()

    def receive(self, seat: Seat, completion: Completion) -> Reply | None:
        reply = super().receive(seat, completion)
        if reply is not None and reply.error is None:
            self.activity.turns += 1
            replies, invalid, truncated = self.counts
            self.counts = ReplyCounts(
                replies + 1, invalid + (not reply.well_formed), truncated + (completion.finish == "length")
            )
        return reply

    def take_counts(self) -> ReplyCounts:
        """Return the counts, and set them to 0."""
        counts, self.counts = self.counts, ReplyCounts()
        return counts
