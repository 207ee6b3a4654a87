"""One request under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base import Request
from .stop import StopTexts


@dataclass(slots=True, eq=False)
class Task:
    """A request and the reply so far.

    Attributes:
        request: what was asked.
        ids: the prompt and what was sampled after it.
        prompt: how many of `ids` are the prompt.
        draws: a uniform number for every token that may be sampled; empty for greedy requests.
        stop: looks for stop texts; None where there are none.
        logprobs: of the sampled tokens.
        row: where the keys and values are; -1 before admission.
        reused: prompt tokens whose keys and values were there already.
        returning: whether some were its own conversation's.
    """

    request: Request
    ids: list[int]
    prompt: int
    draws: list[float]
    stop: StopTexts | None
    logprobs: list[float] = field(default_factory=list)
    row: int = -1
    reused: int = 0
    returning: bool = False

    @property
    def sampled(self) -> list[int]:
        """The reply so far."""
        return self.ids[self.prompt :]
