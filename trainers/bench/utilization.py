"""How much of an accelerator an update uses: a 0.5B-parameter model in bfloat16, its weights random."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...eval.bench.row import Row
from .flops import Cost, mfu, peak_flops
from .update_ours import learner_of, recipe_of
from .workload import Workload, read

QWEN2_HALF_BILLION = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}
"""The sizes of Qwen2.5-0.5B."""


@dataclass(frozen=True)
class Used:
    """One measurement.

    Attributes:
        flops: useful operations of an update.
        tokens: run through the model in an update, padding not counted.
        seconds: of an update.
        device: name of the accelerator, or "cpu".
        parameters: of the model.
    """

    flops: int
    tokens: int
    seconds: float
    device: str
    parameters: int


def measure(peers: bool = False) -> Iterator[Row]:
    """MFU of `Learner.update` (see `flops.Cost.update` for what counts as useful); nothing without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return
    used = run(Workload(prompts=16), QWEN2_HALF_BILLION, None, "bfloat16", 32768)
    peak = peak_flops(used.device)
    rate = f"{used.tokens / used.seconds:,.0f} tokens/s on {used.device}"
    what = f"update, {used.parameters / 1e9:.2f}B parameters in bf16"
    if peak is None:
        yield Row(
            f"{what}: useful work", used.flops / used.seconds / 1e12, "TFLOP/s", beside=f"{rate}, peak unknown"
        )
    else:
        share = 100 * mfu(used.flops, used.seconds, peak)
        yield Row(f"{what}: MFU", share, "%", beside=f"{rate}, peak {peak / 1e12:.0f} TFLOP/s")


def run(
    workload: Workload, sizes: dict[str, int], device: str | None, precision: str, microbatch_tokens: int
) -> Used:
    """Learn from a batch of real episodes with a random model of these sizes.

    Args:
        workload: the batch; its tokens are those of a small tokenizer, which every vocabulary here has room for.
        sizes: of a Qwen2Config.
        device, precision, microbatch_tokens: see `Hardware`.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from ..data.rollouts import from_episodes

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload.write(folder)
        episodes, groups = read(folder)
        config = Qwen2Config(**sizes, max_position_embeddings=32768, tie_word_embeddings=True)
        config_of_tokens = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
        assert config.vocab_size >= config_of_tokens["vocab_size"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Qwen2ForCausalLM(config)
        model.save_pretrained(folder / "model")
        learner = learner_of(folder, recipe_of(workload.updates + 1), device, precision, microbatch_tokens)
    rollouts = from_episodes(episodes, groups)
    # What follows the last sampled token is not run through the model.
    lengths = [
        int(rollouts.action_position[rollouts.action_row == row].max()) for row in range(len(rollouts.rows))
    ]
    times = []
    on_gpu = learner.optimizer.accelerator.device.type == "cuda"
    for number in range(workload.updates + 1):
        start = time.perf_counter()
        learner.update(rollouts, update=number, temperature=1.0)
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return Used(
        flops=Cost.of(model).update(lengths, rollouts.actions),
        tokens=sum(lengths),
        seconds=statistics.median(times[1:]),
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        parameters=sum(p.numel() for p in model.parameters()),
    )
