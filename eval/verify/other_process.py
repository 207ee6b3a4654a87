"""Replay of episodes in another process, whose string hashes have another salt.

Run as `python -m arboretum.eval.verify.other_process`, with a request as JSON on standard input and the reply as
JSON on standard output. Nothing is unpickled: an episode is its task, its seed and its actions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...envs.core import TextEnv
from ...envs.registry import make_env
from .episodes import Recording, digests, replay, reset


class Elsewhere(NamedTuple):
    """Reply of the other process.

    Attributes:
        episodes: Digests of the steps of every episode.
        pins: Pins of the requested tasks.
        tasks: Number of tasks.
    """

    episodes: list[list[str]]
    pins: list[list[str]]
    tasks: int


def pin_tasks(env: TextEnv[Any], indices: Iterable[int]) -> list[list[str]]:
    """Return the name, the configuration, the digest of the level and the first observation of tasks.

    Args:
        env: The environment; it is reset.
        indices: Indices of the tasks.
    """
    pins = []
    for index in indices:
        task = env.tasks[index]
        first = reset(env, task, 0)
        snapshot = env.snapshot() if callable(getattr(env, "snapshot", None)) else None
        level = ("", "") if snapshot is None else (snapshot.identity, snapshot.level)
        pins.append([task, *level, first.observation])
    return pins


def replay_elsewhere(
    env: str, kwargs: Mapping[str, Any], recordings: Sequence[Recording], indices: Sequence[int]
) -> Elsewhere:
    """Replay episodes and pin tasks in another process.

    Args:
        env: Id of the environment.
        kwargs: Its arguments, as JSON values.
        recordings: The episodes.
        indices: Indices of the tasks to pin.

    Raises:
        RuntimeError: The process failed; the message is the last line of its errors.
    """
    episodes = [[one.task, one.seed, one.actions] for one in recordings]
    request = {"env": env, "kwargs": kwargs, "episodes": episodes, "indices": indices}
    salt = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    path = os.pathsep.join(folder for folder in sys.path if folder)
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(request),
        env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["another process failed"])[-1])
    return Elsewhere(**json.loads(done.stdout))


def answer(request: Mapping[str, Any]) -> Elsewhere:
    """Return the reply to a request of `replay_elsewhere`."""

    def make() -> TextEnv[Any]:
        return make_env(request["env"], **request["kwargs"])

    episodes = [digests(replay(make(), task, seed, actions)) for task, seed, actions in request["episodes"]]
    env = make()
    return Elsewhere(episodes, pin_tasks(env, request["indices"]), len(env.tasks))


if __name__ == "__main__":
    # The reply has standard output to itself: environments, and libraries in C, may print.
    with open(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        output.write(json.dumps(answer(json.load(sys.stdin))._asdict()))
