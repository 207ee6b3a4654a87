"""Formulas of T-STAR: episodes of a task merged into a tree of equivalent steps (arXiv:2604.07165).

A *path* is the sequence of merged nodes that an episode passes through, without the root. Everything here is a
function of paths and of the episodes' rewards; `Cognitive` in `cognitive_credit.py` makes them from rollouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import chain, combinations
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from ....envs.errors import unknown_name
from ...data.segments import FloatArray, IntArray, factorize, group_statistics

ROOT: tuple[Hashable, ...] = ()
"""Node at which all paths start."""

Path = Sequence[Hashable]
Label = TypeVar("Label", bound=Hashable)
Symmetrize = Literal["max", "mean", "forward"]


# ---------------------------------------------------------------------- equivalence of steps


def exact_kl(logp_i: FloatArray, logp_j: FloatArray) -> FloatArray:
    """Return KL(π(·|s_i) ‖ π(·|s_j)) over an enumerated set of actions (eq. 2), shape [...].

    Args:
        logp_i, logp_j: Log-probabilities of the same actions in both states, shape [..., A], broadcast against
            each other. They need not be normalized. NaN, where a score is unknown, makes the divergence NaN.
    """
    with np.errstate(invalid="ignore"):  # NaN stays NaN.
        i = logp_i - np.logaddexp.reduce(logp_i, axis=-1, keepdims=True)
        j = logp_j - np.logaddexp.reduce(logp_j, axis=-1, keepdims=True)
        return np.asarray((np.exp(i) * (i - j)).sum(axis=-1))


def sampled_kl(logp_i: FloatArray, logp_j: FloatArray, estimator: Literal["k1", "k3"] = "k1") -> FloatArray:
    """Return an estimate of KL(π(·|s_i) ‖ π(·|s_j)) from actions sampled from π(·|s_i) (eq. 18), shape [...].

    Args:
        logp_i, logp_j: Log-probabilities of the K sampled actions in both states, shape [..., K], broadcast
            against each other.
        estimator: "k1" is the paper's and may be negative; "k3" is never negative.
    """
    d = logp_j - logp_i
    return np.asarray((-d if estimator == "k1" else np.exp(d) - 1.0 - d).mean(axis=-1))


def merge_steps(
    divergences: FloatArray,
    histories: Sequence[Hashable],
    *,
    threshold: float = 0.25,
    symmetrize: Symmetrize = "max",
) -> list[list[int]]:
    """Partition steps into merged nodes: pairs of small divergence and equal history are connected (sec. 3.1).

    Args:
        divergences: KL(i ‖ j), shape [n, n].
        histories: Changes to the environment before each step, length n; only steps with equal histories merge.
        threshold: ε_kl; a pair is connected if its divergence is below. NaN connects nothing.
        symmetrize: Combination of a pair's two directions: their "max", their "mean", or the "forward" one, KL(i
            ‖ j) with i < j.

    Returns:
        Indices of each set, ascending, in order of the first member. Sets are connected components.
    """
    if symmetrize == "max":
        symmetric = np.maximum(divergences, divergences.T)
    elif symmetrize == "mean":
        symmetric = (divergences + divergences.T) / 2
    elif symmetrize == "forward":
        symmetric = divergences
    else:
        raise unknown_name("symmetrization", symmetrize, ("max", "mean", "forward"))
    n = len(histories)
    connected = [
        (i, j)
        for i, j in combinations(range(n), 2)
        if histories[i] == histories[j] and symmetric[i, j] < threshold
    ]
    parents = list(range(n))
    for i, j in connected:
        first, second = sorted((find_root(parents, i), find_root(parents, j)))
        parents[second] = first
    sets: dict[int, list[int]] = {}
    for i in range(n):
        sets.setdefault(find_root(parents, i), []).append(i)
    return list(sets.values())


def find_root(parents: list[int], number: int) -> int:
    """Return the root of a number in a forest of joined sets, and shorten the path to it (union-find).

    Args:
        parents: Parent of each number; roots are their own.
        number: A number.
    """
    while parents[number] != number:
        parents[number] = parents[parents[number]]
        number = parents[number]
    return number


def comparison_sets(first_actions: Sequence[Hashable], limit: int = 16) -> IntArray:
    """Return the set of each episode of a group, [E]; the steps of different sets are not compared by divergence.

    Args:
        first_actions: First action of each episode.
        limit: Number of episodes up to which all are one set; more are divided by their first actions.
    """
    return factorize(first_actions) if len(first_actions) > limit else np.zeros(len(first_actions), dtype=np.int64)


# ---------------------------------------------------------------------- the tree


def tree_paths(labels: Sequence[Sequence[Label]]) -> list[list[Hashable]]:
    """Return paths that merge equal steps only below the same merged parent, which makes a tree.

    Args:
        labels: Label of each step of each episode; equivalent steps have equal labels.

    Returns:
        Path of each episode. A node is the tuple of the labels from the root to it.
    """
    return [[tuple(steps[: depth + 1]) for depth in range(len(steps))] for steps in labels]


def layer_paths(labels: Sequence[Sequence[Label]]) -> list[list[Hashable]]:
    """Return paths that merge equal steps of equal depth under any parents: a graph, for which lemma 1 fails.

    Args:
        labels: Label of each step of each episode; equivalent steps have equal labels.

    Returns:
        Path of each episode. A node is (depth, label).
    """
    return [list(enumerate(steps)) for steps in labels]


def visits(paths: Sequence[Path]) -> dict[Hashable, int]:
    """Return k_v, the number of episodes through each node, in order of first visit, the root first."""
    return {ROOT: len(paths)} | Counter(chain.from_iterable(paths))


def edges(paths: Sequence[Path]) -> dict[Hashable, dict[Hashable, int]]:
    """Return the number of episodes from each node to each of its children, in order of first visit."""
    steps = Counter(chain.from_iterable(zip([ROOT, *path], path, strict=False) for path in paths))
    counts: dict[Hashable, dict[Hashable, int]] = {}
    for (parent, child), count in steps.items():
        counts.setdefault(parent, {})[child] = count
    return counts


def edge_weights(paths: Sequence[Path]) -> dict[Hashable, dict[Hashable, float]]:
    """Return w(v → c) = |T(v → c)| / |T(v)| of every edge (eq. 3)."""
    counts = visits(paths)
    return {v: {c: k / counts[v] for c, k in children.items()} for v, children in edges(paths).items()}


def q_values(paths: Sequence[Path], rewards: FloatArray, gamma: float = 1.0) -> dict[Hashable, float]:
    """Return Q(v) = γ Σ_c w(v → c) Q(c) of every node, with Q(leaf) = R (eq. 4).

    An episode that ends at a node counts as a child of its own, valued at its undiscounted reward; a leaf shared
    by several episodes thus has their mean. In a tree this is Q(v) = 1/k_v Σ_i γ^(T_i - d(v)) R_i.

    Args:
        paths: Merged nodes of each episode; all occurrences of a node have the same depth.
        rewards: R of each episode, shape [E].
        gamma: γ; 0.99 in the paper. A node's advantage is the mean of its episodes' advantages (lemma 1) only with
            γ = 1.

    Returns:
        Q by node, the root first.
    """
    return _back_up(paths, rewards.tolist(), None, gamma)


def continuation_values(
    paths: Sequence[Path], rewards: Sequence[Sequence[float]], gamma: float = 1.0
) -> dict[Hashable, float]:
    """Return V(v) = γ Σ_c w(v → c) (r + V(c)) of every node: what its episodes earn after it, on average.

    r is the mean reward of the steps from v to c, and V is 0 where an episode ends. If only last steps are
    rewarded, V is `q_values` at inner nodes. Otherwise Q(v) also averages what episodes earned before they met in
    v, and so attributes the rewards of one past to another; V does not.

    Args:
        paths: Merged nodes of each episode; all occurrences of a node have the same depth.
        rewards: Reward of each step of each episode.
        gamma: γ.

    Returns:
        V by node, the root first.
    """
    return _back_up(paths, [0.0] * len(paths), rewards, gamma)


def _back_up(
    paths: Sequence[Path], ends: Sequence[float], rewards: Sequence[Sequence[float]] | None, gamma: float
) -> dict[Hashable, float]:
    """Return the mean over each node's episodes of γ (r + value of the next node), or of `ends` at the end."""
    counts = visits(paths)
    lengths = list(map(len, paths))
    values: dict[Hashable, float] = {}
    for depth in range(max(lengths, default=0), -1, -1):
        sums: dict[Hashable, float] = {}
        for i, length in enumerate(lengths):
            if depth > length:
                continue
            path = paths[i]
            if depth == length:
                value = ends[i]
            elif rewards is None:
                value = gamma * values[path[depth]]
            else:
                value = gamma * (rewards[i][depth] + values[path[depth]])
            node = path[depth - 1] if depth else ROOT
            sums[node] = sums.get(node, 0.0) + value
        for node, total in sums.items():
            values[node] = total / counts[node]
    return {node: values[node] for node in counts if node in values}


