"""Batches of random episodes that branch off each other, for benchmarks of updates: only their sizes matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...agents.episode import Episode, Move, Turn
from ..data.episodes import Branch, from_episodes
from ..data.rollouts import Rollouts

VOCABULARY = 512
"""Number of token ids."""


@dataclass(frozen=True)
class Forest:
    """Sizes of a batch.

    Each tree has one episode from the start and others that branch off it before evenly spaced turns, as the tree
    sampler's do on average.

    Attributes:
        trees: Number of trees, each with a prompt of its own.
        branches: Episodes of each tree beside the first.
        turns: Turns of an episode.
        prompt: Tokens of the prompt before the first turn.
        observation: Tokens of the observation before every later turn.
        reply: Sampled tokens of a turn.
        group: Trees of a group, whose returns are compared. A group of one episode has no advantages.
    """

    trees: int
    branches: int
    turns: int
    prompt: int = 128
    observation: int = 40
    reply: int = 24
    group: int = 1

    def rollouts(self, *, branched: bool) -> Rollouts:
        """Return the episodes as a forest, or the same ones as chains that repeat what they share."""
        episodes: list[Episode] = []
        origins: list[Branch | None] = []
        for tree in range(self.trees):
            first = len(episodes)
            for member in range(self.branches + 1):
                rng = np.random.default_rng([tree, member])
                turns = list(self._turns(rng))
                origin = None
                if member:
                    shared = round(member * self.turns / (self.branches + 1))
                    origin = Branch(first, shared)
                    turns = [*episodes[first].turns[:shared], *turns[shared:]]
                episodes.append(Episode("Env", "task", member, "model", success=bool(member % 2), turns=turns))
                origins.append(origin)
        groups = [index // (self.group * (self.branches + 1)) for index in range(len(episodes))]
        return from_episodes(episodes, groups, branches=origins if branched else None)

    def _turns(self, rng: np.random.Generator) -> Iterator[Turn]:
        for number in range(self.turns):
            given = self.observation if number else self.prompt
            yield Turn(
                "",
                "",
                moves=[Move("go", float(rng.normal()), True, True)],
                token_ids=rng.integers(0, VOCABULARY, given + self.reply).tolist(),
                logprobs=[0.0] * given + rng.normal(-2.0, 0.3, self.reply).tolist(),
                loss_mask=[0] * given + [1] * self.reply,
            )


def saved_fraction(forest: Rollouts) -> float:
    """Return the fraction of the tokens of all episodes that are repetitions of shared turns."""
    distinct = sum(len(ids) for ids in forest.turn_tokens)
    return 1.0 - distinct / sum(len(row) for row in forest.rows)
