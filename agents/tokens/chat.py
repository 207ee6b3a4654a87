"""Chat templates applied piece by piece, so that nothing the model sampled is ever decoded and encoded again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from ...envs.errors import ConfigurationError
from ..engines.base import Message
from .templates import Template, advice, load_template

# What a template may do to earlier turns, and a reply that shows it.
_PROBES = {
    "it changes earlier turns": "Go left.",
    "it drops or moves thoughts": "<think>The box is left of me.</think><answer>Left</answer>",
    "it drops or moves thoughts that stand on lines of their own": "<think>\nleft\n</think>\n\nLeft",
    "it strips white space from replies": " \n Left \n\n",
    "it changes empty replies": "",
    "it changes replies of white space only": "\n\n",
}
_BASE = [Message("user", "What now?")]
_MARK = "Go left."


_Render = Callable[[Sequence[Message]], str]


class ChatTokens:
    """Turns messages into tokens, one turn at a time.

    A conversation is `opening(…)`, what the model sampled, `bridge(…)`, what it sampled next, and so on. Whatever
    was sampled stands in it id for id. Where that is the tokenizer's own encoding of the reply, the concatenation
    decodes to exactly what the template renders for the whole conversation. Texts of messages cannot forge turns:
    special tokens that they spell out are encoded as plain text.

    Attributes:
        tokenizer: the Hugging Face tokenizer.
        end_ids: the tokens that end a turn.
    """

    def __init__(self, tokenizer: Any, template: str | Path | None = None) -> None:
        """Check that the template is append-only by rendering small conversations with it.

        Args:
            tokenizer: a Hugging Face tokenizer.
            template: the name of a shipped template ("chatml", "llama3", "phi4", "phi4-mini", "qwen2.5", "qwen3"),
                the path of a `.jinja` file, or None for the tokenizer's own. The shipped ones keep the original's
                tokens and roles, never rewrite an earlier turn and add no system prompt of their own.

        Raises:
            ConfigurationError: the template is not known, does not fit the tokenizer, or rewrites earlier turns.
        """
        self.tokenizer = tokenizer
        self._template: Template = load_template(tokenizer, template)
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        texts = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._head = self._render(_BASE) + _MARK
        self._probe()
        closing = self._encode(self._bridge_text(_BASE))
        self._turn_end = next((i for i in closing if i in tokenizer.added_tokens_decoder), None)
        self.end_ids: frozenset[int] = frozenset({self._turn_end, tokenizer.eos_token_id} - {None})

    def opening(self, messages: Sequence[Message], prefill: str = "") -> list[int]:
        """Tokens of a new conversation, up to where the reply begins.

        Args:
            messages: what stands before the first reply; replies of few-shot examples may be among them.
            prefill: text that the reply is made to begin with.
        """
        return self._tokens(messages, prefill, self._render)

    def bridge(self, last_sampled_ids: Sequence[int], messages: Sequence[Message], prefill: str = "") -> list[int]:
        """Tokens between a sampled reply and the next reply.

        Args:
            last_sampled_ids: the reply as it was sampled; with its end-of-turn token, or without it where it was
                cut. Only the last token is looked at.
            messages: what comes before the next reply, usually one message of the user.
            prefill: text that the next reply is made to begin with.
        """
        ids = self._tokens(messages, prefill, self._bridge_text)
        if last_sampled_ids and last_sampled_ids[-1] == self._turn_end:
            return ids[ids.index(self._turn_end) + 1 :]
        return ids

    def _tokens(self, messages: Sequence[Message], prefill: str, render: _Render) -> list[int]:
        if self._special is None or not any(self._special.search(message.content) for message in messages):
            return self._encode(render(messages) + prefill)
        # While the template works, a private-use character that no message contains stands for such tokens.
        whole = "".join(message.content for message in messages)
        shield = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in whole)
        found: list[str] = []

        def hide(match: re.Match[str]) -> str:
            found.append(match[0])
            return shield

        shielded = [Message(message.role, self._special.sub(hide, message.content)) for message in messages]
        first, *rest = render(shielded).split(shield)
        ids = self._encode(first if rest else first + prefill)
        for n, (literal, text) in enumerate(zip(found, rest, strict=True)):
            ids += self.tokenizer.encode(literal, add_special_tokens=False, split_special_tokens=True)
            ids += self._encode(text + prefill if n == len(rest) - 1 else text)
        return ids

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _bridge_text(self, messages: Sequence[Message]) -> str:
        """What the template puts between a reply and the next; independent of all that came before."""
        text = self._render([*_BASE, Message("assistant", _MARK), *messages])
        if not text.startswith(self._head):
            raise self._rewrites("it changes earlier turns")
        return text[len(self._head) :]

    def _render(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        plain = [message._asdict() for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=True, chat_template=self._template.text
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(message.role for message in messages)
            raise ConfigurationError(
                f"{self._template.name} cannot render messages of these roles ({roles}): {error}"
            ) from None
        return str(text)

    def _probe(self) -> None:
        """Render conversations whole and piece by piece; both must be the same text."""
        between, replies = self._bridge_text(_BASE), _PROBES.values()
        alone = [(fault, (reply, reply)) for fault, reply in _PROBES.items()]
        mixed = [("it changes earlier turns", pair) for pair in permutations(replies, 2)]
        for fault, said in alone + mixed:
            conversation, pieces = list(_BASE), self._render(_BASE)
            for reply in said:
                conversation += [Message("assistant", reply), *_BASE]
                pieces += reply + between
                if self._render(conversation) != pieces:
                    raise self._rewrites(fault)

    def _rewrites(self, fault: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._template.name} is not append-only ({fault}): the model would be trained on other tokens than "
            f"those that it saw; {advice(self.tokenizer)}"
        )
