"""The model that learns: the policy, the critic beside it, and the reference that it must not leave."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...agents.engines.local.load import load_model, load_tokenizer
from ...envs.errors import ConfigurationError
from ..algorithms.objectives.logprobs import TokenScores, score_hidden, score_tokens
from ..config.settings import Lora
from ..data.microbatches import MicroBatch
from .sharding import merged


class Scores(NamedTuple):
    """What the models say of sampled tokens, each of shape [n], float32; `values` is empty without a critic."""

    logp: Tensor
    entropy: Tensor
    values: Tensor


class Policy(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A causal language model that scores tokens, with a critic or without.

    All that is learnt lies in this one module and goes through its one `forward`, so that whatever spreads a
    module over devices (DDP, FSDP, DeepSpeed) has one to spread.

    Args:
        causal: a Hugging Face causal language model; its adapters, if any, lie in its layers.
        critic: give it a critic: a copy of the model without its head, and a linear layer that starts at 0.

    Attributes:
        causal: the model that engines may share.
    """

    def __init__(self, causal: Any, critic: bool = False) -> None:
        super().__init__()
        self.causal = causal
        width = causal.config.get_text_config(decoder=True).hidden_size
        self.critic: Any = None
        if critic:
            head = nn.Linear(width, 1, device=causal.device)
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
            self.critic = nn.ModuleDict({"body": copy.deepcopy(_body(causal)), "head": head})
        for module in self.modules():
            _no_dropout(module)
        self._no_split_modules = list(getattr(causal, "_no_split_modules", None) or [])  # what FSDP cuts along
        self._plain_head = _has_plain_head(causal)
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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score tokens.

        Args:
            tokens: rows padded on the right, [B, T]. Attention is causal, so what stands to the right of a token
                cannot change it, and no mask is needed.
            sources: flattened index of the position before each scored token, [n].
            targets: ids of the scored tokens, [n].
            temperature: see `score_tokens`.
            use_critic: ask the critic.
            use_policy: ask the policy; what is not asked for is empty.
            entropy_grad: see `score_tokens`.
        """
        logp = entropy = values = torch.zeros(0, device=tokens.device)
        if use_policy and self._plain_head:
            hidden = _hidden(_body(self.causal), tokens, sources)
            head = self.causal.get_output_embeddings()
            logp, entropy = score_hidden(hidden, head, targets, temperature, entropy_grad=entropy_grad)
        elif use_policy:
            logits = self.causal(input_ids=tokens, use_cache=False).logits
            logp, entropy = score_tokens(logits.flatten(0, 1)[sources], targets, temperature, entropy_grad)
        if self.critic is not None and use_critic:
            hidden = _hidden(self.critic["body"], tokens, sources)
            values = self.critic["head"](hidden).sum(-1).float()  # of one: FSDP wants no views
        return logp, entropy, values


def on_device(micro: MicroBatch, device: Any) -> dict[str, Tensor]:
    """The arguments of `Policy.forward` that a micro-batch decides."""
    named = {"tokens": micro.tokens, "sources": micro.sources, "targets": micro.targets}
    return {name: torch.as_tensor(array, device=device) for name, array in named.items()}


def _body(causal: Any) -> Any:
    """The model without its head."""
    return causal.base_model


def _hidden(body: Any, tokens: Tensor, sources: Tensor) -> Tensor:
    states = body(input_ids=tokens, use_cache=False).last_hidden_state
    return states.flatten(0, 1)[sources]


def _no_dropout(module: Any) -> None:
    """The policy that learns must be the one that sampled, so nothing is dropped out."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        module.p = 0.0
    for name in ("attention_dropout", "dropout"):
        if isinstance(getattr(module, name, None), float):
            setattr(module, name, 0.0)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _has_plain_head(causal: Any) -> bool:
    """Whether the logits are the head's own, neither scaled nor capped."""
    ids = torch.arange(4, device=causal.device).unsqueeze(0)
    was_training = causal.training
    causal.eval()
    try:
        logits = causal(input_ids=ids, use_cache=False).logits
        head = causal.get_output_embeddings()
        return head is not None and torch.allclose(
            head(_body(causal)(input_ids=ids, use_cache=False).last_hidden_state), logits, rtol=1e-4, atol=1e-5
        )
    except (AttributeError, TypeError):
        return False
    finally:
        causal.train(was_training)


# ---------------------------------------------------------------------- loading


def load_causal(
    source: str | Path, device: str, *, lora: Lora | None = None, gradient_checkpointing: bool = False
) -> tuple[Any, Any]:
    """A model to train, in float32, and its tokenizer.

    Args:
        source: a folder or a name on the Hugging Face hub.
        device: where to put it.
        lora: adapters to add.
        gradient_checkpointing: see `Hardware`.

    Returns:
        The causal language model (with adapters: the original, whose layers hold them) and the tokenizer.

    Raises:
        ConfigurationError: it cannot be had.
    """
    tokenizer = load_tokenizer(source)
    causal = load_model(source, device, "float32", None)
    if lora is not None:
        causal = _adapted(causal, lora)
    if gradient_checkpointing:
        causal.activation_checkpointing_enable({"use_reentrant": False})
    return causal, tokenizer


def _adapted(causal: Any, lora: Lora) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigurationError("LoRA needs peft: pip install 'arboretum[lm]'") from None
    settings = LoraConfig(
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
            wrapped = get_peft_model(causal, settings)
    except ValueError as error:
        raise ConfigurationError(f"lora.targets = {lora.targets!r} fits no layer of the model: {error}") from None
    original = wrapped.get_base_model()
    original.peft_wrapper = (wrapped,)  # in a tuple, so that it is no submodule of its own submodule
    return original


def adapters(causal: Any) -> Any | None:
    """The peft model around a model with adapters; None for one without."""
    held = getattr(causal, "peft_wrapper", None)
    return held[0] if held else None


class Reference:
    """The policy as it was before training.

    With adapters it is the model with these switched off, and costs no memory; else it is a frozen copy.
    """

    def __init__(self, causal: Any) -> None:
        """Take the weights of `causal` as they are now."""
        self._adapted = adapters(causal)
        self._copy: Policy | None = None
        if self._adapted is None:
            self._copy = Policy(copy.deepcopy(causal)).eval().requires_grad_(False)

    @contextmanager
    def scorer(self, policy: Any) -> Iterator[Any]:
        """What to call in the place of `policy` to score tokens as the reference does."""
        with self._adapted.disable_adapter() if self._adapted is not None else nullcontext():
            yield policy if self._copy is None else self._copy


def export(causal: Any, tokenizer: Any, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a plain Hugging Face folder, adapters merged, that `transformers` and vLLM load.

    Args:
        causal: the model.
        tokenizer: its tokenizer.
        folder: made if missing.
        weights: of `merged`, where one process could not gather them alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    causal.save_pretrained(folder, state_dict=dict(merged(causal)) if weights is None else dict(weights))
    tokenizer.save_pretrained(folder)


__all__ = ["Policy", "Reference", "Scores", "TokenScores", "adapters", "export", "load_causal", "on_device"]
