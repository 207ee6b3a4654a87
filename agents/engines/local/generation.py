"""The state of one request in progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base import Request
from .stop import StopTextMatcher


@dataclass(slots=True, eq=False)
class Generation:
    """A request and the reply sampled so far.

    Attributes:
        request: The request.
        ids: Token ids of the prompt and of the reply so far.
        prompt_length: Number of prompt tokens.
        uniforms: A uniform number for every token that may be sampled; empty for greedy requests.
        matcher: Matcher of the stop texts; None if there are none.
        logprobs: Log-probabilities of the sampled tokens.
        row: Row of the KV cache; -1 before admission.
        reused: Number of prompt tokens whose keys and values were already cached.
        resumed: True if some of them were cached for the same conversation.
    """

    request: Request
    ids: list[int]
    prompt_length: int
    uniforms: list[float]
    matcher: StopTextMatcher | None
    logprobs: list[float] = field(default_factory=list)
    row: int = -1
    reused: int = 0
    resumed: bool = False

    @property
    def sampled(self) -> list[int]:
        """Token ids of the reply so far."""
        return self.ids[self.prompt_length :]
