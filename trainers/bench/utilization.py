"""Benchmark of accelerator utilization: updates of a 0.5B-parameter model with random weights in bfloat16."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...eval.bench.row import Row
from .flops import ModelSize, mfu, peak_flops
from .update_ours import make_learner, make_recipe
from .workload import Workload, read_episodes

QWEN2_0_5B = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}
"""Arguments of a Qwen2Config with the size of Qwen2.5-0.5B."""


@dataclass(frozen=True)
class Utilization:
    """Measurement of an update.

    Attributes:
        flops: Useful floating-point operations of an update.
        tokens: Tokens that pass through the model in an update, without padding.
        seconds: Median wall time of an update.
        device: Name of the accelerator, or "cpu".
        parameters: Number of parameters of the model.
    """

    flops: int
    tokens: int
    seconds: float
    device: str
    parameters: int


def measure(peers: bool = False) -> Iterator[Row]:
    """Yield the model FLOPs utilization of `Learner.update` (see `ModelSize.update_flops`); nothing without CUDA.

    Args:
        peers: Unused; there is no original system.
    """
    del peers
    import torch

    if not torch.cuda.is_available():
        return
    update = measure_utilization(Workload(prompts=16), QWEN2_0_5B, None, "bfloat16", 32768)
    peak = peak_flops(update.device)
    rate = f"{update.tokens / update.seconds:,.0f} tokens/s on {update.device}"
    what = f"update, {update.parameters / 1e9:.2f}B parameters in bf16"
    if peak is None:
        throughput = update.flops / update.seconds / 1e12
        yield Row(f"{what}: useful work", throughput, "TFLOP/s", details=f"{rate}, peak unknown")
    else:
        share = 100 * mfu(update.flops, update.seconds, peak)
        yield Row(f"{what}: MFU", share, "%", details=f"{rate}, peak {peak / 1e12:.0f} TFLOP/s")


def measure_utilization(
    workload: Workload, sizes: dict[str, int], device: str | None, precision: str, microbatch_tokens: int
) -> Utilization:
    """Measure updates of a random model on a batch of real episodes.

    Args:
        workload: Batch of episodes; their token ids come from a small tokenizer, whose vocabulary must not be
            larger than the model's.
        sizes: Arguments of a Qwen2Config.
        device, precision, microbatch_tokens: See `HardwareConfig`.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from ..data.episodes import from_episodes

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload.write(folder)
        episodes, groups = read_episodes(folder)
        config = Qwen2Config(**sizes, max_position_embeddings=32768, tie_word_embeddings=True)
        tiny_config = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
        assert config.vocab_size >= tiny_config["vocab_size"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Qwen2ForCausalLM(config)
        model.save_pretrained(folder / "model")
        learner = make_learner(folder, make_recipe(workload.updates + 1), device, precision, microbatch_tokens)
    rollouts = from_episodes(episodes, groups)
    # Tokens after the last sampled one do not pass through the model.
    lengths = [
        int(rollouts.action_position[rollouts.copies.action[rollouts.copies.row == row]].max())
        for row in range(len(rollouts.rows))
    ]
    times = []
    on_gpu = learner.optimizer.accelerator.device.type == "cuda"
    for number in range(workload.updates + 1):
        start = time.perf_counter()
        learner.update(rollouts, update=number, temperature=1.0)
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return Utilization(
        flops=ModelSize.of(model).update_flops(lengths, rollouts.actions),
        tokens=sum(lengths),
        seconds=statistics.median(times[1:]),
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        parameters=sum(p.numel() for p in model.parameters()),
    )
