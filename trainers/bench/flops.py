"""What an update should cost in floating-point operations, and what devices can do at best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Dense bfloat16 with float32 sums, from the makers' data sheets; the first that is part of a device's name counts.
_PEAKS: tuple[tuple[str, float], ...] = (
    ("B200", 2250e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("GH200", 989e12),
    ("H200", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("A6000", 155e12),
    ("RTX 4090", 165e12),
    ("RTX 3090", 71e12),
)


def peak_flops(device: str) -> float | None:
    """Operations a second that a device can do at best in bfloat16; None for one that is not in the table.

    Args:
        device: its name as CUDA gives it, such as "NVIDIA H100 80GB HBM3".
    """
    return next((peak for part, peak in _PEAKS if part in device), None)


@dataclass(frozen=True)
class Cost:
    """The sizes of a model that decide what a token costs.

    Attributes:
        body: weights that every token is multiplied with: all but embeddings, head, norms and biases.
        head: weights that every scored token is multiplied with.
        layers: number of them.
        attention: width of the queries of all heads.
    """

    body: int
    head: int
    layers: int
    attention: int

    @classmethod
    def of(cls, model: Any) -> Cost:
        """The sizes of a Hugging Face causal language model whose layers all attend to everything before."""
        config = model.config.get_text_config(decoder=True)
        head = model.get_output_embeddings().weight
        outside = {id(head), id(model.get_input_embeddings().weight)}
        body = sum(p.numel() for p in model.parameters() if p.dim() == 2 and id(p) not in outside)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(body, head.numel(), config.num_hidden_layers, config.num_attention_heads * width)

    def update(self, lengths: Sequence[int], scored: int) -> int:
        """Operations of one forward and backward pass.

        A weight costs 2 operations a token forward and 4 backward. Attention to the past costs a token at place t
        in each layer 2·t·width for its scores and as much for its sum, and twice that backward. What is computed
        beyond that (padding, activations computed again, other half of a causal square) is no useful work.

        Args:
            lengths: tokens of each row, padding not.
            scored: tokens that are learnt from, and so go through the head.
        """
        linear = 6 * (self.body * sum(lengths) + self.head * scored)
        return linear + 3 * 4 * self.layers * self.attention * sum(n * (n + 1) // 2 for n in lengths)


def mfu(flops: float, seconds: float, peak: float) -> float:
    """Model FLOPs utilisation: the share of what the device could have done that was useful work."""
    return flops / seconds / peak
