"""Summaries and reports of runs with many episodes: their numbers, and the memory that they need."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

import pytest

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.eval import runner
from arboretum.eval.api import evaluate
from arboretum.eval.results import load_results, report
from arboretum.eval.run_index import open_index
from arboretum.eval.statistics import Moments, paired, rate
from arboretum.eval.statistics.repeats import summarize_repeats
from arboretum.eval.store import EpisodeKey, Result, Store, encode_episode
from arboretum.eval.suite import read_suite
from arboretum.eval.summary import load_run

AGENTS = ("random", "expert", "a", "b")


def write_run(folder: Path, tasks: int, repeats: int, agents: Sequence[str] = AGENTS) -> None:
    """Write a run whose episodes ended in random order; some broke off, and some of these were played again."""
    entry = {"name": "E", "env": "TextFrozenLake-v0", "tasks": tasks, "repeats": repeats}
    entry |= {"score": "quality", "group_by": "kind", "groups": ["south", "north"]}
    suite = read_suite({"name": "s", "entries": [entry]}, "s.yaml")
    manifest = {"suite": suite.to_dict(), "agents": list(agents), "expected": {"E": tasks * repeats}}
    store = Store(folder, manifest)
    rng = random.Random(0)
    keys = [EpisodeKey(a, "E", f"test/{t}", r) for a in agents for t in range(tasks) for r in range(repeats)]
    rng.shuffle(keys)
    for number, key in enumerate([*keys, *keys[: len(keys) // 10]]):
        episode = Episode("TextFrozenLake-v0", key.task, suite.episode_seed(suite.entries[0], *key[2:]), key.agent)
        moves = [Move("Up", rng.gauss(0, 1), rng.random() < 0.5, True) for _ in range(rng.randrange(1, 4))]
        episode.turns = [Turn("o", "Up", moves=moves)]
        if number < len(keys) and rng.random() < 0.1:
            episode.error = rng.choice(["boom", "bang"])
        episode.success = rng.random() < (0.2, 0.9, 0.6, 0.5)[AGENTS.index(key.agent)]
        episode.turns[0].env_seconds = round(rng.random(), 6)
        episode.truncated = rng.random() < 0.3
        episode.details = {"quality": rng.random(), "kind": ("north", "south", "east")[int(key.task[5:]) % 3]}
        if key.agent == "a":
            episode.details |= {
                "prompt_tokens": rng.randrange(99),
                "completion_tokens": rng.randrange(9),
                "cost": 0.5,
            }
        store.append(encode_episode(key, episode))
    store.close()


def by_task(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        found[result.key.task].append(result)
    return found


def mean_over_tasks(tasks: Mapping[str, Sequence[Result]], value: Any) -> tuple[float, float, float]:
    """Return the mean over tasks with its normal interval."""
    means = [fmean(value(result) for result in task) for task in tasks.values()]
    half = NormalDist().inv_cdf(0.975) * stdev(means) / math.sqrt(len(means))
    return fmean(means), fmean(means) - half, fmean(means) + half


@pytest.mark.parametrize(("tasks", "repeats"), [(30, 4), (150, 1)])
def test_summary_has_the_numbers_of_all_results_together(tasks: int, repeats: int, tmp_path: Path) -> None:
    write_run(tmp_path / "run", tasks, repeats)
    summary = report([tmp_path / "run"])
    results = list(load_run(tmp_path / "run").results.values())
    broken = [result.error for result in results if result.error is not None]
    assert summary.errors == {reason: broken.count(reason) for reason in set(broken)} and len(summary.errors) == 2
    assert summary.episodes == len(results) - len(broken)
    assert [(line.group, line.agent) for line in summary.lines] == [
        (group, agent) for group in (None, "south", "north", "east") for agent in ("a", "b", "random", "expert")
    ]
    complete: dict[str, dict[str, list[Result]]] = {}
    for line in summary.lines:
        mine = [r for r in results if r.key.agent == line.agent and line.group in (None, r.details["kind"])]
        own = [result for result in mine if result.error is None]
        found = by_task(own)
        outcomes = [[result.success for result in task] for task in found.values()]
        assert (line.episodes, line.failed) == (len(own), len(mine) - len(own))
        assert line.success == pytest.approx(rate(outcomes), rel=1e-12)
        returns = mean_over_tasks(found, lambda result: result.total_reward)
        assert line.mean_return == pytest.approx(returns, rel=1e-12)
        qualities = Moments()
        for task in found.values():
            qualities.add(fmean(result.details["quality"] for result in task))
        assert line.score == pytest.approx(tuple(100.0 * bound for bound in qualities.share()), rel=1e-12)
        assert line.steps == fmean(result.steps for result in own)
        assert line.invalid == sum(result.invalid for result in own) / sum(result.steps for result in own)
        assert line.truncated == fmean(result.truncated for result in own)
        assert line.seconds == fmean(result.seconds for result in own)
        tokens = fmean(result.details.get("completion_tokens", 0) for result in own)
        assert line.tokens == (tokens if line.agent == "a" else None)
        assert line.repeats == summarize_repeats(outcomes)
        if line.group is None:
            complete[line.agent] = found
    tokens = sum(result.details.get("prompt_tokens", 0) for result in results)
    assert any(f"a: {tokens:,} prompt and" in note for note in summary.notes)
    assert len(summary.comparisons) == len(list(combinations(AGENTS, 2)))
    for one in summary.comparisons:
        shared = sorted(complete[one.a].keys() & complete[one.b].keys())
        ours, theirs = (
            [[result.success for result in complete[agent][task]] for task in shared] for agent in (one.a, one.b)
        )
        assert one.result == paired(ours, theirs)


def test_sample_of_a_report_is_evenly_spaced_in_order_of_ending(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 50, 3)
    with open_index(tmp_path / "run") as index:
        results = [result for result in index.results().values() if result.key.agent == "b"]
        for number in (1, 7, 50, 149, 150, 1000):
            count = min(number, 150)
            assert index.sample("b", "E", number) == [results[n * 150 // count] for n in range(count)]
        assert list(index.in_task_order("b", "E")) == sorted(results, key=lambda result: result.key)
        assert index.sample("nobody", "E", 3) == [] == list(index.in_task_order("nobody", "E"))


def test_results_can_be_read_while_other_episodes_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_run(folder, 1000, 1, ["a"])
    whole = (folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "episodes.jsonl").write_bytes(b"".join(whole[:600]))
    with open_index(folder) as index:
        before = set(index.results())
        stream = index.in_task_order("a", "E")
        first = next(stream)
        (folder / "episodes.jsonl").write_bytes(b"".join(whole))
        with open_index(folder) as other:  # Extends the same index.
            assert other.count() == 1000
        keys = [result.key for result in (first, *stream)]
    assert keys == sorted(set(keys)) and before <= set(keys)


@pytest.mark.heavy
def test_memory_does_not_grow_with_the_number_of_episodes(tmp_path: Path) -> None:
    peaks = []
    for tasks in (1_000, 5_000):
        folder = tmp_path / str(tasks)
        write_run(folder, tasks, 2, ["a", "b"])
        open_index(folder).close()
        tracemalloc.start()
        with load_results([folder]) as results:
            assert results.summary.episodes > 3 * tasks
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 30 * 16_000


@pytest.mark.parametrize(("block", "tasks"), [(3, 500), (9, 500), (10_000, 2), (10_000, 500)])
def test_resuming_in_blocks_plays_exactly_the_missing_episodes(
    block: int, tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_BLOCK", block)
    monkeypatch.setattr(runner, "_MOST_TASKS", tasks)
    folder = tmp_path / "run"
    settings: dict[str, Any] = {"limit": 7, "repeats": 4, "references": False, "out": folder}
    whole = evaluate("TextBandit-v0", ["random"], **settings)
    lines = (folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for number, line in enumerate(lines) if number not in (0, 5, 6, 13, 27)]
    (folder / "episodes.jsonl").write_bytes(b"".join(kept))
    again = evaluate("TextBandit-v0", ["random"], **settings)
    resumed = (folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    assert resumed[: len(kept)] == kept and len(resumed) == len(lines) == 28
    assert again.summary.complete and again.summary.lines[0].success == whole.summary.lines[0].success
