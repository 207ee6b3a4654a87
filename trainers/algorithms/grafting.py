"""Settings of thought grafting: preference pairs made at divergences (T-STAR, arXiv:2604.07165, eq. 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...envs.checks import at_least, integer_at_least, one_of, positive


@dataclass(frozen=True)
class Grafting:
    """Source of the pairs for terms of the objective on preference pairs.

    A pair prefers a chosen thought to that of the turn that begins the worse branch of a divergence, in the
    conversation before that turn. Where the dialogue has no thoughts there is nothing to rewrite, and the pair
    consists of the whole replies that begin the two branches.

    Attributes:
        mode: Chosen thought: "rewrite" for one that the current policy writes when it is shown both branches
            (T-STAR), "branch" for the thought of the better branch itself, which costs no generation and needs no
            policy that can follow the prompt.
        thought_tokens: Maximum length of a written thought in tokens.
        temperature: Sampling temperature of written thoughts; None uses that of the update, 0 is greedy.
        history: Earlier turns shown in the prompt.
        max_age: Updates in which a pair is in the loss, its own included; 1 drops all pairs after each update.
            None never drops any, as T-STAR's algorithm 1 is printed; their rejected thoughts become stale.
    """

    mode: Literal["rewrite", "branch"] = "rewrite"
    thought_tokens: int = 128
    temperature: float | None = None
    history: int = 5
    max_age: int | None = 1

    def __post_init__(self) -> None:
        one_of("grafting.mode", self.mode, ("rewrite", "branch"))
        positive("grafting.thought_tokens", self.thought_tokens)
        at_least("grafting.temperature", self.temperature, 0.0)
        integer_at_least("grafting.history", self.history, 0)
        integer_at_least("grafting.max_age", self.max_age, 1)
