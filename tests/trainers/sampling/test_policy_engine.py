"""The engine that samples with the weights in training."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.base import Completion, Request, Sampling
from arboretum.agents.engines.transformers import TransformersEngine
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.settings import HardwareConfig, LoraConfig
from arboretum.trainers.learning.distributed import make_accelerator, make_optimizer
from arboretum.trainers.learning.policy import Policy, load_trainable_model
from arboretum.trainers.sampling.policy_engine import make_policy_engine, model_engine


def test_model_whose_attention_accepts_trees_samples_with_a_cache(tmp_path: Path) -> None:
    """The attention of prefix trees is another implementation to transformers, and takes masks as SDPA does."""
    model, tokenizer = load_trainable_model("sapling", "cpu")
    policy = Policy(model)
    assert policy.tree_layout is not None
    accelerator = make_accelerator("cpu", "float32", (), "unused")
    optimizer = make_optimizer(accelerator, policy, RECIPES["grpo"].optimization, None)
    engine = make_policy_engine(
        HardwareConfig("cpu"), optimizer, tokenizer, lambda: pytest.fail("not sharded"), "sapling", tmp_path
    ).engine
    assert isinstance(engine, TransformersEngine) and engine.keeps_cache


def bfloat16() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
def test_weights_cast_once_sample_the_same_replies_bit_for_bit(lora: LoraConfig | None) -> None:
    model, tokenizer = load_trainable_model("sapling", "cpu", lora=lora)
    if lora is not None:  # Adapters add nothing before the first update.
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(0))
    prompt = tokenizer("Where is the box? Go Up or Down.", add_special_tokens=False)["input_ids"]

    def replies(engine: TransformersEngine, precision: AbstractContextManager[Any]) -> list[Completion]:
        with precision:
            for seed in range(3):
                engine.submit(Request(str(seed), (), prompt[seed:], Sampling(max_tokens=16), seed))
            done: dict[str, Completion] = {}
            while len(done) < 3:
                done |= engine.collect()
        return [done[name] for name in sorted(done)]

    cast = model_engine(model, tokenizer, 4, bfloat16)
    forwards = [vars(module).get("forward") for module in model.modules()]
    found = replies(cast.engine, cast.precision())
    plain = replies(TransformersEngine(model, tokenizer, max_batch=4, processed_logprobs=True), bfloat16())
    assert [(one.token_ids, one.logprobs) for one in found] == [(one.token_ids, one.logprobs) for one in plain]
    assert [vars(module).get("forward") for module in model.modules()] == forwards
    # In float32 other numbers result, so the comparison is one of bfloat16.
    wide = model_engine(model, tokenizer, 4)
    assert [one.logprobs for one in replies(wide.engine, wide.precision())] != [one.logprobs for one in plain]


def test_weights_are_cast_anew_after_they_changed() -> None:
    model, tokenizer = load_trainable_model("sapling", "cpu")
    engine = model_engine(model, tokenizer, 4, bfloat16)
    head = model.get_output_embeddings()
    states = torch.ones(1, model.config.hidden_size)
    with torch.no_grad():
        with engine.precision():
            before = head(states)
        head.weight.mul_(2)
        with engine.precision():
            after = head(states)
    assert before.dtype == torch.bfloat16 and torch.equal(after, 2 * before)
