"""Loading of models and tokenizers, and the choice of a cache for a model."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import logging

from ....envs.errors import ConfigurationError
from ....envs.extras import missing_extra
from ..base import Request, Sampling
from ..shipped_models import model_source
from .device import check_device
from .generation import Generation
from .kv_cache import KVCache
from .uncached import UncachedDecoder

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


def load_model(name: str | Path, device: str, dtype: str | None, adapter: str | Path | None) -> PreTrainedModel:
    """Load a causal language model in evaluation mode.

    Args:
        name: Folder or Hugging Face hub name of a model, or "sapling" for the shipped one.
        device: Device of the weights, such as "cuda".
        dtype: Data type of the weights, such as "bfloat16"; None uses float32 on the CPU and the checkpoint's
            elsewhere.
        adapter: Folder or hub name of LoRA weights, which are merged into the model; None for no adapter.

    Raises:
        ConfigurationError: The model cannot be loaded, or a setting is invalid.
        DataError: A file of an exported model is damaged.
    """
    precision: Any = ("float32" if device == "cpu" else "auto") if dtype is None else dtype
    if precision != "auto" and not isinstance(getattr(torch, str(precision), None), torch.dtype):
        raise ConfigurationError(f"unknown dtype {dtype!r}; common ones: float32, bfloat16, float16")
    check_device(device)
    source = model_source(name)
    try:
        with without_progress_bar() if Path(source).is_dir() else nullcontext():
            model = AutoModelForCausalLM.from_pretrained(source, dtype=precision)
    except Exception as error:  # of any type: files, formats, the network, remote code
        raise ConfigurationError(f"cannot load the model {str(name)!r}: {_first_line(error)}") from None
    if adapter is not None:
        model = _merge_adapter(model, adapter)
    model = model.to(device)
    if model.device.type == "cpu":
        _align_weights(model)
    return model.eval()


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Hide the bars of loading and saving a local model; that of a download remains."""
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    Args:
        name: Folder or Hugging Face hub name of the model, or "sapling" for the shipped one.

    Raises:
        ConfigurationError: The tokenizer cannot be loaded.
    """
    source = model_source(name)
    try:
        return AutoTokenizer.from_pretrained(source)
    except Exception as error:
        raise ConfigurationError(f"cannot load the tokenizer of {str(name)!r}: {_first_line(error)}") from None


def load_context(name: str | Path, *, is_rescaled: bool = True) -> int | None:
    """Return the context window of a model in tokens, from its configuration file; None if it has none.

    Args:
        name: Folder or Hugging Face hub name of the model, or "sapling" for the shipped one.
        is_rescaled: False ends the window at the model's `rescaling_length`.

    Raises:
        ConfigurationError: The configuration cannot be loaded.
    """
    source = model_source(name)
    try:
        config = AutoConfig.from_pretrained(source)
    except Exception as error:
        raise ConfigurationError(f"cannot load the model {str(name)!r}: {_first_line(error)}") from None
    context = context_of(config)
    original = None if is_rescaled else rescaling_length(config)
    return context if original is None else min(context or original, original)


def context_of(config: PretrainedConfig) -> int | None:
    """Return the context window in a model's configuration, in tokens; None if it has none."""
    return getattr(config.get_text_config(decoder=True), "max_position_embeddings", None) or None


def choose_cache(
    model: PreTrainedModel, context: int | None, max_batch: int, budget: int | None, idle_bytes: int
) -> KVCache | UncachedDecoder:
    """Return a `KVCache` if it reproduces the model's logits, else an `UncachedDecoder`.

    Args:
        model: The model.
        context: Context window in tokens; None if unknown.
        max_batch: Maximum number of conversations in one forward pass.
        budget: See `KVCache`.
        idle_bytes: See `KVCache`.
    """
    layers = _count_plain_layers(model, context)
    if layers is not None:
        try:
            if _reproduces_logits(model, KVCache(model, layers, 2, None, 0)):
                return KVCache(model, layers, max_batch, budget, idle_bytes)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
            pass  # an architecture with an interface of its own
    return UncachedDecoder(model, rescaling_length(model.config))


def rescaling_length(config: PretrainedConfig) -> int | None:
    """Return the length in tokens beyond which all positions are scaled otherwise; None if there is none.

    This is LongRoPE (arXiv:2402.13753): keys and values of shorter sequences are not those of longer ones.
    """
    config = config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    key = "original_max_position_embeddings"
    return rope.get(key) or getattr(config, key, None)


def _count_plain_layers(model: PreTrainedModel, context: int | None) -> int | None:
    """Return the number of layers if all keep plain keys and values over the whole context window, else None."""
    if "flash" in model.config._attn_implementation:
        return None  # Flash attention kernels accept no custom mask.
    rescaling = rescaling_length(model.config)
    if rescaling is not None and (context is None or context > rescaling):
        return None
    # GPT-Neo masks its local layers by the length of the batch, not of a row.
    if "local" in getattr(model.config, "attention_layers", ()):
        return None
    try:
        layers = DynamicCache(config=model.config).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    for layer in layers:
        wide = type(layer) is DynamicSlidingWindowLayer and context is not None and layer.sliding_window >= context
        if type(layer) is not DynamicLayer and not wide:
            return None
    return len(layers) or None


def _reproduces_logits(model: PreTrainedModel, cache: KVCache) -> bool:
    """Return True if two prefills and one decoding step of ragged rows give the logits of plain forward passes."""
    rng = random.Random(0)
    vocabulary = model.get_input_embeddings().num_embeddings
    generations = []
    for n, length in enumerate((5, 3)):
        ids = [rng.randrange(vocabulary) for _ in range(length)]
        generation = Generation(Request(str(n), (), ids, Sampling(), 0), ids, length, [], None)
        generations.append(generation)
        cache.admit(generation)
    for new_tokens in (2, 1, 1):
        ordered, cached = cache.advance(generations)
        for generation, logits in zip(ordered, cached, strict=True):
            expected = model(input_ids=torch.tensor([generation.ids], device=model.device)).logits[0, -1].float()
            is_half = model.dtype in (torch.float16, torch.bfloat16)
            tolerance = (0.2 if is_half else 1e-3) * float(expected.std()) + 1e-6
            is_close = torch.allclose(logits, expected, rtol=0, atol=tolerance, equal_nan=True)
            if not is_close and expected.isfinite().all():
                return False
            generation.ids += [rng.randrange(vocabulary) for _ in range(new_tokens)]
    return True


def _align_weights(model: PreTrainedModel) -> None:
    """Copy all tensors of a model to memory that torch allocated.

    Weights that are mapped from a file have its alignment, and matrix-vector products may round differently at
    another one. A resumed run, whose weights come from a checkpoint, must round as the run before it.
    """
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.data = tensor.data.clone()


def _merge_adapter(model: PreTrainedModel, adapter: str | Path) -> PreTrainedModel:
    try:
        from peft import PeftModel
    except ImportError as error:
        raise missing_extra("an adapter", "lm", error) from None
    source = str(model_source(adapter))
    try:
        with warnings.catch_warnings():  # deprecations between peft and transformers, which no user can fix
            warnings.simplefilter("ignore", FutureWarning)
            return PeftModel.from_pretrained(model, source).merge_and_unload()
    except Exception as error:
        raise ConfigurationError(f"cannot load the adapter {str(adapter)!r}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
