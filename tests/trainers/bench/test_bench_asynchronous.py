"""Benchmark of asynchronous sampling."""

from __future__ import annotations

import pytest

for module in ("torch", "transformers", "accelerate"):
    pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.bench.asynchronous import measure

pytestmark = pytest.mark.heavy


def test_overlapping_sampling_and_learning_takes_less_than_both() -> None:
    (row,) = measure(rounds=1)
    assert row.unit == "x" and row.value > 1, row.details
