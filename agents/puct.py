"""Statistics of a search tree: priors of sampled actions, values, and the choice of the next action by PUCT."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Actions = tuple[str, ...]
"""Actions of one reply, which a tree treats as one move."""


class Candidate(NamedTuple):
    """A sampled reply.

    Attributes:
        actions: Its actions.
        text: Its text.
        logprob: Log-probability of the text; None if the engine reports none.
        data: What the search keeps with it.
    """

    actions: Actions
    text: str
    logprob: float | None
    data: Any = None


def action_priors(candidates: Sequence[Candidate]) -> dict[Actions, float]:
    """Return the estimated probability of each sampled move under the policy.

    The probabilities of the distinct replies are known; let C be their sum. The rest, 1 - C, belongs to replies
    that were not sampled and is divided by the frequencies of the moves among the samples:

        P(a) = sum of p(r) over distinct replies r with move a + (1 - C) * n(a) / n

    Of short replies C is near 1, so that the prior is the policy. Of long ones, which hold thoughts, C is near 0,
    and the prior is the frequency. The priors sum to 1.
    """
    known = {
        one.text: (one.actions, math.exp(min(one.logprob, 0.0))) for one in candidates if one.logprob is not None
    }
    covered = min(1.0, sum(probability for _, probability in known.values()))
    scale = covered / max(sum(probability for _, probability in known.values()), 1e-300)
    priors = {one.actions: 0.0 for one in candidates}
    for actions, probability in known.values():
        priors[actions] += scale * probability
    for one in candidates:
        priors[one.actions] += (1.0 - covered) / len(candidates)
    return priors


@dataclass(slots=True, eq=False)
class Edge:
    """A move in a state.

    Attributes:
        candidate: The first reply sampled with this move, which is played if the move is chosen.
        prior: Probability of the move under the policy.
        visits: Number of simulations that made the move.
        in_flight: Number of simulations in progress that made it.
        total: Sum of the returns of the simulations from this move on.
        children: State after the move, by its key; several where the outcome is random.
    """

    candidate: Candidate
    prior: float = 0.0
    visits: int = 0
    in_flight: int = 0
    total: float = 0.0
    children: dict[Hashable, Node] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """Mean return from this move on; 0 before the first simulation."""
        return self.total / self.visits if self.visits else 0.0


@dataclass(slots=True, eq=False)
class Node:
    """A state before a turn.

    Attributes:
        data: What the search keeps with it.
        over: True if the episode has ended.
        candidates: The sampled replies.
        edges: Their moves, in the order in which they were first sampled.
    """

    data: Any
    over: bool = False
    candidates: list[Candidate] = field(default_factory=list)
    edges: dict[Actions, Edge] = field(default_factory=dict)

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Add sampled replies, and estimate all priors anew."""
        self.candidates += candidates
        for one in candidates:
            self.edges.setdefault(one.actions, Edge(one))
        for actions, prior in action_priors(self.candidates).items():
            self.edges[actions].prior = prior

    def best(self) -> Edge:
        """Return the move with the most simulations; ties go to the higher value, then to the higher prior."""
        return max(self.edges.values(), key=lambda edge: (edge.visits, edge.value, edge.prior))


class Bounds:
    """Smallest and largest return seen in a tree, to which values are scaled (MuZero, arXiv:1911.08265, eq. 5)."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf

    def include(self, value: float) -> None:
        """Extend the range by a return."""
        self.low, self.high = min(self.low, value), max(self.high, value)

    def scale(self, value: float) -> float:
        """Return a value scaled to [0, 1]; 0 while all returns are equal."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0


def select(node: Node, exploration: float, bounds: Bounds) -> Edge:
    """Return the move that maximizes the upper confidence bound of AlphaZero (Silver et al., 2018).

        Q(a) + c P(a) sqrt(sum of N(b) over all moves b) / (1 + N(a))

    Q is scaled to [0, 1]; a move without a simulation has the mean value of the node. N counts simulations in
    progress, too, so that concurrent ones spread (WU-UCT, arXiv:1810.11755). Ties go to the higher prior.

    Args:
        node: A node with candidates.
        exploration: The constant c.
        bounds: Range of the returns.
    """
    edges = list(node.edges.values())
    visits = sum(edge.visits for edge in edges)
    mean = bounds.scale(sum(edge.total for edge in edges) / visits) if visits else 0.0
    root = math.sqrt(sum(edge.visits + edge.in_flight for edge in edges))

    def score(edge: Edge) -> tuple[float, float]:
        value = bounds.scale(edge.value) if edge.visits else mean
        return value + exploration * edge.prior * root / (1 + edge.visits + edge.in_flight), edge.prior

    return max(edges, key=score)


def back_up(path: Sequence[tuple[Edge, float]], bounds: Bounds) -> None:
    """Add a simulation to the statistics of its moves.

    Args:
        path: The moves, first to last, each with its reward.
        bounds: Range of the returns, which is extended.
    """
    value = 0.0
    for edge, reward in reversed(path):
        value += reward
        edge.visits += 1
        edge.in_flight -= 1
        edge.total += value
        bounds.include(value)
