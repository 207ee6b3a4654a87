"""T-STAR's credit: episodes of a task merged into a tree of equivalent steps (arXiv:2604.07165).

A *path* is the sequence of merged nodes that an episode passed through, the root left out. Everything here is a
function of paths and of the episodes' rewards.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from ....envs.errors import unknown_name
from ...data.segments import FloatArray, IntArray, group_statistics

ROOT: tuple[Hashable, ...] = ()
"""The node that all paths start from."""

Path = Sequence[Hashable]
Label = TypeVar("Label", bound=Hashable)
Symmetrise = Literal["max", "mean", "forward"]


# ---------------------------------------------------------------------- which steps are the same


def exact_kl(logp_i: FloatArray, logp_j: FloatArray) -> float:
    """KL(π(·|s_i) ‖ π(·|s_j)) over a listed set of actions (eq. 2).

    Args:
        logp_i, logp_j: log-probabilities of the same actions, shape [A]; normalised here.
    """
    i = logp_i - np.logaddexp.reduce(logp_i)
    j = logp_j - np.logaddexp.reduce(logp_j)
    return float(np.sum(np.exp(i) * (i - j)))


def sampled_kl(logp_i: FloatArray, logp_j: FloatArray, estimator: Literal["k1", "k3"] = "k1") -> float:
    """The same from actions sampled from π(·|s_i) (eq. 18).

    Args:
        logp_i, logp_j: log-probabilities of the K sampled actions in both states, shape [K].
        estimator: "k1", the paper's, may come out negative; "k3" does not.
    """
    d = logp_j - logp_i
    if estimator == "k1":
        return float(-d.mean())
    return float((np.exp(d) - 1.0 - d).mean())


def merged_weights(
    divergences: FloatArray,
    histories: Sequence[Hashable],
    *,
    threshold: float = 0.25,
    symmetrise: Symmetrise = "max",
) -> list[list[int]]:
    """Sets of steps that are one node: connected by pairs of little divergence and equal history (sec. 3.1).

    Args:
        divergences: KL(i ‖ j), shape [n, n].
        histories: what each step's past changed in the world; only equal ones merge.
        threshold: ε_kl; a pair is joined below it.
        symmetrise: how the two directions of a pair become one number.

    Returns:
        Sets of indices, ascending, in order of their first member. Joining is transitive.
    """
    if symmetrise == "max":
        both = np.maximum(divergences, divergences.T)
    elif symmetrise == "mean":
        both = (divergences + divergences.T) / 2
    elif symmetrise == "forward":
        both = divergences
    else:
        raise unknown_name("symmetrisation", symmetrise, ("max", "mean", "forward"))
    n = len(histories)
    concatenate = [
        (i, j) for i, j in combinations(range(n), 2) if histories[i] == histories[j] and both[i, j] < threshold
    ]
    parent = list(range(n))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in concatenate:
        parent[max(find(i), find(j))] = min(find(i), find(j))
    sets: dict[int, list[int]] = {}
    for i in range(n):
        sets.setdefault(find(i), []).append(i)
    return list(sets.values())


def candidate_pairs(first_actions: Sequence[Hashable], limit: int = 16) -> list[tuple[int, int]]:
    """Pairs of episodes whose steps are compared: all; above `limit` episodes those with the same first action."""
    pairs = combinations(range(len(first_actions)), 2)
    if len(first_actions) <= limit:
        return list(pairs)
    return [(i, j) for i, j in pairs if first_actions[i] == first_actions[j]]


# ---------------------------------------------------------------------- the tree


def tree_paths(labels: Sequence[Sequence[Label]]) -> list[list[Hashable]]:
    """Paths that merge equal steps below one merged parent only: a tree. A node is the tuple of its labels."""
    return [[tuple(steps[: depth + 1]) for depth in range(len(steps))] for steps in labels]


def layer_paths(labels: Sequence[Sequence[Label]]) -> list[list[Hashable]]:
    """Paths that merge equal steps at equal depth, whatever their parents: a graph, in which lemma 1 fails.

    A node is (depth, label).
    """
    return [list(enumerate(steps)) for steps in labels]


def visits(paths: Sequence[Path]) -> dict[Hashable, int]:
    """k_v, the episodes through each node, in order of first sight, the root first."""
    counts: dict[Hashable, int] = {ROOT: len(paths)}
    for path in paths:
        for node in path:
            counts[node] = counts.get(node, 0) + 1
    return counts


def edges(paths: Sequence[Path]) -> dict[Hashable, dict[Hashable, int]]:
    """Episodes that went from each node to each of its children, in order of first sight."""
    found: dict[Hashable, dict[Hashable, int]] = {}
    for path in paths:
        for parent, child in zip([ROOT, *path], path, strict=False):
            below = found.setdefault(parent, {})
            below[child] = below.get(child, 0) + 1
    return found


def edge_weights(paths: Sequence[Path]) -> dict[Hashable, dict[Hashable, float]]:
    """w(v → c) = |T(v → c)| / |T(v)| (eq. 3)."""
    counts = visits(paths)
    return {v: {c: k / counts[v] for c, k in below.items()} for v, below in edges(paths).items()}


def q_values(paths: Sequence[Path], rewards: FloatArray, gamma: float = 1.0) -> dict[Hashable, float]:
    """The Q-tree, backed up from the leaves: Q(v) = γ Σ_c w(v → c) Q(c), and Q(leaf) = R (eq. 4).

    An episode that ends at a node adds a child of its own there, worth its reward undiscounted; so a leaf that
    several episodes share is worth their mean. In a tree this is Q(v) = 1/k_v Σ_i γ^(T_i - d(v)) R_i.

    Args:
        paths: merged nodes of each episode; a node always stands at the same depth.
        rewards: R of each episode, shape [E].
        gamma: γ. The paper takes 0.99; only with 1 is a node's advantage the mean of its episodes' (lemma 1).

    Returns:
        Q of every node, the root's first.
    """
    sum_by_group = dict.fromkeys(visits(paths), 0.0)
    values: dict[Hashable, float] = {}
    counts = visits(paths)
    full = [[ROOT, *path] for path in paths]
    for depth in range(max(map(len, full), default=0) - 1, -1, -1):
        layer = []
        for path, reward in zip(full, rewards.tolist(), strict=True):
            if depth < len(path):
                ends = depth == len(path) - 1
                sum_by_group[path[depth]] += reward if ends else gamma * values[path[depth + 1]]
                layer.append(path[depth])
        values |= {node: sum_by_group[node] / counts[node] for node in layer}
    return {node: values[node] for node in counts if node in values}


def node_advantages(q: dict[Hashable, float], rewards: FloatArray, eps: float = 1e-6) -> dict[Hashable, float]:
    """A(v) = (Q(v) - mean R) / (std R + ε) (eq. 5); all 0 where the rewards are equal."""
    statistics = group_statistics(rewards, _one_group(rewards))
    mean, std = float(statistics.mean[0]), float(statistics.std[0])
    return {node: 0.0 if std == 0.0 else (value - mean) / (std + eps) for node, value in q.items()}


def _one_group(rewards: FloatArray) -> IntArray:
    return np.zeros(len(rewards), dtype=np.int64)


class Divergence(NamedTuple):
    """A node after which some continuations do much better than others.

    Attributes:
        gap: between the best and the worst child's Q.
        best, worst: those children.
    """

    gap: float
    best: Hashable
    worst: Hashable


def divergences(
    paths: Sequence[Path],
    q: dict[Hashable, float],
    delta: float = 0.3,
    *,
    floor: float = -np.inf,
    tie: float = 1e-9,
) -> dict[Hashable, Divergence]:
    """The nodes whose children's Q differ by more than δ (eq. 8).

    Args:
        paths: as for `q_values`.
        q: of every node.
        delta: δ.
        floor: the best child must be worth more than this, so that nothing is learnt from two failures.
        tie: a gap that exceeds δ by no more than this equals it but for rounding, and does not count.

    Returns:
        Divergences by node. Of equally good children the one with more episodes is the best, then the one seen
        first; of equally bad ones the one seen first is the worst.
    """
    found: dict[Hashable, Divergence] = {}
    for node, below in edges(paths).items():
        best = max(below, key=lambda child: (q[child], below[child]))
        worst = min(below, key=lambda child: q[child])
        gap = q[best] - q[worst]
        if gap > delta + tie and q[best] > floor:
            found[node] = Divergence(gap, best, worst)
    return found
