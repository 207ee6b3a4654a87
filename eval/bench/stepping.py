"""Benchmark of an environment's steps, forks and resets against Gymnasium's FrozenLake-v1 in the same run."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym

from .row import Row, paired, ratio

_EPISODES = 64
_STEPS = 20_000
_FORKS = 20_000


def env_rows(
    name: str,
    *,
    rounds: int,
    step_bar: float = 1.0,
    play_bar: float | None = 1.0,
    fork_bar: float = 5.0,
    label: str = "",
    **kwargs: Any,
) -> Iterator[Row]:
    """Yield three rows of an environment: steps, forks, and a random policy.

    * Steps: `env.step` alone, in random episodes of 64 tasks that are recorded and then replayed from snapshots,
      as a ratio to the steps of FrozenLake-v1 through the same `gym.make`.
    * Forks: `snapshot` and `restore` together, in microseconds.
    * Random policy: steps with the choice among the admissible actions, and with a reset to a new task at the end
      of each episode, as a ratio to FrozenLake-v1 with resets.

    Args:
        name: Gymnasium id.
        rounds: Number of paired measurements; medians are reported.
        step_bar: Target of the step ratio (a minimum).
        play_bar: Target of the ratio of the random policy (a minimum); None for levels that are hard to generate.
        fork_bar: Target of the fork time in microseconds (a maximum).
        label: Label after the id, to tell configurations of an environment apart.
        kwargs: Keyword arguments of the environment.
    """
    what = f"{name} {label}".rstrip()
    lake = gym.make("FrozenLake-v1")
    lake_steps, lake_episodes, steps, forks, episodes = paired(
        [
            _step_lake(lake, resets=False),
            _step_lake(lake, resets=True),
            _replay_episodes(gym.make(name, **kwargs)),
            _fork(gym.make(name, **kwargs)),
            _run_random_policy(gym.make(name, **kwargs)),
        ],
        rounds,
    )
    yield Row(f"{what} step", ratio(lake_steps, steps), "x", step_bar, True, _compare(lake_steps, steps))
    yield Row(f"{what} snapshot + restore", statistics.median(forks) * 1e6, "µs", fork_bar, False)
    factor = ratio(lake_episodes, episodes)
    yield Row(f"{what} random policy, new tasks", factor, "x", play_bar, True, _compare(lake_episodes, episodes))


def _compare(theirs: list[float], ours: list[float]) -> str:
    return f"FrozenLake-v1 {statistics.median(theirs) * 1e6:.1f} µs, ours {statistics.median(ours) * 1e6:.1f} µs"


def _step_lake(env: gym.Env[Any, Any], resets: bool) -> Callable[[], int]:
    rng = random.Random(0)
    actions = [rng.randrange(4) for _ in range(1000)]
    raw: Any = env.unwrapped

    def run() -> int:
        env.reset(seed=0)
        for number in range(_STEPS):
            _, _, terminated, truncated, _ = env.step(actions[number % 1000])
            if resets and (terminated or truncated):
                env.reset()
            elif terminated:
                raw.s = 0  # Back to the start without the cost of a reset.
        return _STEPS

    return run


def _replay_episodes(env: gym.Env[Any, Any]) -> Callable[[], int]:
    text_env: Any = env.unwrapped
    rng = random.Random(0)
    episodes: list[tuple[Any, list[str]]] = []
    for seed in range(_EPISODES):
        env.reset(seed=seed)
        start, ended = text_env.snapshot(), False
        actions: list[str] = []
        while not ended and len(actions) < 100:
            actions.append(rng.choice(text_env.admissible_actions()))
            _, _, terminated, truncated, _ = env.step(actions[-1])
            ended = terminated or truncated
        episodes.append((start, actions))

    def run() -> int:
        steps = 0
        while steps < _STEPS:
            for start, actions in episodes:
                text_env.restore(start)
                for action in actions:
                    env.step(action)
                steps += len(actions)
        return steps

    return run


def _run_random_policy(env: gym.Env[Any, Any]) -> Callable[[], int]:
    text_env: Any = env.unwrapped
    rng = random.Random(0)

    def run() -> int:
        env.reset()
        for _ in range(_STEPS):
            choices = text_env.admissible_actions()
            _, _, terminated, truncated, _ = env.step(choices[int(rng.random() * len(choices))])
            if terminated or truncated:
                env.reset()
        return _STEPS

    return run


def _fork(env: gym.Env[Any, Any]) -> Callable[[], int]:
    text_env: Any = env.unwrapped

    def run() -> int:
        env.reset(seed=0)
        snapshot, restore = text_env.snapshot, text_env.restore
        for _ in range(_FORKS):
            restore(snapshot())
        return _FORKS

    return run
