"""Sentence encoders from Hugging Face (extra `dense`, with torch and transformers)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError, unknown_name
from ..extras import optional_module

if TYPE_CHECKING:
    import torch

Pooling = Literal["mean", "cls"]
Vectors = NDArray[np.float32]

_PROBE = "The arboretum keeps trees from all over the world."
"""Sentence whose vector identifies the weights of an encoder; stored indexes depend on it."""


@dataclass(frozen=True)
class EncoderSpec:
    """Encoder model and the form of its input.

    Attributes:
        model: Hugging Face name or local folder.
        pooling: "mean" over all tokens except padding, or "cls" for the first token.
        query_prefix: Prefix of every query.
        passage_prefix: Prefix of every passage.
        max_length: Maximum number of tokens; longer texts are truncated.

    Raises:
        ConfigurationError: The pooling is unknown or the maximum length is too small.
    """

    model: str
    pooling: Pooling = "mean"
    query_prefix: str = ""
    passage_prefix: str = ""
    max_length: int = 256

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "cls"):
            raise unknown_name("pooling", self.pooling, ("mean", "cls"))
        if self.max_length < 4:
            raise ConfigurationError(f"max_length must be at least 4 tokens, not {self.max_length}.")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


PRESETS: dict[str, EncoderSpec] = {
    "e5": EncoderSpec("intfloat/e5-base-v2", "mean", "query: ", "passage: "),
    "bge": EncoderSpec(
        "BAAI/bge-base-en-v1.5", "cls", "Represent this sentence for searching relevant passages: "
    ),
}
"""E5 (Wang et al., 2022) in the form of Search-R1, and BGE (Xiao et al., 2023)."""


def encoder_spec(name: str, **changes: Any) -> EncoderSpec:
    """Return the spec of a preset or of a model.

    Models named like those of E5 or BGE use the prefixes and pooling of their family. All other models use mean
    pooling without prefixes.

    Args:
        name: Preset ("e5" or "bge"), Hugging Face name or folder.
        changes: Fields of `EncoderSpec` to override.
    """
    if name in PRESETS:
        return replace(PRESETS[name], **changes)
    base = name.rstrip("/").rpartition("/")[2].lower().replace("_", "-")
    family = next((f for f in PRESETS if base.startswith((f"{f}-", f"multilingual-{f}-"))), None)
    spec = replace(PRESETS[family], model=name) if family else EncoderSpec(name)
    return replace(spec, **changes)


class Encoder:
    """Encoder from text to unit vectors.

    Args:
        spec: Model to load.
        device: Torch device; None uses a GPU if there is one. Half precision is used on GPUs.
        batch_size: Number of texts per forward pass.

    Attributes:
        dimension: Dimension of the vectors.

    Raises:
        ConfigurationError: torch or transformers is missing, or the model cannot be loaded.
    """

    def __init__(self, spec: EncoderSpec, device: str | None = None, batch_size: int = 64) -> None:
        torch = optional_module("torch", "dense", "dense retrieval")
        transformers = optional_module("transformers", "dense", "dense retrieval")
        self.spec = spec
        self.batch_size = batch_size
        self._torch = torch
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = torch.float16 if self.device.startswith("cuda") else torch.float32
        try:
            # trust_remote_code stays off, so that no code from the model's folder is executed.
            with _no_progress_bar(transformers):
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(spec.model)
                self._model = transformers.AutoModel.from_pretrained(spec.model, dtype=dtype)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigurationError(f"the encoder {spec.model!r} cannot be loaded ({reason}).") from None
        self._model.to(self.device).eval()
        self.dimension = int(self._model.config.hidden_size)
        self._lock = threading.Lock()

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Return the unit vectors of queries; float32, shape (texts, dimension)."""
        return self._encode([self.spec.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Return the unit vectors of passages; float32, shape (texts, dimension)."""
        return self._encode([self.spec.passage_prefix + text for text in texts])

    def probe(self) -> Vectors:
        """Return the vector of a fixed sentence, which differs between encoders with different weights."""
        probe: Vectors = self._encode([_PROBE])[0]
        return probe

    def _encode(self, texts: Sequence[str]) -> Vectors:
        vectors = np.empty((len(texts), self.dimension), np.float32)
        # Tokenizers reject lone surrogates. Tokens rarely have more than 16 characters.
        limit = 16 * self.spec.max_length
        clean = [text[:limit].encode("utf-8", "replace").decode() for text in texts]
        order = sorted(range(len(clean)), key=lambda i: len(clean[i]))  # Reduces padding.
        with self._lock, self._torch.inference_mode():
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                vectors[chosen] = self._encode_batch([clean[i] for i in chosen]).float().cpu().numpy()
        return vectors

    def _encode_batch(self, texts: list[str]) -> torch.Tensor:
        """Return the unit vectors of one batch; shape (texts, dimension)."""
        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self.spec.max_length, return_tensors="pt"
        ).to(self.device)
        hidden = self._model(**inputs).last_hidden_state
        if self.spec.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
        return self._torch.nn.functional.normalize(pooled, dim=-1)


@contextmanager
def _no_progress_bar(transformers: Any) -> Iterator[None]:
    """Context in which transformers draws no progress bars."""
    settings = transformers.utils.logging
    enabled = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            settings.enable_progress_bar()
