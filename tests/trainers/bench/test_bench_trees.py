"""Benchmark of tree sampling: costs add up, and trees give more episodes for the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.transformers import TransformersEngine
from arboretum.eval.bench.tiny import make_tiny_model
from arboretum.trainers.algorithms.samplers import Chains, Trees
from arboretum.trainers.bench.trees_sampling import Setup, measure


def test_cost_of_chains_and_trees_counts_new_turns_only(tmp_path: Path) -> None:
    engine = TransformersEngine(make_tiny_model(tmp_path / "model", hidden=64), device="cpu", max_batch=8)
    engine.end_ids = frozenset()  # All replies have the same length.
    setup = Setup(engine, "TextFrozenLake-v0", turns=5, reply_tokens=4, prompts=2)
    chains, trees = setup.roll_out(Chains(rollouts=3)), setup.roll_out(Trees(trees=1, expansions=4))
    assert (chains.episodes, trees.episodes) == (6, 10)
    assert chains.turns == 6 * 5 and trees.turns == 10 * 5
    assert chains.sampled == 6 * 5 * 4
    assert trees.sampled < trees.turns * 4
    assert chains.computed <= 1.1 * chains.added and trees.computed <= 1.1 * trees.added
    assert trees.episodes / trees.sampled > 1.2 * chains.episodes / chains.sampled
    assert 0 < chains.longest < 4096
    engine.close()


def test_every_measurement_has_a_row() -> None:
    rows = list(measure(prompts=2, turns=(2, 3), rounds=1))
    names = [row.what for row in rows]
    assert [row.unit for row in rows] == ["x"] * len(rows) and len(set(names)) == len(names) == 5
    assert [row.target is not None for row in rows] == [False, True, True, True, True]
    assert all(row.value > 0 and row.details for row in rows)
