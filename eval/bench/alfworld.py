"""Benchmark of ALFWorld against the original engine, on the same games and commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import gymnasium as gym

from ...envs.alfworld import ALFWorld
from ...envs.alfworld.gamefile import read_game
from ...envs.alfworld.generator import generate_file
from ...envs.alfworld.library import Library
from ...envs.data import archive_members, data_folder
from .row import Row, cpu_seconds, not_measured, paired, ratio

_STEP, _LOAD, _MEMORY = 43e-3, 0.50, 7.3
"""Baseline where the original is not installed: median CPU seconds of its steps and of loading a game, and MiB per
live game, measured on 24 real games with alfworld 0.4.2 and TextWorld 1.7.0 on a two-core machine."""

_SOURCE = "original (recorded)"


class _Workload(NamedTuple):
    """Game file and the commands that are executed in it."""

    task: str
    content: bytes
    commands: list[str]


def measure(peers: bool = False, games: int = 6, rounds: int = 3) -> Iterator[Row]:
    """Yield the rows of ALFWorld: steps, opening a game, memory, planning and snapshots.

    Args:
        peers: Also measure the original, where alfworld and textworld are installed; otherwise recorded figures of
            the original are the baseline.
        games: Number of games, spread evenly over the split.
        rounds: Number of paired measurements; medians are reported.
    """
    with tempfile.TemporaryDirectory() as folder:
        env, games_name = _make_env(Path(folder))
        assert env._library is not None
        work = _workloads(env, env._library, games)
        missing = not_measured("the original ALFWorld", "peers", "textworld", "alfworld") if peers else None
        if missing:
            yield missing
        original = _Original.start(work, Path(folder)) if peers and not missing else None
        yield from _steps(env, work, original, rounds)
        yield from _opening(env, work, original, rounds)
        yield _memory(env, original)
        yield _expert(env, games_name)
        yield from _snapshots(env)


def _make_env(folder: Path) -> tuple[ALFWorld, str]:
    """Return the environment on valid_unseen, or on generated games without data, and the name of the games."""
    real = data_folder("alfworld")
    if real is None:
        for index in range(134):
            path = folder / "json_2.1.1" / "valid_unseen" / "generated" / str(index) / "game.tw-pddl"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(generate_file(f"valid_unseen/{index}")))
    env = gym.make(
        "TextALFWorld-v0", data=real or folder, split="valid_unseen", max_steps=None, admissible=True
    ).unwrapped
    assert isinstance(env, ALFWorld)
    return env, "valid_unseen" if real else "134 generated games"


def _workloads(env: ALFWorld, library: Library, games: int) -> list[_Workload]:
    """Return random sequences of 30 commands, one in ten of them refused, in games spread over the split."""
    rng = random.Random(0)
    contents = _read_game_files(library)
    work = []
    for number in range(games):
        task = library.tasks[number * len(library.tasks) // games]
        _, info = env.reset(seed=0, options={"task": task})
        commands: list[str] = []
        while len(commands) < 30 and info["admissible_actions"]:
            command = rng.choice(info["admissible_actions"]) if rng.random() < 0.9 else "think: where is it?"
            commands.append(command)
            *_, info = env.step(command)
        work.append(_Workload(task, contents[task], commands))
    return work


def _read_game_files(library: Library) -> dict[str, bytes]:
    """Return the content of a library's game files, by task."""
    contents: dict[str, bytes] = {}
    for path in sorted(library.folder.rglob("*")):
        if path.name.endswith(".tw-pddl"):
            contents[path.relative_to(library.folder).as_posix()] = path.read_bytes()
        elif ".tar" in path.name:
            contents |= {name: text for name, text in archive_members(path) if name in library.tasks}
    return contents


def _steps(env: ALFWorld, work: list[_Workload], original: _Original | None, rounds: int) -> Iterator[Row]:
    def ours() -> int:
        count = 0
        for _ in range(20):
            for job in work:
                env.reset(seed=0, options={"task": job.task})
                for command in job.commands:
                    env.step(command)
                count += len(job.commands)
        return count

    ours()  # warm-up
    mine, theirs = [], []
    for _ in range(rounds):
        if original is not None:
            original.reset()
            theirs.append(cpu_seconds(original.step))
        mine.append(cpu_seconds(ours))
    if original is not None:
        details = f"original {1e3 * median(theirs):.1f} ms"
        factor = ratio(theirs, mine)
    else:
        details, factor = f"{_SOURCE} {1e3 * _STEP:.0f} ms", _STEP / median(mine)
    what = f"TextALFWorld-v0 step with admissible commands ({1e6 * median(mine):.0f} µs)"
    yield Row(what, factor, "x", target=1000, details=details)


