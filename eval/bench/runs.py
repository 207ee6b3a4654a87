"""Benchmark of runs with many episodes: first page, further pages, resuming, report, and memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...agents.play import Job, play
from ...agents.reference import RandomAgent
from ..agents import NamedAgent
from ..episode_filter import EpisodeFilter
from ..evaluate import prepare
from ..run_index import EPISODES_FILE, INDEX_FILE, open_index
from ..store import Store, encode_episode, read_episode
from ..suite import parse_suite
from .row import Row

EPISODES = 200_000
"""Episodes of the run that is opened and resumed."""

MISSING = 10
"""Episodes that are missing when it is resumed."""

_PLAYED = 500
"""Episodes that are played; the lines of the run repeat them with the tasks, repeats and seeds of its plan."""

_LAKES = 2000
"""Tasks of the run."""

_MEMORY = """
import resource, sys
from pathlib import Path
from rich.console import Console
from {package}.eval.agents import NamedAgent
from {package}.eval import evaluate, runner
from {package}.eval.store import Store
from {package}.eval.suite import parse_suite
text, folder, episodes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
prepared = evaluate.prepare(parse_suite(text, "memory.yaml"), [NamedAgent("random")], references=False, out=folder)
store = Store(folder, prepared.manifest)
at = {{}}
def note(progress):
    if progress.done in (episodes // 2, episodes):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        at[progress.done] = pages * resource.getpagesize()
runner.run(prepared.plan, prepared.agents, store, on_progress=note)
store.close()
low, high = sorted(at)
print((at[high] - at[low]) / (high - low))
"""


def measure(peers: bool = False, episodes: int = EPISODES) -> Iterator[Row]:
    """Yield the wall times of a run's first page, of further pages, and of resuming it; and memory per episode.

    Args:
        peers: Unused; there is no original system.
        episodes: Number of episodes of the run.
    """
    del peers
    with tempfile.TemporaryDirectory() as name:
        suite = Path(name) / "many.yaml"
        suite.write_text(
            f"entries:\n  - {{env: TextFrozenLake-v0, split: test, max_steps: 4, tasks: {_LAKES},"
            f" repeats: {episodes // _LAKES}}}\n",
            encoding="utf-8",
        )
        folder = Path(name) / "run"
        written = make_run(suite, folder, episodes)
        size = (folder / EPISODES_FILE).stat().st_size / 1e6
        yield Row(
            "writing an episode", 1e6 * written / episodes, "µs", details=f"{size:.0f} MB of {EPISODES_FILE}"
        )
        yield from _opening(folder, episodes)
        yield _resuming(suite, folder, episodes)
    yield from _memory()


def make_run(suite: Path, folder: Path, episodes: int) -> float:
    """Write a run of random episodes that lacks its last `MISSING`; return the seconds for encoding and storing.

    Args:
        suite: File of a suite with one entry.
        folder: Folder of the run, which must not exist.
        episodes: Number of episodes of the suite.
    """
    prepared = prepare(
        parse_suite(suite.read_text(encoding="utf-8"), str(suite)),
        [NamedAgent("random")],
        references=False,
        out=folder,
    )
    plan = prepared.plan
    (entry,) = plan.suite.entries
    jobs = [Job(task, 0) for task in plan.tasks[entry.name][:_PLAYED]]
    played = list(play(RandomAgent(), [entry.make()], jobs))
    store = Store(folder, prepared.manifest)
    store.record_tasks(plan.expected, plan.digests, plan.facts)
    store.index.keep_planned_tasks(plan.searches, plan.tasks)
    start = time.perf_counter()
    for number, (key, _) in enumerate(plan.keys("random")):
        if number == episodes - MISSING:
            break
        episode = played[number % len(played)]
        episode.task, episode.seed = key.task, plan.suite.episode_seed(entry, key.task, key.repeat)
        store.append(encode_episode(key, episode))
    store.close()
    return time.perf_counter() - start


def _opening(folder: Path, episodes: int) -> Iterator[Row]:
    def first_page() -> None:
        with open_index(folder) as index:
            assert len(index.page()) == 50

    name = f"first page of {episodes:,} episodes"
    yield Row(name, _seconds(first_page), "s", target=1.0, higher_is_better=False)
    with open_index(folder) as index:
        pages: dict[str, Callable[[], object]] = {
            "sorted by return": lambda: index.page(sort="return", descending=True),
            "last, sorted by task": lambda: index.page(sort="task", offset=episodes - 100),
            "filtered by task and steps": lambda: index.page(EpisodeFilter(task="99", min_steps=10), sort="steps"),
            "count": lambda: index.count(EpisodeFilter(success=True)),
            "counts by agent": index.cells,
            "one episode": lambda: read_episode(folder, index.page(offset=episodes // 2, limit=1)[0]),
        }
        seconds = {what: _seconds(page) for what, page in pages.items()}
    slowest = max(seconds, key=lambda what: seconds[what])
    details = ", ".join(f"{what} {1000 * value:.0f} ms" for what, value in seconds.items())
    yield Row(
        f"slowest page ({slowest})", 1000 * seconds[slowest], "ms", 300.0, higher_is_better=False, details=details
    )
    (folder / INDEX_FILE).rename(folder / "kept")
    start = time.perf_counter()
    open_index(folder).close()
    yield Row("making the index anew", time.perf_counter() - start, "s")
    # The new index lacks the names of the planned tasks.
    (folder / "kept").replace(folder / INDEX_FILE)


def _resuming(suite: Path, folder: Path, episodes: int) -> Row:
    """Return the CPU seconds from the start of the command to the first new episode, or else its wall time."""
    command = [sys.executable, "-m", f"{__name__.split('.')[0]}.cli", "eval", str(suite), "--agent", "random"]
    file = folder / EPISODES_FILE
    size = file.stat().st_size
    start = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--no-references", "--workers", "1", "--out", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while file.stat().st_size == size and process.poll() is None:
        time.sleep(0.005)
    first = time.perf_counter() - start
    cpu = _cpu_seconds(process.pid)
    process.wait()
    whole = time.perf_counter() - start
    report = (folder / "report.html").stat().st_size / 1e6
    return Row(
        f"resuming with {MISSING} missing",
        cpu or first,
        "s",
        target=2.0,
        higher_is_better=False,
        details=f"wall time {first:.1f} s, of the whole command {whole:.1f} s, report.html {report:.1f} MB",
    )


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(episodes: int = 120_000) -> Iterator[Row]:
    """Yield the growth of resident memory per played episode, in bytes, after the first half of a run."""
    if not Path("/proc/self/statm").exists():
        return
    entry = f"{{env: TextFrozenLake-v0, max_steps: 2, tasks: 100, repeats: {episodes // 100}}}"
    text = f"name: memory\nentries:\n  - {entry}\n"
    code = _MEMORY.format(package=__name__.split(".")[0])
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-c", code, text, f"{name}/run", str(episodes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    yield Row(
        "memory growth per episode",
        float(done.stdout),
        "B",
        target=64.0,
        higher_is_better=False,
        details=f"resident memory from {episodes // 2:,} to {episodes:,} random lakes",
    )


def _seconds(run: Callable[[], object], rounds: int = 3) -> float:
    """Return the median wall time of a function, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
