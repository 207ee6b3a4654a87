"""The engine that samples with the weights in training."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.transformers import TransformersEngine
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.settings import HardwareConfig
from arboretum.trainers.learning.distributed import make_accelerator, make_optimizer
from arboretum.trainers.learning.policy import Policy, load_trainable_model
from arboretum.trainers.sampling.policy_engine import make_policy_engine


def test_model_whose_attention_accepts_trees_samples_with_a_cache() -> None:
    """The attention of prefix trees is another implementation to transformers, and takes masks as SDPA does."""
    model, tokenizer = load_trainable_model("sapling", "cpu")
    policy = Policy(model)
    assert policy.tree_layout is not None
    accelerator = make_accelerator("cpu", "float32", (), "unused")
    optimizer = make_optimizer(accelerator, policy, RECIPES["grpo"].optimization, None)
    engine = make_policy_engine(
        HardwareConfig("cpu"), optimizer, tokenizer, lambda: pytest.fail("not sharded"), "sapling"
    ).engine
    assert isinstance(engine, TransformersEngine) and engine.keeps_cache