def node_advantages(
    q: FloatArray, rewards: FloatArray, eps: float = 1e-6, *, discounts: FloatArray | float = 1.0
) -> FloatArray:
    """Return A(v) = (Q(v) - D mean R) / (std R + ε) of nodes (eq. 5); all 0 if the rewards are nearly equal.

    Args:
        q: Q of each node, shape [V].
        rewards: R of each episode of the group, shape [E].
        eps: ε added to the sample standard deviation.
        discounts: D of each node, shape [V]; 1 in the paper. With `q_values` of the reward 1 for every episode,
            the mean is discounted like the rewards in Q ("depth-matched").
    """
    statistics = group_statistics(rewards, np.zeros(len(rewards), dtype=np.int64), 1)
    mean, std = float(statistics.mean[0]), float(statistics.std[0])
    if std == 0.0:
        return np.zeros(len(q))
    advantages: FloatArray = (q - discounts * mean) / (std + eps)
    return advantages


class Divergence(NamedTuple):
    """Node after which the values of the continuations differ widely.

    Attributes:
        gap: Difference in Q between the best and the worst child.
        best: Child with the largest Q.
        worst: Child with the smallest Q.
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
    """Return the nodes whose children's Q differ by more than δ (eq. 8).

    Args:
        paths: Merged nodes of each episode, as for `q_values`.
        q: Q by node.
        delta: δ.
        floor: Bound that the best child's Q must exceed, so that two failures are not compared.
        tie: Tolerance of the comparison with δ; a gap that exceeds δ by less is a rounding error.

    Returns:
        Divergences by node. Among equally good children the best is the one with the most episodes, then the one
        visited first; among equally bad ones the worst is the one visited first.
    """
    found: dict[Hashable, Divergence] = {}
    for node, children in edges(paths).items():
        best = max(children, key=lambda child: (q[child], children[child]))
        worst = min(children, key=lambda child: q[child])
        gap = q[best] - q[worst]
        if gap > delta + tie and q[best] > floor:
            found[node] = Divergence(gap, best, worst)
    return found
