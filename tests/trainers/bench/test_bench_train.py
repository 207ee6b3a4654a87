"""Training benchmarks: arithmetic of FLOPs, workload, phases, and equal gradients with TRL."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs transformers: pip install 'arboretum-rl[lm]'")

from arboretum.envs.errors import ConfigurationError
from arboretum.eval.bench import BENCHES, measurements
from arboretum.trainers.bench import TRAINING
from arboretum.trainers.bench.flops import ModelSize, mfu, peak_flops
from arboretum.trainers.bench.phases import measure_phases, runnable_seconds
from arboretum.trainers.bench.update import measure
from arboretum.trainers.bench.utilization import measure_utilization
from arboretum.trainers.bench.workload import Workload, episode_tokens, read_episodes

SMALL = {
    "vocab_size": 600,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_useful_flops_equal_hand_arithmetic() -> None:
    # Two rows of 3 and 5 tokens, 4 of them scored; 10 weights in the body, 7 in the head; 2 layers, width 8.
    linear = 6 * (10 * 8 + 7 * 4)
    # Pairs (token, token at or before it): 6 and 15. The forward pass takes 2 products of 2 operations per pair
    # and unit of width, the backward pass twice that.
    attention = 3 * (2 * 2) * 2 * 8 * (6 + 15)
    assert ModelSize(body=10, head=7, layers=2, attention=8).update_flops([3, 5], 4) == linear + attention == 4680
    assert mfu(4680, 2.0, 23400) == pytest.approx(0.1)


def test_useful_flops_equal_torch_count_but_for_the_causal_mask() -> None:
    """Torch counts the whole attention matrix, the formula only its causal half."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True))
    size = ModelSize.of(model)
    length = 32
    ids = torch.arange(length)[None]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, use_cache=False).logits.sum().backward()
    square = 3 * 4 * size.layers * size.attention * length * length
    triangle = 3 * 4 * size.layers * size.attention * length * (length + 1) // 2
    assert size.update_flops([length], length) - triangle + square == counter.get_total_flops()


def test_peak_flops_are_found_by_cuda_device_name() -> None:
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA GeForce RTX 4090") == 165e12
    assert peak_flops("NVIDIA L40S") == 362e12 and peak_flops("NVIDIA L4") == 121e12
    assert peak_flops("Quadro FX 580") is None


def test_utilization_is_measured_on_the_cpu() -> None:
    workload = Workload(prompts=1, rollouts=2, updates=1)
    update = measure_utilization(workload, SMALL, "cpu", "bfloat16", 4096)
    assert update.device == "cpu" and update.seconds > 0
    # The tied embeddings are the head; norms and the biases of q, k and v belong to neither body nor head.
    body = 3 * (64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 96)
    extra = 3 * (2 * 64 + 64 + 32 + 32) + 64
    assert update.parameters == body + extra + 600 * 64
    assert update.flops > 6 * body * update.tokens


def test_workload_is_reproducible_and_ragged(tmp_path: Path) -> None:
    workload = Workload(prompts=2, rollouts=4)
    for name in ("one", "other"):
        workload.write(tmp_path / name)
    episodes, groups = read_episodes(tmp_path / "one")
    again, _ = read_episodes(tmp_path / "other")
    assert [episode_tokens(episode) for episode in episodes] == [episode_tokens(episode) for episode in again]
    assert len(episodes) == 8 and len(set(groups)) == 2
    assert len({len(episode_tokens(episode)[0]) for episode in episodes}) > 4
    for group in set(groups):
        members = [e for e, g in zip(episodes, groups, strict=True) if g == group]
        assert len({e.task for e in members}) == 1
        first = [episode_tokens(e)[0][: episode_tokens(e)[1].index(1)] for e in members]
        assert all(prompt == first[0] for prompt in first)
    assert len({e.total_reward for e in episodes}) > 1


def test_phases_account_for_the_wall_time_of_a_run(tmp_path: Path) -> None:
    shares, blocked = measure_phases(tmp_path, 2, prompts=1)
    assert shares["sample"] > 0.1 and shares["learn"] > 0.1 and shares["validate"] > 0 and shares["checkpoint"] > 0
    assert sum(shares.values()) == pytest.approx(1.0)
    assert -1e-6 < shares["rest"] < 0.05
    assert blocked is None or blocked < 0.3  # two updates of one prompt: mostly checkpoints


def test_sleeping_thread_is_not_runnable() -> None:
    if runnable_seconds() is None:
        pytest.skip("this kernel does not report how long threads are runnable")
    before, start = runnable_seconds(), time.perf_counter()
    time.sleep(0.5)
    slept = time.perf_counter() - start - (runnable_seconds() - before)
    before, start = runnable_seconds(), time.perf_counter()
    while time.perf_counter() - start < 0.5:
        pass
    worked = time.perf_counter() - start - (runnable_seconds() - before)
    assert slept > 0.4 and worked < 0.1


def test_rest_is_the_time_spent_in_the_caller(run_of: Any) -> None:
    from arboretum.trainers.trainer import Trainer

    trainer = Trainer(run_of("grpo", {"optimization.updates": 3}))
    start = time.perf_counter()
    for _ in trainer.run():
        time.sleep(0.3)
    total = time.perf_counter() - start - 0.3 - trainer.checkpoint_seconds
    trainer.close()
    phases = ("sample", "learn", "validate", "checkpoint", "rest")
    recorded = sum(m.get(f"seconds/{phase}", 0.0) for m in trainer.history for phase in phases)
    assert recorded == pytest.approx(total, abs=0.4)
    rests = [m["seconds/rest"] for m in trainer.history if m["update"]]
    assert all(0.3 <= rest < 0.7 for rest in rests)


def test_unknown_benchmark_is_rejected_with_nearest_names() -> None:
    with pytest.raises(ConfigurationError, match=r"train"):
        list(measurements("trian", further=TRAINING))


@pytest.mark.parametrize("name", [name for names in [*BENCHES.values(), *TRAINING.values()] for name in names])
def test_listed_module_can_be_imported(name: str) -> None:
    assert callable(import_module(name).measure)


def test_missing_module_of_a_benchmark_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        list(measurements("mine", further={"mine": ("arboretum.trainers.bench.no_such_module",)}))


@pytest.mark.heavy
def test_trl_computes_the_same_gradient_with_more_time_and_memory() -> None:
    pytest.importorskip("trl", reason="needs trl: pip install 'arboretum-rl[peers]'")
    rows = {row.what: row for row in measure(peers=True, workload=Workload(prompts=4, updates=3))}
    assert rows["update step, gradient distance to TRL"].value < 0.01
    for what in ("update step, speed relative to TRL", "update step, memory relative to TRL"):
        assert rows[what].reached, rows[what]
