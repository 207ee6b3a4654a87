"""Policy gradients by GROVE against exact ones: in a small decision process, by their mean and their noise."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from arboretum.trainers.algorithms.credit.base import Credit
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.credit.grove_credit import Grove
from arboretum.trainers.data.rollouts import Redraw, Rollouts
from arboretum.trainers.data.segments import FloatArray, IntArray
from support.rollouts import chain_rollouts

HORIZON, LENGTH = 8, 5
"""Limit of turns, and length of a corridor from a pit at -1 to the goal at `LENGTH`; the start is cell 1."""


class Sample(NamedTuple):
    """Episodes of many groups, with the cell and the action of each turn."""

    rollouts: Rollouts
    cells: IntArray
    actions: IntArray


def policy() -> FloatArray:
    """Return π(a|s) for the actions left, right and wait, [cells, 3]."""
    logits = np.random.default_rng(3).normal(0, 0.6, (LENGTH, 3))
    exponents = np.exp(logits)
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def moves(cell: int, action: int) -> list[tuple[float, int]]:
    """Return the probability of each next cell: a step slips to the other side with probability 0.2."""
    if action == 2:
        return [(1.0, cell)]
    step = 1 if action == 1 else -1
    return [(0.8, cell + step), (0.2, cell - step)]


def reward_of(cell: int, cost: float) -> float:
    return float(cell == LENGTH) - cost


def exact_gradient(pi: FloatArray, cost: float) -> FloatArray:
    """Return the gradient of the expected return with respect to the logits, [cells, 3]."""
    value = np.zeros((HORIZON + 1, LENGTH))
    q = np.zeros((HORIZON, LENGTH, 3))
    for t in range(HORIZON - 1, -1, -1):
        for cell in range(LENGTH):
            for action in range(3):
                q[t, cell, action] = sum(
                    p * (reward_of(after, cost) + (value[t + 1, after] if 0 <= after < LENGTH else 0.0))
                    for p, after in moves(cell, action)
                )
            value[t, cell] = pi[cell] @ q[t, cell]
    gradient = np.zeros_like(pi)
    reached = np.zeros(LENGTH)
    reached[1] = 1.0
    for t in range(HORIZON):
        gradient += reached[:, None] * pi * (q[t] - value[t][:, None])
        following = np.zeros(LENGTH)
        for cell in range(LENGTH):
            for action in range(3):
                for p, after in moves(cell, action):
                    if 0 <= after < LENGTH:
                        following[after] += reached[cell] * pi[cell, action] * p
        reached = following
    return gradient


@cache
def sample(size: int, groups: int, cost: float) -> Sample:
    """Return episodes of the policy.

    Args:
        size: Episodes per group.
        groups: Number of groups.
        cost: Cost of each turn.
    """
    pi, rng = policy(), np.random.default_rng(0)
    rewards: list[list[float]] = []
    states: list[list[Hashable]] = []
    taken: list[int] = []
    ends: list[int | None] = []
    limits: list[Any] = []
    for _ in range(groups * size):
        cell, own, visited = 1, [], []
        for t in range(HORIZON):
            action = int(rng.choice(3, p=pi[cell]))
            visited.append(cell)
            chances, cells = zip(*moves(cell, action), strict=True)
            cell = int(rng.choice(cells, p=chances))
            own.append(reward_of(cell, cost))
            over = not 0 <= cell < LENGTH
            taken.append(action)
            ends.append(None if over else cell)
            limits.append([[HORIZON - t, np.inf], [HORIZON - t - 1, np.inf]])
            if over:
                break
        rewards.append(own)
        states.append(list(visited))
    rollouts = chain_rollouts(
        rewards,
        [episode // size for episode in range(groups * size)],
        tokens=1,
        states=states,
        turn_actions=tuple((str(action),) for action in taken),
        turn_next_state=tuple(ends),
        turn_limits=np.array(limits),
    )
    cells = np.array([cell for visited in states for cell in visited])
    return Sample(rollouts, cells, np.array(taken))


def gradients(found: Sample, credit: Credit, pi: FloatArray) -> FloatArray:
    """Return the estimate of each group, Σ A ∇ log π(a|s) / n, [groups, cells · 3]."""
    advantages = credit.assign(found.rollouts).advantages
    scores = np.eye(3)[found.actions] - pi[found.cells]
    turn_groups = found.rollouts.group[found.rollouts.paths.episode]
    groups = found.rollouts.groups
    sums = np.zeros((groups, LENGTH, 3))
    np.add.at(sums, (turn_groups, found.cells), advantages[:, None] * scores)
    return sums.reshape(groups, -1) / (found.rollouts.episodes / groups)


def cosine(a: FloatArray, b: FloatArray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize(("key", "share"), [("state", 0.35), ("step_state", 0.65)])
@pytest.mark.parametrize("cost", [0.0, 0.1], ids=["rewarded at the goal", "and a cost of each turn"])
def test_gradient_has_the_exact_direction_and_less_noise(cost: float, key: Any, share: float) -> None:
    """Groups of 8 episodes; `share` bounds the noise power in units of RLOO's."""
    pi = policy()
    exact, found = exact_gradient(pi, cost).ravel(), sample(8, 1000, cost)
    rloo = gradients(found, Group(leave_one_out=True, scale="none"), pi)
    grove = gradients(found, Grove(key=key, scale="none"), pi)
    assert cosine(rloo.mean(axis=0), exact) > 0.985 and cosine(grove.mean(axis=0), exact) > 0.985
    assert grove.var(axis=0).sum() < share * rloo.var(axis=0).sum()


