"""Benchmark of T-STAR's overhead: one row for each way of comparing turns, with its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.bench import trees_overhead
from arboretum.trainers.config.settings import EnvConfig

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]


def test_overhead_is_a_ratio_with_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"sampler.prompts": 2, "sampler.rollouts": 3, "sampler.max_turns": 3}
    monkeypatch.setattr(trees_overhead, "SETTINGS", {**trees_overhead.SETTINGS, **small})
    rows = list(trees_overhead.measure_overhead(tmp_path, EnvConfig("TextFrozenLake-v0"), 1))
    assert [row.what.partition(" /")[0] for row in rows] == ["T-STAR", "T-STAR, all contexts"]
    assert [row.target for row in rows] == [1.22, None]
    for row in rows:
        assert row.unit == "x" and 0.3 < row.value < 30
        assert all(f"{part} " in row.details for part in trees_overhead.PARTS)