def _opening(env: ALFWorld, work: list[_Workload], original: _Original | None, rounds: int) -> Iterator[Row]:
    library = env._library
    assert library is not None

    def cold() -> int:
        for job in work:
            read_game(job.content)
        return len(work)

    def cached() -> int:
        for _ in range(20):
            for job in work:
                library._games.clear()
                env._task = None
                env.reset(seed=0, options={"task": job.task})
        return 20 * len(work)

    cold()
    if original is not None:
        theirs, mine_cold, mine_cached = paired([original.load, cold, cached], rounds)
        details = f"original {1e3 * median(theirs):.0f} ms"
        factors = (ratio(theirs, mine_cold), ratio(theirs, mine_cached))
    else:
        mine_cold, mine_cached = paired([cold, cached], rounds)
        details = f"{_SOURCE} {1e3 * _LOAD:.0f} ms"
        factors = (_LOAD / median(mine_cold), _LOAD / median(mine_cached))
    what = f"TextALFWorld-v0 opening a game file ({1e3 * median(mine_cold):.1f} ms)"
    yield Row(what, factors[0], "x", target=100, details=details)
    what = f"TextALFWorld-v0 opening a cached game ({1e3 * median(mine_cached):.2f} ms)"
    yield Row(what, factors[1], "x", target=2000, details=details)


def _memory(env: ALFWorld, original: _Original | None, count: int = 1000) -> Row:
    """Return the row of Python memory per environment, with `count` environments amid an episode."""
    library = env._library
    assert library is not None
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        live = []
        for number in range(count):
            other = gym.make(
                "TextALFWorld-v0", data=library.folder, split="valid_unseen", admissible=True
            ).unwrapped
            _, info = other.reset(seed=number, options={"task": number % len(library.tasks)})
            other.step(info["admissible_actions"][0])
            live.append(other)
        mine = (tracemalloc.get_traced_memory()[0] - before) / count / 2**20
    finally:
        tracemalloc.stop()
    theirs = original.memory() if original else _MEMORY
    details = f"{'original' if original else _SOURCE} {theirs:.1f} MiB"
    what = f"TextALFWorld-v0 memory of {count} live environments ({1024 * mine:.0f} KiB each)"
    return Row(what, theirs / mine, "x", target=20, details=details)


def _expert(env: ALFWorld, games_name: str) -> Row:
    """Return the row of the expert: every game of the split is opened without the cache, planned and played."""
    library = env._library
    assert library is not None
    library._games.clear()
    start = time.process_time()
    for task in library.tasks:
        env.reset(seed=0, options={"task": task})
        plan = env.expert_actions()
        assert plan, f"{task} has no plan"
        for command in plan:
            *_, info = env.step(command)
        assert info["success"], f"{task} is not won"
    seconds = time.process_time() - start
    return Row(f"TextALFWorld-v0 expert on {games_name}", seconds, "s", target=2, higher_is_better=False)


def _snapshots(env: ALFWorld) -> Iterator[Row]:
    env.reset(seed=0)
    taken = env.snapshot()

    def snapshot() -> int:
        for _ in range(10_000):
            env.snapshot()
        return 10_000

    def restore() -> int:
        for _ in range(10_000):
            env.restore(taken)
        return 10_000

    for name, run in (("snapshot", snapshot), ("restore", restore)):
        (times,) = paired([run], 3)
        yield Row(f"TextALFWorld-v0 {name}", 1e6 * median(times), "µs", target=10, higher_is_better=False)


class _Original:
    """The original: alfworld on TextWorld, with the wrappers of its own environment."""

    def __init__(self, open_game: Callable[[Path], Any], jobs: list[tuple[Path, _Workload]]) -> None:
        self._open = open_game
        self._jobs = jobs
        self._alive: list[Any] = []

    @classmethod
    def start(cls, work: list[_Workload], folder: Path) -> _Original:
        """Open the original on the games."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos

        def open_game(path: Path) -> Any:
            infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return textworld.start(str(path), infos, wrappers=[AlfredDemangler(shuffle=False), AlfredInfos])

        jobs = []
        for number, job in enumerate(work):
            path = folder / f"original-{number}.tw-pddl"
            path.write_bytes(job.content)
            jobs.append((path, job))
        return cls(open_game, jobs)

    def load(self) -> int:
        """Open and close every game; return their number."""
        for path, _ in self._jobs:
            self._open(path).close()
        return len(self._jobs)

    def reset(self) -> None:
        """Reset every game; not part of the measured steps."""
        if not self._alive:
            self._alive = [self._open(path) for path, _ in self._jobs]
        for env in self._alive:
            env.reset()

    def step(self) -> int:
        """Execute the commands of every game; return their number."""
        count = 0
        for env, (_, job) in zip(self._alive, self._jobs, strict=True):
            for command in job.commands:
                env.step(command)
            count += len(job.commands)
        return count

    def memory(self) -> float:
        """Return the MiB per live game: the growth of the process when all games are opened once more."""
        before = _resident_memory()
        more = [self._open(path) for path, _ in self._jobs]
        for env in more:
            env.reset()
        growth = (_resident_memory() - before) / len(more)
        for env in more:
            env.close()
        return growth


def _resident_memory() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
