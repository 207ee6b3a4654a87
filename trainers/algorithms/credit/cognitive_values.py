"""Values of the cognitive graph of one group: Q, advantages, and the branches that diverge."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ...data.cognitive_graph import DivergencePair
from ...data.rollouts import Rollouts
from ...data.segments import FloatArray, IntArray, group_statistics, sum_by_group
from .cognitive import (
    ROOT,
    Divergence,
    Path,
    continuation_values,
    divergences,
    node_advantages,
    q_values,
)
from .cognitive_steps import action_text

Past = Literal["own", "merged"]
Baseline = Literal["group", "depth_matched"]


@dataclass(frozen=True)
class GroupValues:
    """Values of a group's graph. P is the number of steps of its episodes, repeated where they share turns.

    Attributes:
        group: Group.
        episodes: Its episodes.
        turns: Turns of each episode.
        paths: Nodes of each episode.
        returns: R of each episode.
        q: Q of every node, the root first.
        advantages: Advantage of each step, [P], episode by episode.
        root_advantage: Advantage of the root.
        divergences: Divergences by node; none if the returns are nearly equal.
    """

    group: int
    episodes: list[int]
    turns: list[list[int]]
    paths: Sequence[Path]
    returns: FloatArray
    q: dict[Hashable, float]
    advantages: FloatArray
    root_advantage: float
    divergences: dict[Hashable, Divergence]

    @cached_property
    def node_advantages(self) -> dict[Hashable, float]:
        """Advantage of every node, the root first: the mean over its steps. Only reports of graphs read it."""
        nodes = [node for path in self.paths for node in path]
        return {ROOT: self.root_advantage} | _means(nodes, self.advantages)


def group_values(
    group: int,
    episodes: list[int],
    turns: list[list[int]],
    paths: Sequence[Path],
    rewards: Sequence[Sequence[float]],
    *,
    gamma: float,
    baseline: Baseline,
    past: Past,
    eps: float,
    delta: float,
    floor: float,
) -> GroupValues:
    """Return the values of a group's graph.

    Args:
        group: Group.
        episodes: Its episodes.
        turns: Turns of each episode.
        paths: Nodes of each episode.
        rewards: Reward of each turn of each episode, with penalties.
        gamma, baseline, past, eps, delta, floor: See `Cognitive`.
    """
    returns = np.array([sum(row) for row in rewards])
    nodes = [node for path in paths for node in path]
    if past == "merged":
        q = q_values(paths, returns, gamma)
        step_q = np.array([q[node] for node in nodes])
    else:
        after = continuation_values(paths, rewards, gamma)
        earned = np.concatenate([*(np.cumsum(row) for row in rewards), np.zeros(0)])
        step_q = earned + np.array([after[node] for node in nodes])
        q = {ROOT: after[ROOT]} | _means(nodes, step_q)
    # The root comes first; no step leads there.
    discounts: FloatArray | float = 1.0
    if baseline == "depth_matched" and gamma != 1.0:
        weights = q_values(paths, np.ones(len(paths)), gamma)
        discounts = np.array([weights[node] for node in [ROOT, *nodes]])
    is_constant = group_statistics(returns, np.zeros(len(returns), dtype=np.int64), 1).std[0] == 0
    advantages = np.zeros(1 + len(nodes))
    if not is_constant:
        advantages = node_advantages(np.r_[q[ROOT], step_q], returns, eps, discounts=discounts)
    return GroupValues(
        group,
        episodes,
        turns,
        paths,
        returns,
        q,
        advantages[1:],
        float(advantages[0]),
        {} if is_constant else divergences(paths, q, delta, floor=floor),
    )


def _means(nodes: Sequence[Hashable], values: FloatArray) -> dict[Hashable, float]:
    """Return the mean of the values at each node."""
    index: dict[Hashable, int] = {}
    numbers = np.array([index.setdefault(node, len(index)) for node in nodes], dtype=np.int64)
    means = sum_by_group(values, numbers) / np.bincount(numbers)
    return dict(zip(index, means.tolist(), strict=True))


def _mean(values: Sequence[float]) -> float:
    """Return the mean; most branches have a single episode, for which numpy's call costs more than the rest."""
    return values[0] if len(values) == 1 else float(np.mean(values))


def divergence_pairs(values: GroupValues, rollouts: Rollouts, sampled: IntArray) -> list[DivergencePair]:
    """Return the turns that begin the best and the worst branch of each divergence.

    Of several turns at a branch's node the one counts whose episodes have the largest mean return (best) or the
    smallest (worst), and of equal ones the first. A divergence whose two turns take the same actions is left
    out: the outcomes differ by chance, not by the decision.

    Args:
        values: Values of the group.
        rollouts: Episodes.
        sampled: Number of sampled tokens of each turn, [S]; a turn without any is not taken.
    """
    if not values.divergences:
        return []
    found: dict[tuple[Hashable, Hashable], dict[int, list[float]]] = {}
    for path, turns, reward in zip(values.paths, values.turns, values.returns.tolist(), strict=True):
        for parent, node, turn in zip([ROOT, *path], path, turns, strict=False):
            if parent in values.divergences and sampled[turn]:
                found.setdefault((parent, node), {}).setdefault(turn, []).append(reward)
    pairs = []
    for parent, divergence in values.divergences.items():
        good, bad = (
            {turn: _mean(rewards) for turn, rewards in found.get((parent, node), {}).items()}
            for node in (divergence.best, divergence.worst)
        )
        if good and bad:
            best = max(good, key=lambda turn: (good[turn], -turn))
            worst = min(bad, key=lambda turn: (bad[turn], turn))
            if action_text(rollouts, best) != action_text(rollouts, worst):
                pairs.append(DivergencePair(values.group, best, worst, divergence.gap))
    return pairs