@pytest.mark.parametrize(("episodes", "groups", "low"), [(8, 1000, 0.75), (64, 120, 0.9)])
def test_gradient_of_a_small_group_is_too_small_and_that_of_a_large_one_is_not(
    episodes: int, groups: int, low: float
) -> None:
    """A turn's own action moves the values of the states behind it, and with them its baseline."""
    pi = policy()
    exact, found = exact_gradient(pi, 0.1).ravel(), sample(episodes, groups, 0.1)
    mean = gradients(found, Grove(scale="none"), pi).mean(axis=0)
    assert low < mean @ exact / (exact @ exact) < 1.1


def test_reward_of_the_turn_before_is_taken_out_of_its_baseline() -> None:
    """Where turns cost something, an unchanged baseline adds noise."""
    pi, found = policy(), sample(8, 1000, 0.1)
    choices: tuple[Literal["remaining", "unchanged"], ...] = ("remaining", "unchanged")
    noise = [gradients(found, Grove(scale="none", before=before), pi).var(axis=0).sum() for before in choices]
    assert noise[0] < 0.95 * noise[1]


def test_redrawn_outcomes_lower_the_noise_further() -> None:
    pi, found = policy(), sample(8, 1000, 0.0)
    rollouts, rng = found.rollouts, np.random.default_rng(1)
    groups = rollouts.group[rollouts.paths.episode]
    drawn: dict[tuple[int, int, int], tuple[Redraw, ...]] = {}
    redraws = []
    for key in zip(groups.tolist(), found.cells.tolist(), found.actions.tolist(), strict=True):
        if key not in drawn:
            chances, cells = zip(*moves(*key[1:]), strict=True)
            drawn[key] = tuple(
                Redraw(reward_of(cell, 0.0), cell if 0 <= cell < LENGTH else None, 1, 1)
                for cell in rng.choice(cells, p=chances, size=8).tolist()
            )
        redraws.append(drawn[key])
    credit = Grove(scale="none")
    observed = gradients(found, credit, pi)
    further = gradients(found._replace(rollouts=replace(rollouts, turn_redraws=tuple(redraws))), credit, pi)
    assert further.var(axis=0).sum() < 0.8 * observed.var(axis=0).sum()
    assert cosine(further.mean(axis=0), exact_gradient(pi, 0.0).ravel()) > 0.985
