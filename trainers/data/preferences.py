"""Preference pairs: a chosen and a rejected continuation of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...envs.errors import ConfigurationError
from .rollouts import Rollouts
from .segments import IntArray
from .sequences import from_sequences


class Continuation(NamedTuple):
    """Tokens after a prompt.

    Attributes:
        prompt: Token ids before the continuation, which are not trained on.
        tokens: Token ids of the continuation.
    """

    prompt: IntArray
    tokens: IntArray


class Preference(NamedTuple):
    """Preference pair.

    The two prompts are one conversation, each with what precedes the continuation in its reply, such as the tag
    that opens a thought.

    Attributes:
        chosen: Continuation to prefer.
        rejected: The other one.
        update: Number of the update, from 0, whose rollouts the pair is from.
    """

    chosen: Continuation
    rejected: Continuation
    update: int

    def to_plain(self) -> dict[str, Any]:
        """Return the pair as lists of numbers."""
        sides = {"chosen": self.chosen, "rejected": self.rejected}
        plain = {name: [part.tolist() for part in side] for name, side in sides.items()}
        return {**plain, "update": self.update}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Preference:
        """Return the pair of a `to_plain`."""
        chosen, rejected = (
            Continuation(*(np.array(part, dtype=np.int64) for part in plain[name]))
            for name in ("chosen", "rejected")
        )
        return cls(chosen, rejected, plain["update"])


def pair_rollouts(pairs: Sequence[Preference]) -> Rollouts:
    """Return pairs as rollouts: pair i has the episodes 2i, its chosen continuation, and 2i + 1, the rejected one.

    Raises:
        ConfigurationError: A prompt or a continuation is empty.
    """
    sides = [side for pair in pairs for side in (pair.chosen, pair.rejected)]
    if any(len(side.tokens) == 0 for side in sides):
        raise ConfigurationError("a preference pair has a continuation without tokens; leave the pair out.")
    return from_sequences([side.prompt for side in sides], [side.tokens for side in sides])
