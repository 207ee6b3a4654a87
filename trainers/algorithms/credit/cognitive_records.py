"""Cognitive graphs as data for reports, and statistics of an update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import overload

import numpy as np

from ...data.cognitive_graph import CognitiveGraph, GraphDivergence, GraphEdge, GraphEpisode, GraphNode
from ...data.rollouts import Rollouts
from ...data.segments import IntArray, group_statistics
from .cognitive import ROOT, edge_weights, edges, visits
from .cognitive_steps import Steps, action_text
from .cognitive_values import GroupValues


class GroupGraphs(Sequence[CognitiveGraph]):
    """Graphs of an update, by group; each is built when it is read, since reports show only a few."""

    def __init__(self, groups: Sequence[GroupValues], rollouts: Rollouts, child: IntArray) -> None:
        """
        Args:
            groups: Values of the groups.
            rollouts: Episodes.
            child: First turn after each turn, [S]; -1 at an end.
        """
        self._groups = groups
        self._rollouts = rollouts
        self._child = child

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> CognitiveGraph: ...

    @overload
    def __getitem__(self, index: slice) -> GroupGraphs: ...

    def __getitem__(self, index: int | slice) -> CognitiveGraph | GroupGraphs:
        if isinstance(index, slice):
            return GroupGraphs(self._groups[index], self._rollouts, self._child)
        return build_graph(self._groups[index], self._rollouts, self._child)


def build_graph(values: GroupValues, rollouts: Rollouts, child: IntArray) -> CognitiveGraph:
    """Return the graph of a group as data.

    Args:
        values: Values of the group.
        rollouts: Episodes.
        child: First turn after each turn, [S]; -1 at an end.
    """
    depths: dict[Hashable, int] = {ROOT: 0}
    turns: dict[Hashable, set[int]] = {ROOT: set()}
    episodes: dict[Hashable, list[int]] = {ROOT: list(range(len(values.episodes)))}
    for episode, (path, own) in enumerate(zip(values.paths, values.turns, strict=True)):
        for depth, (node, turn) in enumerate(zip(path, own, strict=True)):
            depths[node] = depth + 1
            turns.setdefault(node, set()).add(turn)
            episodes.setdefault(node, []).append(episode)
    order = sorted(depths, key=lambda node: depths[node])  # stable: by first visit within a depth
    numbers = {node: number for number, node in enumerate(order)}
    task = next((rollouts.turn_observation[own[0]] for own in values.turns if own), "")
    nodes = []
    for node in order:
        merged = sorted(turns[node])
        following = int(child[merged[0]]) if merged else -1
        texts = [action_text(rollouts, turn) for turn in merged]
        if len(texts) > 1:
            texts = [text for text, _ in Counter(texts).most_common()]
        nodes.append(
            GraphNode(
                depths[node],
                tuple(merged),
                tuple(episodes[node]),
                values.q[node],
                values.node_advantages[node],
                tuple(texts),
                task if node == ROOT else rollouts.turn_observation[following] if following >= 0 else None,
            )
        )
    statistics = group_statistics(values.returns, np.zeros(len(values.returns), dtype=np.int64), 1)
    counts, weights = edges(values.paths), edge_weights(values.paths)
    return CognitiveGraph(
        values.group,
        task,
        float(statistics.mean[0]),
        float(statistics.std[0]),
        tuple(nodes),
        tuple(
            GraphEdge(numbers[parent], numbers[node], count, weights[parent][node])
            for parent in order
            for node, count in counts.get(parent, {}).items()
        ),
        tuple(
            GraphDivergence(numbers[node], numbers[found.best], numbers[found.worst], found.gap)
            for node, found in values.divergences.items()
        ),
        tuple(
            GraphEpisode(index, reward, bool(rollouts.success[index]), (0, *(numbers[node] for node in path)))
            for index, reward, path in zip(values.episodes, values.returns.tolist(), values.paths, strict=True)
        ),
    )


def graph_metrics(groups: Sequence[GroupValues]) -> dict[str, float]:
    """Return the statistics of an update's graphs (T-STAR, tables 5, 10 and 11).

    See `trainers/reporting/metric_names.py` for their meanings.
    """
    if not groups:
        return {}
    counts = [visits(group.paths) for group in groups]
    nodes = sum(len(found) - 1 for found in counts)
    steps = sum(len(path) for group in groups for path in group.paths)
    shared = sum(k for found in counts for node, k in found.items() if node != ROOT and k > 1)
    gaps = [found.gap for group in groups for found in group.divergences.values()]
    metrics = {
        "graph/depth": float(np.mean([max(map(len, group.paths), default=0) for group in groups])),
        "graph/nodes": nodes / len(groups),
        "graph/merge_ratio": 1 - nodes / steps if steps else 0.0,
        "graph/shared_steps": shared / steps if steps else 0.0,
        "graph/divergences": len(gaps) / len(groups),
    }
    return metrics | ({"graph/gap": float(np.mean(gaps))} if gaps else {})


def pair_metrics(steps: Steps, classes: IntArray, compared: int, separate: int) -> dict[str, float]:
    """Return how pairs of steps of equal depth in a group were decided, as fractions of all such pairs.

    Args:
        steps: Properties of the turns; ends are not paired.
        classes: Sets of identical contexts, [S].
        compared: Pairs that were compared by divergence.
        separate: Pairs with different lists of actions.
    """
    inner = ~steps.is_end

    def pairs(numbers: IntArray) -> int:
        _, sizes = np.unique(numbers[inner], return_counts=True)
        return int((sizes * (sizes - 1) // 2).sum())

    total = pairs(steps.group * (steps.depth.max(initial=0) + 1) + steps.depth)
    if total == 0:
        return {}
    return {
        "graph/pairs_history": 1 - pairs(steps.bucket) / total,
        "graph/pairs_identity": pairs(classes) / total,
        "graph/pairs_choices": separate / total,
        "graph/pairs_policy": compared / total,
    }
