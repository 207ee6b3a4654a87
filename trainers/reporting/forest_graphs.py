"""Graphs of sampled trees, as they were sampled: a node for every turn, nothing merged."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ...eval.trees import THRESHOLD, Edge, find_divergences
from ..data.cognitive_graph import CognitiveGraph, GraphDivergence, GraphEdge, GraphEpisode, GraphNode
from ..data.rollouts import Rollouts
from ..data.segments import FloatArray, group_statistics


def forest_graphs(rollouts: Rollouts, advantages: FloatArray) -> list[CognitiveGraph]:
    """Return a graph of each group whose episodes share turns, such as those of Tree-GRPO.

    Q of a node is the mean return of the episodes through it, and its advantage the mean over their copies of its
    sampled tokens. Divergences are those of T-STAR with its published δ.

    Args:
        rollouts: Rollouts of an update.
        advantages: Advantage of each copy of a sampled token, [M].
    """
    copies, paths = rollouts.copies, rollouts.paths
    owners = rollouts.action_turn[copies.action]
    mean_advantage = group_statistics(advantages, owners, rollouts.turns).mean
    returns = rollouts.returns(penalties=True)
    statistics = group_statistics(returns, rollouts.group)
    passes = np.bincount(paths.turn, minlength=rollouts.turns)
    path_of = np.split(paths.turn, np.searchsorted(paths.episode, np.arange(1, rollouts.episodes)))
    graphs = []
    for group in range(rollouts.groups):
        episodes = np.flatnonzero(rollouts.group == group).tolist()
        turns = sorted({int(turn) for episode in episodes for turn in path_of[episode]})
        if all(passes[turn] == 1 for turn in turns):
            continue  # Independent episodes, without anything to see.
        place = {turn: index for index, turn in enumerate(turns, 1)}  # A parent precedes its children.
        full = [(0, *(place[turn] for turn in path_of[episode].tolist())) for episode in episodes]
        members: list[list[int]] = [[] for _ in range(len(turns) + 1)]
        for position, path in enumerate(full):
            for node in path:
                members[node].append(position)
        q = [float(np.mean(returns[[episodes[position] for position in passing]])) for passing in members]
        # In a tree every node but the root is the end of one edge.
        parent = {child: before for path in full for before, child in pairwise(path)}
        edges = sorted(Edge(parent[node], node, tuple(members[node])) for node in parent)
        observations = {
            int(rollouts.turn_parent[turn]): rollouts.turn_observation[turn] for turn in reversed(turns)
        }
        graphs.append(
            CognitiveGraph(
                group=group,
                task=observations.get(-1, ""),
                mean=float(statistics.mean[group]),
                std=float(statistics.std[group]),
                nodes=(
                    GraphNode(0, (), tuple(members[0]), q[0], 0.0, (), observations.get(-1)),
                    *(
                        GraphNode(
                            depth=int(rollouts.turn_depth[turn]) + 1,
                            turns=(turn,),
                            episodes=tuple(members[node]),
                            q=q[node],
                            advantage=float(mean_advantage[turn]),
                            actions=("; ".join(rollouts.turn_actions[turn]),),
                            observation=observations.get(turn),
                        )
                        for turn, node in place.items()
                    ),
                ),
                edges=tuple(
                    GraphEdge(before, child, len(taken), len(taken) / len(members[before]))
                    for before, child, taken in edges
                ),
                divergences=tuple(GraphDivergence(*one) for one in find_divergences(edges, q, THRESHOLD)),
                episodes=tuple(
                    GraphEpisode(episode, float(returns[episode]), bool(rollouts.success[episode]), path)
                    for episode, path in zip(episodes, full, strict=True)
                ),
            )
        )
    return graphs
