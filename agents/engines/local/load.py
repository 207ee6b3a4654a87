"""Loading models and tokenizers, and finding out which cache fits a model."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ....envs.errors import ConfigurationError
from ..base import Request, Sampling
from ..shipped_models import model_source
from .generation import Task
from .kv_cache import Rows
from .uncached import Reencoding


def best_device() -> str:
    """CUDA, then Apple's GPU, then the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def load_model(name: str | Path, device: str, dtype: str | None, adapter: str | Path | None) -> Any:
    """A causal language model, ready to sample from.

    Args:
        name: a folder, a name on the Hugging Face hub, or "seed" for the model that comes with the package.
        device: where to put it.
        dtype: such as "bfloat16"; None for that of the checkpoint, on the CPU float32.
        adapter: a folder or hub name of LoRA weights, merged into the model; or None.

    Raises:
        ConfigurationError: it cannot be had, or is no causal language model.
    """
    precision: Any = ("float32" if device == "cpu" else "auto") if dtype is None else dtype
    if precision != "auto" and not isinstance(getattr(torch, str(precision), None), torch.dtype):
        raise ConfigurationError(f"unknown dtype {dtype!r}; common ones: float32, bfloat16, float16")
    _check_device(device)
    try:
        model = AutoModelForCausalLM.from_pretrained(model_source(name), dtype=precision)
    except Exception as error:  # many kinds: files, formats, the network, remote code
        raise ConfigurationError(f"cannot load the model {str(name)!r}: {_first_line(error)}") from None
    if adapter is not None:
        model = _with_adapter(model, adapter)
    return model.to(device).eval()


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer of a folder or a hub name.

    Raises:
        ConfigurationError: it cannot be had.
    """
    try:
        return AutoTokenizer.from_pretrained(model_source(name))
    except Exception as error:
        raise ConfigurationError(f"cannot load the tokenizer of {str(name)!r}: {_first_line(error)}") from None


def load_context(name: str | Path) -> int | None:
    """The longest sequence that a model was made for, in tokens; None where its configuration does not say.

    Raises:
        ConfigurationError: the configuration cannot be had.
    """
    try:
        config = AutoConfig.from_pretrained(model_source(name))
    except Exception as error:
        raise ConfigurationError(f"cannot load the model {str(name)!r}: {_first_line(error)}") from None
    return context_of(config)


def context_of(config: Any) -> int | None:
    """The longest sequence, in tokens, that a model's configuration names; None where it names none."""
    return getattr(config.get_text_config(decoder=True), "max_position_embeddings", None) or None


def choose_cache(
    model: Any, context: int | None, max_batch: int, budget: int | None, idle_bytes: int
) -> Rows | Reencoding:
    """Rows of keys and values where these give the model's own logits, else encoding anew in every turn."""
    layers = _plain_layers(model, context)
    if layers is not None:
        try:
            if _agrees(model, Rows(model, layers, 2, None, 0)):
                return Rows(model, layers, max_batch, budget, idle_bytes)
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
            pass  # an architecture with a convention of its own
    return Reencoding(model)


def _plain_layers(model: Any, context: int | None) -> int | None:
    """How many layers keep keys and values; None if any keeps something else, or forgets within the context."""
    if model.config._attn_implementation not in ("sdpa", "eager"):
        return None  # flash kernels take no mask of their own for each row
    try:
        layers = DynamicCache(config=model.config).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    for layer in layers:
        wide = type(layer) is DynamicSlidingWindowLayer and context is not None and layer.sliding_window >= context
        if type(layer) is not DynamicLayer and not wide:
            return None
    return len(layers) or None


def _agrees(model: Any, rows: Rows) -> bool:
    """Whether ragged rows, encoded in two pieces and two steps, give the logits of plain forward passes."""
    rng = random.Random(0)
    vocabulary = model.get_input_embeddings().num_embeddings
    tasks = []
    for n, length in enumerate((5, 3)):
        ids = [rng.randrange(vocabulary) for _ in range(length)]
        task = Task(Request(str(n), (), ids, Sampling(), 0), ids, length, [], None)
        tasks.append(task)
        rows.admit(task)
    for more in (2, 1, 1):
        ordered, cached = rows.advance(tasks)
        for task, row in zip(ordered, cached, strict=True):
            plain = model(input_ids=torch.tensor([task.ids], device=model.device)).logits[0, -1].float()
            coarse = model.dtype in (torch.float16, torch.bfloat16)
            tolerance = (0.2 if coarse else 1e-3) * float(plain.std()) + 1e-6
            if not torch.allclose(row, plain, rtol=0, atol=tolerance, equal_nan=True) and plain.isfinite().all():
                return False
            task.ids += [rng.randrange(vocabulary) for _ in range(more)]
    return True


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigurationError(f"unknown device {name!r}; known: cuda, cuda:1, mps, cpu") from None
    there = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if not there.get(device.type, lambda: True)():
        raise ConfigurationError(
            f"this machine or this torch has no {name!r}; leave device out for the best there is"
        )


def _with_adapter(model: Any, adapter: str | Path) -> Any:
    try:
        from peft import PeftModel
    except ImportError:
        raise ConfigurationError("LoRA adapters need peft: pip install 'arboretum[lm]'") from None
    try:
        with warnings.catch_warnings():  # of what peft calls in transformers: nothing that a user could mend
            warnings.simplefilter("ignore", FutureWarning)
            return PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    except Exception as error:
        raise ConfigurationError(f"cannot load the adapter {str(adapter)!r}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
