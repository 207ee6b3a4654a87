"""Panels of tasks: the tasks on which all arms of one seed train, and the policy from which they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...envs.errors import unknown_name
from ...envs.seeding import stable_seed
from ..data.segments import FloatArray
from .enumeration import enumerate_env, make_env, make_lake
from .mdp import Mdp, evaluate, join, optimal_actions
from .plans import with_plans
from .synthetic import make_graph, make_lock
from .table_policy import action_probabilities

INITIAL_SUCCESS = 0.1
"""Success at which training starts, of each task for which it can be reached."""
TASKS = 8
"""Locks, graphs or lakes of a panel; twice as many Sokoban levels, and three times as many starts of blocks."""
SOKOBAN_SHORTEST = 5
"""Fewest moves of a Sokoban level's optimal solution."""
PLANS = 4
"""Plans of the families that have plans."""
TASK_NAME = "train/{}"


class Panel(NamedTuple):
    """Tasks of one seed.

    Attributes:
        mdp: Tasks.
        logits: Logits of the initial policy, [N, A].
        budget: Number of generated steps of a training run.
    """

    mdp: Mdp
    logits: FloatArray
    budget: float


@dataclass(frozen=True)
class TaskFamily:
    """Family of tasks.

    Attributes:
        about: Description in one line.
        make: Function of a generator that returns the tasks of one seed.
        episodes: Budget of a run at a fixed learning rate: episodes per task, of the initial policy's mean length.
    """

    about: str
    make: Callable[[np.random.Generator], Mdp]
    episodes: int = 160


def _locks(depth: int, good: int) -> Callable[[np.random.Generator], Mdp]:
    return lambda rng: join([make_lock(depth, good, rng) for _ in range(TASKS)])


def _graphs(depth: int, width: int, slip: float = 0.0) -> Callable[[np.random.Generator], Mdp]:
    return lambda rng: join([make_graph(depth, width, slip, rng) for _ in range(TASKS)])


def _lakes(size: int, horizon: int, success_rate: float = 1.0) -> Callable[[np.random.Generator], Mdp]:
    def make(rng: np.random.Generator) -> Mdp:
        numbers = rng.integers(0, 2**31, TASKS)
        return join([make_lake(TASK_NAME.format(number), size, success_rate, horizon) for number in numbers])

    return make


def _sokoban(rng: np.random.Generator) -> Mdp:
    env = make_env("TextSokoban-v0", reward_mode="sparse")
    levels: list[Mdp] = []
    while len(levels) < 2 * TASKS:
        task = TASK_NAME.format(rng.integers(0, 2**31))
        env.reset(seed=0, options={"task": task})
        if len(env.expert_actions() or ()) >= SOKOBAN_SHORTEST:
            levels.append(enumerate_env(env, task, 20))
    return join(levels)


def _blocks(rng: np.random.Generator) -> Mdp:
    """Return one goal of four blocks with 24 starts that share a table; none of them is the goal."""
    env = make_env("TextBlocksworld-v0", blocks=4, family="mixed")
    task = enumerate_env(env, f"train/{rng.integers(0, 2**31)}", 10)
    reachable = np.flatnonzero(_distances(task) <= task.horizon)
    return replace(task, starts=np.sort(rng.choice(reachable, 3 * TASKS, replace=False)))


def _distances(mdp: Mdp) -> FloatArray:
    """Return the fewest steps to success from each row of deterministic tasks, [N]; inf where there is none."""
    wins = mdp.rewards[:, :, 0] > 0
    distances = np.where(wins.any(axis=1), 1.0, np.inf)
    for _ in range(mdp.rows):
        steps = 1.0 + np.r_[distances, np.inf][mdp.following[:, :, 0]].min(axis=1)
        if np.array_equal(nearer := np.minimum(distances, steps), distances):
            break
        distances = nearer
    return distances


def _planned(make: Callable[[np.random.Generator], Mdp]) -> Callable[[np.random.Generator], Mdp]:
    return lambda rng: with_plans(make(rng), PLANS)


FAMILIES: Mapping[str, TaskFamily] = {
    "lock12f1": TaskFamily("locks of 12 levels with one good action of four", _locks(12, 1)),
    "lock12f2": TaskFamily("locks of 12 levels with two good actions of four", _locks(12, 2)),
    "lock24f1": TaskFamily("locks of 24 levels with one good action of four", _locks(24, 1)),
    "graph10w8": TaskFamily("graphs of 10 layers of 8 nodes", _graphs(10, 8)),
    "graph10w8s": TaskFamily("the same with one random action in five", _graphs(10, 8, 0.2)),
    "lake4": TaskFamily("FrozenLake, 4×4, not slippery, 20 steps", _lakes(4, 20)),
    "lake8": TaskFamily("FrozenLake, 8×8, not slippery, 40 steps", _lakes(8, 40)),
    "lake4s": TaskFamily("FrozenLake, 4×4, slippery as Gymnasium's, 30 steps", _lakes(4, 30, 1.0 / 3.0), 320),
    "sokoban": TaskFamily("TextSokoban-v0 levels of 5 or more moves, 20 steps", _sokoban),
    "blocks": TaskFamily("TextBlocksworld-v0, four blocks, 24 starts of one goal, 10 steps", _blocks),
    "graph10w8-plans": TaskFamily("graph10w8, with one of four plans in the first turn", _planned(_graphs(10, 8))),
    "lake8-plans": TaskFamily("lake8, with one of four plans in the first turn", _planned(_lakes(8, 40))),
    "sokoban-plans": TaskFamily("sokoban, with one of four plans in the first turn", _planned(_sokoban)),
}
"""Families by name."""


def get_family(name: str) -> TaskFamily:
    """Return a family of tasks.

    Raises:
        ConfigurationError: Unknown name.
    """
    if name not in FAMILIES:
        raise unknown_name("task of the laboratory", name, FAMILIES)
    return FAMILIES[name]


def make_panel(name: str, seed: int) -> Panel:
    """Return the tasks of a seed with the initial policy.

    Logits are c · [the action is optimal] + noise of standard normal distribution; c is chosen by bisection for
    each table such that the exact success is `INITIAL_SUCCESS`, as far as a policy of this kind reaches it.

    Args:
        name: Name of the family.
        seed: Seed of the tasks and of the noise.
    """
    family = get_family(name)
    rng = np.random.Generator(np.random.PCG64(stable_seed("laboratory", name, seed)))
    mdp = family.make(rng)
    logits = _calibrate(mdp, rng.standard_normal(mdp.valid.shape))
    first = evaluate(mdp, action_probabilities(logits))
    return Panel(mdp, logits, family.episodes * first.steps)


def _calibrate(mdp: Mdp, noise: FloatArray, target: float = INITIAL_SUCCESS) -> FloatArray:
    """Return the logits whose exact success is the target; see `make_panel`."""
    optimal = optimal_actions(mdp)
    low, high = np.full(mdp.tables, -12.0), np.full(mdp.tables, 12.0)
    tables = mdp.owner[mdp.starts]
    logits = noise
    for _ in range(30):
        middle = (low + high) / 2
        logits = np.where(mdp.valid, noise + middle[mdp.owner][:, None] * optimal, -np.inf)
        success = np.zeros(mdp.tables)
        success[tables] = evaluate(mdp, action_probabilities(logits)).success
        low, high = np.where(success < target, middle, low), np.where(success < target, high, middle)
    return logits
