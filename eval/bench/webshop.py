"""Benchmark of WebShop's speed and memory against the original text environment.

The original requires Java, PyTorch and a spaCy model, so the baseline is recorded: process CPU time on the
1,000-product set (princeton-nlp/WebShop, pyserini 1.6 on Java 21, without spaCy, which favors it; ± 20 %). With
`peers` and the extra `lucene`, Lucene's search is measured in the same rounds as ours.
"""

from __future__ import annotations

import contextlib
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
from .row import Row, not_measured, paired, ratio
from .webshop_load import serve_shop, simulate_customers

ORIGINAL_START = 8.5  # CPU seconds
ORIGINAL_STEPS = 74.0  # per CPU second, in scripted episodes
ORIGINAL_SEARCH = 3.2e-3  # CPU seconds, Lucene only

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
# Not getrusage: its peak includes the memory of the parent before the child executed Python.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
print(json.dumps({"cpu": time.process_time(), "peak": peak / 1024}))
"""


def _run_child(options: dict[str, Any], count: int = 1) -> dict[str, float]:
    """Return CPU seconds (`cpu`) and peak megabytes (`peak`) of a new process that makes `count` environments."""
    command = [sys.executable, "-c", _CHILD, json.dumps(options), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _make_episodes(env: WebShop, episodes: int) -> Callable[[], int]:
    """Return a workload that plays the next `episodes` expert episodes, which are planned beforehand."""
    scripts: list[tuple[str, list[str]]] = []
    for index in range(0, len(env.tasks), max(1, len(env.tasks) // (episodes * 8))):
        env.reset(options={"task": index})
        scripts.append((env.task, env.expert_actions() or []))
    endless = itertools.cycle(scripts)

    def run() -> int:
        steps = 0
        env.shop.clear_search_cache()  # Clear the search results that planning has cached.
        for task, actions in itertools.islice(endless, episodes):
            env.reset(options={"task": task})
            for action in actions:
                env.step(action)
            steps += len(actions)
        return steps

    return run


def _make_searches(find: SearchEngine, queries: list[str]) -> Callable[[], int]:
    def run() -> int:
        for query in queries:
            find(query, 50)
        return len(queries)

    return run


def measure(peers: bool = False, rounds: int = 5, large: bool = True) -> Iterator[Row]:
    """Yield the rows of WebShop: start, steps, searches and memory with 1,000 products, then with 100,000.

    The products are those of `ARBORETUM_DATA`, or generated ones without it.

    Args:
        peers: Also measure Lucene, if the extra `lucene` is installed.
        rounds: Number of paired measurements; medians are reported.
        large: Also generate and open 100,000 products (about half a minute, 300 MB of disk).
    """
    thousand: dict[str, Any] = {"num_products": 1000, "tagger": "letters"}
    env = WebShop(**thousand)  # Fill the cache, so that later starts are measured.
    starts = [_run_child(thousand)["cpu"] for _ in range(rounds)]
    details = f"original {ORIGINAL_START} s CPU (recorded)"
    yield Row("WebShop start, 1,000 products", statistics.median(starts), "s", 0.4, False, details)

    steps = [1 / seconds for (seconds,) in zip(*paired([_make_episodes(env, 150)], rounds), strict=True)]
    details = f"original {ORIGINAL_STEPS:.0f} steps per CPU second (recorded); ours {statistics.median(steps):.0f}"
    yield Row("WebShop scripted steps", statistics.median(steps) / ORIGINAL_STEPS, "x", 50, True, details)

    queries = [env.shop.goal(i).words.lower() for i in range(0, len(env.shop.goals), len(env.shop.goals) // 150)]
    contenders = [_make_searches(make_engine("bm25", env.shop.catalog), queries)]
    if peers:
        with contextlib.suppress(ConfigurationError):  # The extra may not be installed.
            contenders.append(_make_searches(make_engine("lucene", env.shop.catalog), queries))
    for run in contenders:
        run()  # Warm-up, after which Java has compiled the search.
    ours, *theirs = paired(contenders, rounds)
    own = statistics.median(ours)
    details = f"Lucene in the original {ORIGINAL_SEARCH * 1e3} ms CPU (recorded); ours {own * 1e3:.3f} ms"
    yield Row("WebShop search", ORIGINAL_SEARCH / own, "x", 10, True, details)
    if theirs:
        details = f"Lucene in this process {statistics.median(theirs[0]) * 1e3:.3f} ms CPU"
        yield Row("WebShop search, paired with Lucene", ratio(theirs[0], ours), "x", None, True, details)

    details = "original about 900 MB per process (recorded)"
    yield Row("WebShop 64 environments, peak", _run_child(thousand, 64)["peak"], "MB", 150, False, details)
    yield from _server_rows()
    if large:
        yield from _large_catalog_rows()


def _server_rows() -> Iterator[Row]:
    if missing := not_measured("WebShop server", "web", "flask", "waitress"):
        yield missing
        return
    data = os.environ.pop("ARBORETUM_DATA", None)  # Every goal of the generated shop can reach the full score.
    try:
        with serve_shop(tagger="letters") as address:
            times = simulate_customers(address, open_shop(tagger="letters"), customers=50)
    finally:
        if data is not None:
            os.environ["ARBORETUM_DATA"] = data
    details = f"p50 {statistics.median(times) * 1e3:.0f} ms of {len(times)} responses, clients on the same cores"
    p95 = statistics.quantiles(times, n=20)[18] * 1e3
    yield Row("WebShop server, 50 customers, p95", p95, "ms", 100, False, details)


def _large_catalog_rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="arboretum-bench-") as scratch:
        data = Path(scratch) / "data"
        write_data_files(generate_products(100_000), data)
        options = {"data": str(data), "tagger": "letters"}
        cache = os.environ.get("ARBORETUM_CACHE")
        os.environ["ARBORETUM_CACHE"] = str(Path(scratch) / "cache")
        try:
            first, second = _run_child(options), _run_child(options)
            size = sum(path.stat().st_size for path in data.iterdir()) / 2**20
            details = f"{size:.0f} MB of JSON, {first['cpu']:.1f} s CPU"
            yield Row("WebShop first load of 100,000, peak", first["peak"], "MB", None, False, details)
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
        details = f"p95 {statistics.quantiles(times, n=20)[18] * 1e3:.1f} ms"
        yield Row("WebShop search p50, 100,000", statistics.median(times) * 1e3, "ms", 10, False, details)
