"""Step, fork and reset speed of a world, against Gymnasium's raw FrozenLake-v1 in the same run."""

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
    name: str, *, rounds: int, step_bar: float, fork_bar: float = 5.0, label: str = "", **kwargs: Any
) -> Iterator[Row]:
    """A world's step ratio, its fork time, and its ratio with everything else that random play needs.

    The first row is `env.step` alone: random episodes of 64 tasks, recorded and then replayed from snapshots,
    against raw FrozenLake-v1 stepped through the same `gym.make`. The last row is random play from nothing:
    choosing among the legal actions, and a reset to a task never seen before at each end of an episode.

    Args:
        name: Gymnasium id.
        rounds: paired rounds; medians are reported.
        step_bar: least step ratio.
        fork_bar: most microseconds for snapshot and restore together.
        label: told beside the id.
        kwargs: options of the world.
    """
    what = f"{name} {label}".rstrip()
    lake = gym.make("FrozenLake-v1")
    bare, played, ours, forks, play = paired(
        [
            _lake(lake, resets=False),
            _lake(lake, resets=True),
            _replay(gym.make(name, **kwargs)),
            _forks(gym.make(name, **kwargs)),
            _random_play(gym.make(name, **kwargs)),
        ],
        rounds,
    )
    yield Row(f"{what} step", ratio(bare, ours), "x", step_bar, True, _beside(bare, ours))
    yield Row(f"{what} snapshot + restore", statistics.median(forks) * 1e6, "µs", fork_bar, False)
    yield Row(f"{what} random play, new tasks", ratio(played, play), "x", None, True, _beside(played, play))


def _beside(theirs: list[float], ours: list[float]) -> str:
    return f"FrozenLake-v1 {statistics.median(theirs) * 1e6:.1f} µs, ours {statistics.median(ours) * 1e6:.1f} µs"


def _lake(env: gym.Env[Any, Any], resets: bool) -> Callable[[], int]:
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
                raw.s = 0  # what a reset would do, at no cost
        return _STEPS

    return run


def _replay(env: gym.Env[Any, Any]) -> Callable[[], int]:
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


def _random_play(env: gym.Env[Any, Any]) -> Callable[[], int]:
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


def _forks(env: gym.Env[Any, Any]) -> Callable[[], int]:
    text_env: Any = env.unwrapped

    def run() -> int:
        env.reset(seed=0)
        snapshot, restore = text_env.snapshot, text_env.restore
        for _ in range(_FORKS):
            restore(snapshot())
        return _FORKS

    return run
