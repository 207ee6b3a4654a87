"""Sentence encoders from Hugging Face: text to unit vectors. Needs the extra `dense` (torch, transformers)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError, unknown_name
from .extras import optional_module

Pooling = Literal["mean", "cls"]
Vectors = NDArray[np.float32]

_PROBE = "The arboretum keeps trees from all over the world."


@dataclass(frozen=True)
class EncoderSpec:
    """Which encoder, and how it wants its input.

    Attributes:
        model: a Hugging Face name or a local folder.
        pooling: "mean" over the tokens that are not padding, or the first token ("cls").
        query_prefix, passage_prefix: put before every query and every passage.
        max_length: tokens beyond are cut off.
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
        return asdict(self)


PRESETS: dict[str, EncoderSpec] = {
    "e5": EncoderSpec("intfloat/e5-base-v2", "mean", "query: ", "passage: "),
    "bge": EncoderSpec(
        "BAAI/bge-base-en-v1.5", "cls", "Represent this sentence for searching relevant passages: "
    ),
}
"""E5 (Wang et al., 2022), as Search-R1 uses it, and BGE (Xiao et al., 2023)."""


def encoder_spec(name: str, **changes: Any) -> EncoderSpec:
    """The spec of a preset ("e5", "bge") or of a model, whose name decides the family: E5's and BGE's models get
    their prefixes and pooling, others mean pooling without prefixes.

    Args:
        name: a preset, a Hugging Face name or a folder.
        changes: fields of `EncoderSpec` that differ.
    """
    if name in PRESETS:
        return replace(PRESETS[name], **changes)
    base = name.rstrip("/").rpartition("/")[2].lower().replace("_", "-")
    family = next((f for f in PRESETS if base.startswith((f"{f}-", f"multilingual-{f}-"))), None)
    spec = replace(PRESETS[family], model=name) if family else EncoderSpec(name)
    return replace(spec, **changes)


class Encoder:
    """A loaded encoder.

    Args:
        spec: what to load.
        device: a torch device; None takes a GPU where there is one (and half precision on it).
        batch_size: texts encoded at once.

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
            # A plain loader of weights: nothing from a model's folder is run.
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
        """Unit vectors of queries: shape (texts, dimension), float32."""
        return self._encode([self.spec.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors of passages: shape (texts, dimension), float32."""
        return self._encode([self.spec.passage_prefix + text for text in texts])

    def probe(self) -> Vectors:
        """The vector of a fixed sentence: tells whether two encoders have the same weights."""
        probe: Vectors = self._encode([_PROBE])[0]
        return probe

    def _encode(self, texts: Sequence[str]) -> Vectors:
        vectors = np.empty((len(texts), self.dimension), np.float32)
        # Tokenizers refuse lone surrogates; and a token has rarely more than 16 characters.
        limit = 16 * self.spec.max_length
        clean = [text[:limit].encode("utf-8", "replace").decode() for text in texts]
        order = sorted(range(len(clean)), key=lambda i: len(clean[i]))  # little padding within a batch
        with self._lock, self._torch.inference_mode():
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                vectors[chosen] = self._batch([clean[i] for i in chosen]).float().cpu().numpy()
        return vectors

    def _batch(self, texts: list[str]) -> Any:
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
    """Load a model without transformers drawing on the terminal."""
    settings = transformers.utils.logging
    shown = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            settings.enable_progress_bar()
