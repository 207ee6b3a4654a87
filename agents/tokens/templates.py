"""Shipped append-only chat templates, and the choice of one for a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...assets import asset
from ...envs.errors import ConfigurationError, unknown_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Template(NamedTuple):
    """A Jinja chat template.

    Attributes:
        name: Name in error messages.
        text: The template.
    """

    name: str
    text: str


# The tokens by which the tokenizer of a family is recognized, the most specific family first.
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

_WITH_TOOLS = ("qwen2.5", "qwen3")


def shipped_templates() -> list[str]:
    """Return the names of the shipped templates, none of which ever rewrites an earlier turn."""
    return list(_FAMILIES)


def check_template(template: str | Path) -> None:
    """Check that a template is shipped or a file.

    Raises:
        ConfigurationError: There is no such template.
    """
    path = Path(template)
    if str(template) in _FAMILIES or path.is_file():
        return
    if path.suffix != ".jinja":
        raise unknown_name("chat template", template, _FAMILIES)
    raise ConfigurationError(f"chat template file {path} does not exist; pass the path of a .jinja file")


def load_template(tokenizer: PreTrainedTokenizerBase, template: str | Path | None) -> Template:
    """Load a chat template for a tokenizer.

    Args:
        tokenizer: A Hugging Face tokenizer.
        template: Name of a shipped template, or path of a `.jinja` file. None uses the tokenizer's own.

    Raises:
        ConfigurationError: There is no such template, or the tokenizer lacks a token that it needs.
    """
    if template is None:
        try:
            own = tokenizer.get_chat_template()
        except ValueError:
            raise ConfigurationError(
                f"the tokenizer of {_name(tokenizer)} has no chat template; {suggest_template(tokenizer)}"
            ) from None
        return Template(f"the chat template of {_name(tokenizer)}", own)
    if str(template) in _FAMILIES:
        name = str(template)
        missing = [token for token in _required_tokens(name) if not _is_token(tokenizer, token)]
        if missing:
            raise ConfigurationError(
                f"the chat template {name!r} needs the token {missing[0]}, which the tokenizer of "
                f"{_name(tokenizer)} does not have; {suggest_template(tokenizer)}"
            )
        text = asset(f"templates/{name}.jinja").read_text("utf-8")
        return Template(f"the chat template {name!r}", text)
    check_template(template)
    return Template(f"the chat template {template}", Path(template).read_text(encoding="utf-8"))


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the name of a tokenizer for error messages."""
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)


def turn_end_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of the end-of-text token and of the end-of-turn token of the tokenizer's family.

    Base and chat models of a family share a vocabulary but not the end-of-text token; a reply ends at either.
    """
    added, family = tokenizer.get_added_vocab(), _family(tokenizer)
    ends = {tokenizer.eos_token_id} - {None}
    return ends if family is None else ends | {added[_TURN_END[family]]}


def suggest_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the suggestion of a suitable template, as the second half of an error message."""
    family = _family(tokenizer)
    if family is not None:
        return f"pass {_option(family)}, an append-only one for this family"
    shipped = ", ".join(_FAMILIES)
    return f"pass template=, or --template, with the path of an append-only .jinja file, or a name ({shipped})"


def suggest_tool_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the suggestion of a template with function calls, as the second half of an error message."""
    fitting = [
        name for name in _WITH_TOOLS if all(_is_token(tokenizer, token) for token in _required_tokens(name))
    ]
    if fitting:
        return f"pass {_option(fitting[0])}, which has them, or choose another dialogue"
    shipped = ", ".join(_WITH_TOOLS)
    file = f"the path of a .jinja file that has them, or a name ({shipped})"
    return f"pass template=, or --template, with {file}; or choose another dialogue"


def _option(name: str) -> str:
    """Return how a template is chosen, in Python and on the command line."""
    return f"template={name!r} (--template {name})"


def _family(tokenizer: PreTrainedTokenizerBase) -> str | None:
    return next((name for name, all_of in _FAMILIES.items() if all(_is_token(tokenizer, t) for t in all_of)), None)


def _required_tokens(name: str) -> tuple[str, ...]:
    """Return the tokens that a template requires; those of tool calls are plain text in some tokenizers."""
    return tuple(token for token in _FAMILIES[name] if token.startswith("<|"))


def _is_token(tokenizer: PreTrainedTokenizerBase, token: str) -> bool:
    """Return True if a text is an added token, which is never split and never merged with adjacent text."""
    return token in tokenizer.get_added_vocab()
