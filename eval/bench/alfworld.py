"""What an ALFWorld game costs here and in the original engine, on the same games and commands."""

from __future__ import annotations

import contextlib
import io
import json
import logging
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
from .row import Row, cpu_seconds, paired, ratio

_STEP, _LOAD, _MEMORY = 43e-3, 0.50, 7.3
"""The original's step and load (CPU seconds, median) and memory (MiB per live game), measured on 24 real games
with alfworld 0.4.2, TextWorld 1.7.0 and a two-core machine; the yardstick where the original is not installed."""

_SOURCE = "original as measured elsewhere"


class _Workload(NamedTuple):
    """A game file and the commands to play in it."""

    task: str
    content: bytes
    commands: list[str]


def measure(peers: bool = False, games: int = 6, rounds: int = 3) -> Iterator[Row]:
    """Steps, opening, memory, planning and snapshots.

    Args:
        peers: measure the original too, where alfworld and textworld are installed; else compare with figures
            measured elsewhere.
        games: how many games are played, spread over those there are (real ones if there are any).
        rounds: how often each measurement is taken; the median counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        env, where = _make_env(Path(folder))
        assert env._library is not None
        work = _workloads(env, env._library, games)
        original = _Original.start(work, Path(folder)) if peers else None
        yield from _steps(env, work, original, rounds)
        yield from _opening(env, work, original, rounds)
        yield _memory(env, original)
        yield _walkthrough(env, where)
        yield from _snapshots(env)


def _make_env(folder: Path) -> tuple[ALFWorld, str]:
    """The world on valid_unseen, or on generated files where there is no data."""
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
    """Walks of 30 commands, one in ten of them refused, in games spread evenly over the split."""
    rng = random.Random(0)
    contents = _contents(library)
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


def _contents(library: Library) -> dict[str, bytes]:
    """The bytes of a library's files."""
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

    ours()  # warm
    mine, theirs = [], []
    for _ in range(rounds):
        if original is not None:
            original.rewind()
            theirs.append(cpu_seconds(original.steps))
        mine.append(cpu_seconds(ours))
    if original is not None:
        beside = f"original {1e3 * median(theirs):.1f} ms"
        factor = ratio(theirs, mine)
    else:
        beside, factor = f"{_SOURCE}, {1e3 * _STEP:.0f} ms", _STEP / median(mine)
    what = f"TextALFWorld-v0 step with admissible commands ({1e6 * median(mine):.0f} µs)"
    yield Row(what, factor, "x", bar=1000, beside=beside)


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
        theirs, mine_cold, mine_cached = paired([original.loads, cold, cached], rounds)
        beside = f"original {1e3 * median(theirs):.0f} ms"
        factors = (ratio(theirs, mine_cold), ratio(theirs, mine_cached))
    else:
        mine_cold, mine_cached = paired([cold, cached], rounds)
        beside = f"{_SOURCE}, {1e3 * _LOAD:.0f} ms"
        factors = (_LOAD / median(mine_cold), _LOAD / median(mine_cached))
    what = f"TextALFWorld-v0 open a game file ({1e3 * median(mine_cold):.1f} ms)"
    yield Row(what, factors[0], "x", bar=100, beside=beside)
    what = f"TextALFWorld-v0 open a game from the cache ({1e3 * median(mine_cached):.2f} ms)"
    yield Row(what, factors[1], "x", bar=2000, beside=beside)


def _memory(env: ALFWorld, original: _Original | None, count: int = 1000) -> Row:
    """Python memory per environment, `count` of them alive, each in the middle of an episode."""
    library = env._library
    assert library is not None
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        alive = []
        for number in range(count):
            other = gym.make(
                "TextALFWorld-v0", data=library.folder, split="valid_unseen", admissible=True
            ).unwrapped
            _, info = other.reset(seed=number, options={"task": number % len(library.tasks)})
            other.step(info["admissible_actions"][0])
            alive.append(other)
        mine = (tracemalloc.get_traced_memory()[0] - before) / count / 2**20
    finally:
        tracemalloc.stop()
    theirs = original.memory() if original else _MEMORY
    beside = f"{'original' if original else _SOURCE}, {theirs:.1f} MiB"
    what = f"TextALFWorld-v0 memory of {count} live environments ({1024 * mine:.0f} KiB each)"
    return Row(what, theirs / mine, "x", bar=20, beside=beside)


def _walkthrough(env: ALFWorld, where: str) -> Row:
    """All games of the split, opened anew, planned and played by the expert."""
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
    return Row(f"TextALFWorld-v0 expert plays {where}", seconds, "s", bar=2, higher_is_better=False)


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
        yield Row(f"TextALFWorld-v0 {name}", 1e6 * median(times), "µs", bar=10, higher_is_better=False)


class _Original:
    """alfworld on TextWorld, with the wrappers that its own environment uses."""

    def __init__(self, open_game: Callable[[Path], Any], jobs: list[tuple[Path, _Workload]]) -> None:
        self._open = open_game
        self._jobs = jobs
        self._alive: list[Any] = []

    @classmethod
    def start(cls, work: list[_Workload], folder: Path) -> _Original | None:
        """None where the packages are not installed."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import textworld
                from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        except ImportError as error:
            logging.getLogger(__name__).info("the original is not measured: %s", error)
            return None

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

    def loads(self) -> int:
        for path, _ in self._jobs:
            self._open(path).close()
        return len(self._jobs)

    def rewind(self) -> None:
        """Bring every game to its start; not to be timed with the steps."""
        if not self._alive:
            self._alive = [self._open(path) for path, _ in self._jobs]
        for env in self._alive:
            env.reset()

    def steps(self) -> int:
        count = 0
        for env, (_, job) in zip(self._alive, self._jobs, strict=True):
            for command in job.commands:
                env.step(command)
            count += len(job.commands)
        return count

    def memory(self) -> float:
        """MiB that one more live game takes: growth of the process over those opened now."""
        before = _resident()
        more = [self._open(path) for path, _ in self._jobs]
        for env in more:
            env.reset()
        grown = (_resident() - before) / len(more)
        for env in more:
            env.close()
        return grown


def _resident() -> float:
    """This process's resident memory in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
