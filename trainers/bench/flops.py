"""Floating-point operations of an update, peak throughput of accelerators, and model FLOPs utilization (MFU)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Dense bfloat16 with float32 accumulation, from the vendors' data sheets. The first entry whose key is part of the
# device's name applies.
_PEAK_FLOPS: tuple[tuple[str, float], ...] = (
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
    """Return the peak bfloat16 throughput of a device in operations per second; None for an unlisted device.

    Args:
        device: Name of the device as CUDA reports it, such as "NVIDIA H100 80GB HBM3".
    """
    return next((peak for name, peak in _PEAK_FLOPS if name in device), None)


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model that determine its cost per token.

    Attributes:
        body: Number of weights in matrix products with every token: all except embeddings, head, norms and biases.
        head: Number of weights in matrix products with every scored token.
        layers: Number of layers.
        attention: Total width of the queries of all heads.
    """

    body: int
    head: int
    layers: int
    attention: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> ModelSize:
        """Return the sizes of a Hugging Face causal language model with full attention in every layer."""
        config = model.config.get_text_config(decoder=True)
        head = model.get_output_embeddings().weight
        outside = {id(head), id(model.get_input_embeddings().weight)}
        body = sum(p.numel() for p in model.parameters() if p.dim() == 2 and id(p) not in outside)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(body, head.numel(), config.num_hidden_layers, config.num_attention_heads * width)

    def update_flops(self, lengths: Sequence[int], scored: int) -> int:
        """Return the floating-point operations of one forward and backward pass.

        Per token, a weight takes 2 operations in the forward pass and 4 in the backward pass. In each layer,
        attention of the token at position t takes 2·t·width operations for the scores, as many for the weighted
        sum, and twice that in the backward pass. Padding, recomputed activations and the masked half of the
        attention matrix do not count as useful work.

        Args:
            lengths: Number of tokens of each row, without padding.
            scored: Number of tokens in the loss, which pass through the head.
        """
        linear = 6 * (self.body * sum(lengths) + self.head * scored)
        return linear + 3 * 4 * self.layers * self.attention * sum(n * (n + 1) // 2 for n in lengths)


def mfu(flops: float, seconds: float, peak: float) -> float:
    """Return the model FLOPs utilization: useful operations per second as a fraction of the peak."""
    return flops / seconds / peak
