"""Sizes of decoder-only language models, read from their configuration without loading weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....agents.engines.shipped_models import model_source
from ....envs.errors import ConfigurationError, unknown_name
from ..flops import ModelSize

WEIGHT_BYTES = 2
"""Bytes of a weight and of a cached key or value in sampling: bfloat16."""

_GATED = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})
"""Types of models with full attention and an MLP of three matrices, which `ModelShape.from_config` counts."""


@dataclass(frozen=True)
class ModelShape(ModelSize):
    """Sizes that determine operations, memory and traffic of a model.

    Attributes:
        parameters: Number of weights, those of norms and biases excluded.
        keys: Total width of the keys of all heads; that of the values is equal.
    """

    parameters: int = 0
    keys: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Return the sizes of a model from the contents of its `config.json`.

        Raises:
            ConfigurationError: The type of model is not one of those that are counted.
        """
        kind = config.get("model_type")
        if kind not in _GATED:
            raise ConfigurationError(
                f"models of type {kind!r} are not counted; give the folder of a model of type"
                f" {', '.join(sorted(_GATED))}, or one of {', '.join(PUBLISHED)}"
            )
        hidden, layers, heads = (
            int(config[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
        )
        width = int(config.get("head_dim") or hidden // heads)
        queries, keys = heads * width, int(config.get("num_key_value_heads") or heads) * width
        body = layers * hidden * (2 * queries + 2 * keys + 3 * int(config["intermediate_size"]))
        head = hidden * int(config["vocab_size"])
        embeddings = 0 if config.get("tie_word_embeddings", False) else head
        return cls(body, head, layers, queries, body + head + embeddings, keys)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as they are sampled with and transferred."""
        return WEIGHT_BYTES * self.parameters

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cached keys and values of one token."""
        return 2 * WEIGHT_BYTES * self.layers * self.keys

    def forward_flops(self, tokens: float, scored: float, attended: float) -> float:
        """Return the floating-point operations of a forward pass.

        Args:
            tokens: Number of tokens.
            scored: Number of tokens that pass through the head.
            attended: Pairs of a token and one at or before it, summed over the tokens.
        """
        return 2 * (self.body * tokens + self.head * scored) + 4 * self.layers * self.attention * attended


def _qwen(hidden: int, mlp: int, layers: int, heads: int, keys: int, vocabulary: int = 151936) -> ModelShape:
    return ModelShape.from_config(
        {
            "model_type": "qwen2",
            "hidden_size": hidden,
            "intermediate_size": mlp,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": keys,
            "vocab_size": vocabulary,
            "tie_word_embeddings": vocabulary == 151936,
        }
    )


PUBLISHED: Mapping[str, ModelShape] = {
    "Qwen2.5-0.5B": _qwen(896, 4864, 24, 14, 2),
    "Qwen2.5-1.5B": _qwen(1536, 8960, 28, 12, 2),
    "Qwen2.5-3B": _qwen(2048, 11008, 36, 16, 2),
    "Qwen2.5-7B": _qwen(3584, 18944, 28, 28, 4, 152064),
    "Qwen2.5-14B": _qwen(5120, 13824, 48, 40, 8, 152064),
    "Qwen2.5-32B": _qwen(5120, 27648, 64, 40, 8, 152064),
}
"""Sizes from the published configurations of models that the papers train."""


def find_shape(model: str) -> ModelShape:
    """Return the sizes of a model.

    Args:
        model: Name in `PUBLISHED`, with or without its organization; "sapling" or another shipped model; or a
            folder with `config.json`.

    Raises:
        ConfigurationError: The name is unknown, or the type of model is not counted.
    """
    name = model.rpartition("/")[2].removesuffix("-Instruct")
    if name in PUBLISHED and not Path(model).exists():
        return PUBLISHED[name]
    path = Path(model_source(model)) / "config.json"
    if not path.is_file():
        raise unknown_name("model", model, [*PUBLISHED])
    return ModelShape.from_config(json.loads(path.read_text(encoding="utf-8")))
