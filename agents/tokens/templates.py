"""Chat templates: the shipped append-only ones, and which of them fits a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ...assets import asset
from ...envs.errors import ConfigurationError, unknown_name


class Template(NamedTuple):
    """A Jinja chat template and how errors call it."""

    name: str
    text: str


# The tokens by which a family's tokenizer is known, most telling family first.
_FAMILIES: dict[str, tuple[str, ...]] = {
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>"),
    "phi4": ("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    "phi4-mini": ("<|user|>", "<|assistant|>", "<|end|>"),
    "qwen3": ("<|im_start|>", "<|im_end|>", "<tool_call>", "<think>"),
    "qwen2.5": ("<|im_start|>", "<|im_end|>", "<tool_call>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
}
_TURN_END = {"llama3": "<|eot_id|>", "phi4-mini": "<|end|>"} | dict.fromkeys(
    ("phi4", "qwen3", "qwen2.5", "chatml"), "<|im_end|>"
)


def shipped_templates() -> list[str]:
    """Names of the append-only training templates that come with this package."""
    return list(_FAMILIES)


def load_template(tokenizer: Any, template: str | Path | None) -> Template:
    """The template to use.

    Args:
        tokenizer: a Hugging Face tokenizer.
        template: the name of a shipped one, the path of a `.jinja` file, or None for the tokenizer's own.

    Raises:
        ConfigurationError: there is no such template, or the tokenizer lacks tokens that it needs.
    """
    if template is None:
        try:
            own = tokenizer.get_chat_template()
        except ValueError:
            raise ConfigurationError(
                f"the tokenizer of {_name(tokenizer)} has no chat template; {advice(tokenizer)}"
            ) from None
        return Template(f"the chat template of {_name(tokenizer)}", own)
    if str(template) in _FAMILIES:
        name = str(template)
        missing = [token for token in _needed(name) if not _is_token(tokenizer, token)]
        if missing:
            raise ConfigurationError(
                f"the chat template {name!r} needs the token {missing[0]}, which the tokenizer of "
                f"{_name(tokenizer)} does not have; {advice(tokenizer)}"
            )
        text = asset(f"templates/{name}.jinja").read_text("utf-8")
        return Template(f"the chat template {name!r}", text)
    path = Path(template)
    if not path.is_file():
        if path.suffix != ".jinja":
            raise unknown_name("chat template", template, _FAMILIES)
        raise ConfigurationError(f"{path}: there is no such chat template file")
    return Template(f"the chat template {path}", path.read_text(encoding="utf-8"))


def _name(tokenizer: Any) -> str:
    """How errors call a tokenizer."""
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)


def turn_end_ids(tokenizer: Any) -> set[int]:
    """The end-of-text token, and the end-of-turn token of the family that the vocabulary belongs to.

    Base models and their chat siblings share a vocabulary but not an end-of-text token; a reply ends at either.
    """
    added, family = tokenizer.get_added_vocab(), _family(tokenizer)
    ends = {tokenizer.eos_token_id} - {None}
    return ends if family is None else ends | {added[_TURN_END[family]]}


def advice(tokenizer: Any) -> str:
    """Which template to pass instead, as the second half of a sentence."""
    family = _family(tokenizer)
    if family is not None:
        return f"pass template={family!r}, an append-only one for this family"
    return f"pass the path of an append-only .jinja template (shipped: {', '.join(_FAMILIES)})"


def _family(tokenizer: Any) -> str | None:
    return next((name for name, all_of in _FAMILIES.items() if all(_is_token(tokenizer, t) for t in all_of)), None)


def _needed(name: str) -> tuple[str, ...]:
    """The tokens without which a template cannot work; those of tool calls are plain text in some tokenizers."""
    return tuple(token for token in _FAMILIES[name] if token.startswith("<|"))


def _is_token(tokenizer: Any, token: str) -> bool:
    """Whether a text is one token of its own, never split and never merged with its neighbours."""
    return token in tokenizer.get_added_vocab()
