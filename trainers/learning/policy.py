"""Policy with its critic, and the loading of models to train."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...agents.engines.local.load import load_model, load_tokenizer
from ...envs.errors import ConfigurationError
from ...envs.extras import missing_extra
from ..algorithms.objectives.logprobs import score_hidden, score_tokens
from ..config.settings import LoraConfig
from ..data.microbatches import MicroBatch
from ..data.prefix_trees import TreeLayout
from .tree_attention import enable_tree_attention, tree_inputs

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Policy(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Causal language model that scores tokens, with or without a critic.

    All trained parameters are in this one module and pass through its one `forward`, so that DDP, FSDP and
    DeepSpeed have a single module to wrap.

    Args:
        model: Hugging Face causal language model; LoRA adapters, if any, are in its layers.
        critic: Add a critic: a copy of the model without its head, and a linear layer initialized to 0.

    Attributes:
        model: The language model; engines may share it.
        tree_layout: Layout in which a micro-batch may be a tree of common prefixes; None if it may not.
    """

    def __init__(self, model: PreTrainedModel, critic: bool = False) -> None:
        super().__init__()
        self.model = model
        self.tree_layout: TreeLayout | None = enable_tree_attention(model)
        width = model.config.get_text_config(decoder=True).hidden_size
        self.critic: Any = None
        if critic:
            head = nn.Linear(width, 1, device=model.device)
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
            self.critic = nn.ModuleDict({"body": copy.deepcopy(_body(model)), "head": head})
        for module in self.modules():
            _disable_dropout(module)
        # FSDP wraps along these classes.
        self._no_split_modules = list(getattr(model, "_no_split_modules", None) or [])
        self._has_linear_head = _has_linear_head(model)
        self.train()

    def forward(
        self,
        tokens: Tensor,
        sources: Tensor,
        targets: Tensor,
        temperature: float,
        use_critic: bool = True,
        use_policy: bool = True,
        entropy_grad: bool = True,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        paths: Tensor | None = None,
        owners: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score tokens.

        Args:
            tokens: See `MicroBatch`, [B, T].
            sources: Flattened index of the position before each scored token, [n].
            targets: Ids of the scored tokens, [n].
            temperature: See `score_tokens`.
            use_critic: Compute values.
            use_policy: Compute log-probabilities and entropies.
            entropy_grad: See `score_tokens`.
            positions, segments, paths, owners: See `MicroBatch`.

        Returns:
            Log-probabilities, entropies and values, each float32 [n]; empty if not computed.
        """
        logp = entropy = values = torch.zeros(0, device=tokens.device)
        inputs: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
        if positions is not None:
            inputs = tree_inputs(tokens, positions, segments, paths, owners)
        if use_policy and self._has_linear_head:
            hidden = _hidden_states(_body(self.model), inputs, sources)
            head = self.model.get_output_embeddings()
            logp, entropy = score_hidden(hidden, head, targets, temperature, entropy_grad=entropy_grad)
        elif use_policy:
            logits = self.model(**inputs).logits
            logp, entropy = score_tokens(logits.flatten(0, 1)[sources], targets, temperature, entropy_grad)
        if self.critic is not None and use_critic:
            hidden = _hidden_states(self.critic["body"], inputs, sources)
            values = self.critic["head"](hidden).sum(-1).float()  # sum of one: FSDP forbids returning views
        return logp, entropy, values


def forward_inputs(micro: MicroBatch, device: Any) -> dict[str, Tensor]:
    """Return the arguments of `Policy.forward` that a micro-batch determines, on a device."""
    names = ("tokens", "sources", "targets", "positions", "segments", "paths", "owners")
    arrays = {name: getattr(micro, name) for name in names}
    return {name: torch.as_tensor(array, device=device) for name, array in arrays.items() if array is not None}


def _body(model: PreTrainedModel) -> Any:
    """Return the model without its head."""
    return model.base_model


def _hidden_states(body: Any, inputs: dict[str, Any], sources: Tensor) -> Tensor:
    states = body(**inputs).last_hidden_state
    return states.flatten(0, 1)[sources]


def _disable_dropout(module: nn.Module) -> None:
    """Set dropout to 0, so that the trained policy is the one that sampled."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        module.p = 0.0
    for name in ("attention_dropout", "dropout"):
        if isinstance(getattr(module, name, None), float):
            setattr(module, name, 0.0)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _has_linear_head(model: PreTrainedModel) -> bool:
    """Return True if the logits are the head's output, neither scaled nor capped."""
    ids = torch.arange(4, device=model.device).unsqueeze(0)
    was_training = model.training
    model.eval()
    try:
        logits = model(input_ids=ids, use_cache=False).logits
        head = model.get_output_embeddings()
        return head is not None and torch.allclose(
            head(_body(model)(input_ids=ids, use_cache=False).last_hidden_state), logits, rtol=1e-4, atol=1e-5
        )
    except (AttributeError, TypeError):
        return False
    finally:
        model.train(was_training)


# ---------------------------------------------------------------------- loading


def load_trainable_model(
    source: str | Path, device: str, *, lora: LoraConfig | None = None, gradient_checkpointing: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model to train, in float32, and its tokenizer.

    Args:
        source: Folder of the model, or its name on the Hugging Face hub.
        device: Device of the model.
        lora: Adapters to add.
        gradient_checkpointing: See `HardwareConfig`.

    Returns:
        The causal language model (with adapters: the original, whose layers contain them) and the tokenizer.

    Raises:
        ConfigurationError: The model cannot be loaded.
    """
    tokenizer = load_tokenizer(source)
    model = load_model(source, device, "float32", None)
    if lora is not None:
        model = _add_adapters(model, lora)
    if gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return model, tokenizer


def _add_adapters(model: PreTrainedModel, lora: LoraConfig) -> PreTrainedModel:
    try:
        import peft
    except ImportError as error:
        raise missing_extra("LoRA", "lm", error) from None
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=lora.targets,
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.manual_seed(0)  # the same adapters in every process and every run
            wrapper = peft.get_peft_model(model, settings)
    except (ValueError, re.error) as error:  # A text is a regular expression of peft's.
        raise ConfigurationError(
            f"lora.targets = {lora.targets!r} matches no layer of the model: {error}"
        ) from None
    original = wrapper.get_base_model()
    original.peft_wrapper = (wrapper,)  # in a tuple, so that it does not become a submodule of its own submodule
    return original


def peft_wrapper(model: PreTrainedModel) -> PeftModel | None:
    """Return the peft model around a model with adapters; None for a model without."""
    held = getattr(model, "peft_wrapper", None)
    return held[0] if held else None
