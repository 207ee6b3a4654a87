"""The training benchmark: its arithmetic by hand, its workload, and TRL beside us on the same gradient."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs transformers: pip install 'arboretum[lm]'")

from arboretum.envs.errors import ConfigurationError
from arboretum.eval.bench import measurements
from arboretum.trainers.bench import TRAINING
from arboretum.trainers.bench.flops import Cost, mfu, peak_flops
from arboretum.trainers.bench.phases import attended
from arboretum.trainers.bench.phases import run as run_phases
from arboretum.trainers.bench.update import measure
from arboretum.trainers.bench.utilization import run as run_utilisation
from arboretum.trainers.bench.workload import Workload, read, whole_row

SMALL = {
    "vocab_size": 600,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_useful_work_is_what_hand_arithmetic_gives() -> None:
    # Two rows of 3 and 5 tokens, 4 of them scored; 10 weights in the body, 7 in the head; 2 layers, width 8.
    linear = 6 * (10 * 8 + 7 * 4)
    # Pairs (token, token at or before it): 6 and 15. Forward 2 products of 2 operations a pair and unit of width,
    # backward twice that.
    attention = 3 * (2 * 2) * 2 * 8 * (6 + 15)
    assert Cost(body=10, head=7, layers=2, attention=8).update([3, 5], 4) == linear + attention == 4680
    assert mfu(4680, 2.0, 23400) == pytest.approx(0.1)


def test_the_cost_of_a_token_is_what_torch_counts() -> None:
    """Beside torch's own count of a forward and backward pass; attention there is the whole square."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True))
    cost = Cost.of(model)
    length = 32
    ids = torch.arange(length)[None]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, use_cache=False).logits.sum().backward()
    square = 3 * 4 * cost.layers * cost.attention * length * length
    triangle = 3 * 4 * cost.layers * cost.attention * length * (length + 1) // 2
    assert cost.update([length], length) - triangle + square == counter.get_total_flops()


def test_devices_are_known_by_the_names_that_cuda_gives_them() -> None:
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA GeForce RTX 4090") == 165e12
    assert peak_flops("NVIDIA L40S") == 362e12 and peak_flops("NVIDIA L4") == 121e12
    assert peak_flops("Quadro FX 580") is None


def test_the_path_of_the_accelerator_runs_on_the_cpu_too() -> None:
    workload = Workload(prompts=1, rollouts=2, updates=1)
    used = run_utilisation(workload, SMALL, "cpu", "bfloat16", 4096)
    assert used.device == "cpu" and used.seconds > 0
    # Tied embeddings are the head; norms and the biases of q, k and v are in neither.
    body = 3 * (64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 96)
    extra = 3 * (2 * 64 + 64 + 32 + 32) + 64
    assert used.parameters == body + extra + 600 * 64
    assert used.flops > 6 * body * used.tokens


def test_the_workload_is_ragged_and_the_same_every_time(tmp_path: Path) -> None:
    workload = Workload(prompts=2, rollouts=4)
    for name in ("one", "other"):
        workload.write(tmp_path / name)
    episodes, groups = read(tmp_path / "one")
    again, _ = read(tmp_path / "other")
    assert [whole_row(episode) for episode in episodes] == [whole_row(episode) for episode in again]
    assert len(episodes) == 8 and len(set(groups)) == 2
    assert len({len(whole_row(episode)[0]) for episode in episodes}) > 4
    for group in set(groups):
        members = [e for e, g in zip(episodes, groups, strict=True) if g == group]
        assert len({e.task for e in members}) == 1
        first = [whole_row(e)[0][: whole_row(e)[1].index(1)] for e in members]
        assert all(prompt == first[0] for prompt in first)
    assert len({e.total_reward for e in episodes}) > 1


def test_the_clocks_of_a_run_explain_its_time(tmp_path: Path) -> None:
    shares, waited = run_phases(tmp_path, 2, prompts=1)
    assert shares["sample"] > 0.1 and shares["learn"] > 0.1 and shares["validate"] > 0 and shares["checkpoint"] > 0
    assert sum(shares.values()) == pytest.approx(1.0)
    assert -1e-6 < shares["rest"] < 0.05
    assert waited is None or waited < 0.3  # two updates of one prompt: mostly checkpoints


def test_a_thread_that_sleeps_is_seen_to_wait() -> None:
    if attended() is None:
        pytest.skip("this kernel does not tell how long threads wait")
    before, start = attended(), time.perf_counter()
    time.sleep(0.5)
    slept = time.perf_counter() - start - (attended() - before)
    before, start = attended(), time.perf_counter()
    while time.perf_counter() - start < 0.5:
        pass
    worked = time.perf_counter() - start - (attended() - before)
    assert slept > 0.4 and worked < 0.1


def test_rest_is_the_time_that_the_caller_takes(run_of: Any) -> None:
    from arboretum.trainers.trainer import Trainer

    training = Trainer(run_of("grpo", {"optimization.updates": 3}))
    begun = time.perf_counter()
    for _ in training.run():
        time.sleep(0.3)
    last = time.perf_counter() - begun - 0.3 - training.checkpoint_seconds
    training.close()
    phases = ("sample", "learn", "validate", "checkpoint", "rest")
    told = sum(m.get(f"seconds/{phase}", 0.0) for m in training.history for phase in phases)
    assert told == pytest.approx(last, abs=0.4)
    rests = [m["seconds/rest"] for m in training.history if m["update"]]
    assert all(0.3 <= rest < 0.7 for rest in rests)


def test_the_command_knows_training_beside_the_rest() -> None:
    with pytest.raises(ConfigurationError, match=r"train"):
        list(measurements("trian", further=TRAINING))
    assert all(name.startswith("arboretum.trainers.bench.") for name in TRAINING["train"])


@pytest.mark.heavy
def test_trl_does_the_same_work_more_slowly_and_in_more_memory() -> None:
    pytest.importorskip("trl", reason="needs trl: pip install 'arboretum[peers]'")
    rows = {row.what: row for row in measure(peers=True, workload=Workload(prompts=4, updates=3))}
    assert rows["gradient, distance to TRL's"].value < 0.01
    for what in ("update step, to TRL's", "memory of it, to TRL's"):
        assert rows[what].reached, rows[what]
