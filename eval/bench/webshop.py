"""WebShop's speed and memory, beside what the original's text environment takes.

The original needs Java, PyTorch and a spaCy model, so its figures are quoted: process CPU time over the
1,000-product set (princeton-nlp/WebShop, pyserini 1.6 on Java 21, spaCy left out, which favours it; ± 20 %). With
`peers` and the extra `lucene`, Lucene's own search runs beside ours in the same rounds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...envs.errors import ConfigurationError
from ...envs.webshop.env import WebShop
from ...envs.webshop.export import write_data_files
from ...envs.webshop.generator import generate_products
from ...envs.webshop.search import SearchEngine, make_engine
from ...envs.webshop.shop import open_shop
from .row import Row, paired, ratio
from .webshop_crowd import crowd, serving

ORIGINAL_START = 8.5  # CPU seconds
ORIGINAL_STEPS = 74.0  # a CPU second, scripted episodes
ORIGINAL_SEARCH = 3.2e-3  # CPU seconds, Lucene alone

_CHILD = """
import json, pathlib, re, sys, time
import gymnasium as gym
import arboretum
options = json.loads(sys.argv[1])
envs = [gym.make("TextWebShop-v0", **options).unwrapped for _ in range(int(sys.argv[2]))]
for i, env in enumerate(envs):
    env.reset(seed=i)
    for action in env.expert_actions() if len(envs) > 1 else ():
        env.step(action)
# Not getrusage: its peak counts the parent process, which was this one before it became Python.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
print(json.dumps({"cpu": time.process_time(), "peak": peak / 1024}))
"""


def _child(options: dict[str, Any], count: int = 1) -> dict[str, float]:
    """CPU seconds and peak megabytes of a fresh process that makes so many environments."""
    command = [sys.executable, "-c", _CHILD, json.dumps(options), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _scripted(env: WebShop, episodes: int) -> Callable[[], int]:
    """The expert's episodes, planned beforehand so that the world alone is measured; each call plays others."""
    scripts: list[tuple[str, list[str]]] = []
    for index in range(0, len(env.tasks), max(1, len(env.tasks) // (episodes * 8))):
        env.reset(options={"task": index})
        scripts.append((env.task, env.expert_actions() or []))
    turns = itertools.cycle(scripts)

    def run() -> int:
        steps = 0
        env.shop.clear_search_cache()  # Cached results of planning would distort the measurement.
        for task, actions in itertools.islice(turns, episodes):
            env.reset(options={"task": task})
            for action in actions:
                env.step(action)
            steps += len(actions)
        return steps

    return run


def _searches(find: SearchEngine, queries: list[str]) -> Callable[[], int]:
    def run() -> int:
        for query in queries:
            find(query, 50)
        return len(queries)

    return run


def measure(peers: bool = False, rounds: int = 5, large: bool = True) -> Iterator[Row]:
    """Start, steps, searches and memory over 1,000 products, then a catalog of 100,000.

    Real data is used where `ARBORETUM_DATA` names it, else as many generated products.

    Args:
        peers: measure Lucene beside the search, if the extra `lucene` is installed.
        rounds: repetitions of each measurement.
        large: also generate and open 100,000 products (about half a minute, 300 MB of disk).
    """
    thousand: dict[str, Any] = {"num_products": 1000, "tagger": "letters"}
    env = WebShop(**thousand)  # fills the cache: what is measured is the start from then on
    starts = [_child(thousand)["cpu"] for _ in range(rounds)]
    beside = f"original {ORIGINAL_START} s CPU (quoted)"
    yield Row("WebShop start, 1,000 products", statistics.median(starts), "s", 0.4, False, beside)

    steps = [1 / seconds for (seconds,) in zip(*paired([_scripted(env, 150)], rounds), strict=True)]
    beside = f"original {ORIGINAL_STEPS:.0f} steps a CPU second (quoted); ours {statistics.median(steps):.0f}"
    yield Row("WebShop scripted steps", statistics.median(steps) / ORIGINAL_STEPS, "x", 50, True, beside)

    queries = [env.shop.goal(i).words.lower() for i in range(0, len(env.shop.goals), len(env.shop.goals) // 150)]
    contenders = [_searches(make_engine("bm25", env.shop.catalog), queries)]
    if peers:
        with contextlib.suppress(ConfigurationError):  # the extra is not installed
            contenders.append(_searches(make_engine("lucene", env.shop.catalog), queries))
    for run in contenders:
        run()  # warm: Java compiles what it runs often
    ours, *theirs = paired(contenders, rounds)
    own = statistics.median(ours)
    beside = f"Lucene in the original {ORIGINAL_SEARCH * 1e3} ms CPU (quoted); ours {own * 1e3:.3f} ms"
    yield Row("WebShop search alone", ORIGINAL_SEARCH / own, "x", 10, True, beside)
    if theirs:
        beside = f"Lucene in this process {statistics.median(theirs[0]) * 1e3:.3f} ms CPU"
        yield Row("WebShop search alone, paired", ratio(theirs[0], ours), "x", None, True, beside)

    beside = "original about 900 MB each process (quoted)"
    yield Row("WebShop 64 environments, peak", _child(thousand, 64)["peak"], "MB", 150, False, beside)
    yield from _server()
    if large:
        yield from _hundred_thousand()


def _server() -> Iterator[Row]:
    if not all(importlib.util.find_spec(name) for name in ("flask", "waitress")):
        return
    environment = os.environ.pop("ARBORETUM_DATA", None)  # goals of the generated shop can all be met
    try:
        with serving(tagger="letters") as address:
            times = crowd(address, open_shop(tagger="letters"), customers=50)
    finally:
        if environment is not None:
            os.environ["ARBORETUM_DATA"] = environment
    beside = f"p50 {statistics.median(times) * 1e3:.0f} ms over {len(times)} answers, customers on the same cores"
    p95 = statistics.quantiles(times, n=20)[18] * 1e3
    yield Row("WebShop server, 50 customers, p95", p95, "ms", 100, False, beside)


def _hundred_thousand() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="arboretum-bench-") as scratch:
        data = Path(scratch) / "data"
        write_data_files(generate_products(100_000), data)
        options = {"data": str(data), "tagger": "letters"}
        cache = os.environ.get("ARBORETUM_CACHE")
        os.environ["ARBORETUM_CACHE"] = str(Path(scratch) / "cache")
        try:
            first, second = _child(options), _child(options)
            size = sum(path.stat().st_size for path in data.iterdir()) / 2**20
            beside = f"{size:.0f} MB of JSON, {first['cpu']:.1f} s CPU"
            yield Row("WebShop first load of 100,000, peak", first["peak"], "MB", None, False, beside)
            yield Row(
                "WebShop second start, 100,000", second["cpu"], "s", 2, False, f"{second['peak']:.0f} MB peak"
            )
            shop = open_shop(data, tagger="letters")
        finally:
            if cache is None:
                del os.environ["ARBORETUM_CACHE"]
            else:
                os.environ["ARBORETUM_CACHE"] = cache
        find = make_engine("bm25", shop.catalog)
        times = []
        for i in range(0, len(shop.goals), len(shop.goals) // 300):
            query = shop.goal(i).words.lower()
            start = time.perf_counter()
            find(query, 50)
            times.append(time.perf_counter() - start)
        beside = f"p95 {statistics.quantiles(times, n=20)[18] * 1e3:.1f} ms"
        yield Row("WebShop search p50, 100,000", statistics.median(times) * 1e3, "ms", 10, False, beside)
