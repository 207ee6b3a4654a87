"""Chat templates applied turn by turn, so that sampled tokens are never decoded and encoded again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...envs.errors import ConfigurationError
from ...envs.tools import Parameter, Tool
from ..engines.base import Message
from ..tool_calls import ToolCall, write_reply
from .templates import Template, load_template, suggest_template, suggest_tool_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Ways in which a template may rewrite earlier turns, each with a reply that reveals it.
_PROBES = {
    "it changes earlier turns": "Go left.",
    "it drops or moves thoughts": "<think>The box is left of me.</think><answer>Left</answer>",
    "it drops or moves thoughts on lines of their own": "<think>\nleft\n</think>\n\nLeft",
    "it strips white space from replies": " \n Left \n\n",
    "it changes empty replies": "",
    "it changes replies of white space only": "\n\n",
}
_BASE = [Message("user", "What now?")]
_REPLY = "Go left."
_TOOL = Tool("probe_name", "Probe.", "{probe_argument}", (Parameter("probe_argument", "Probe."),))
_CALL = ToolCall(_TOOL.name, {"probe_argument": "probe value"})

_Render = Callable[[Sequence[Message]], str]


class ChatTokens:
    """Encoder of chat messages as tokens, one turn at a time.

    A conversation is the concatenation of `opening(…)`, the sampled reply, `bridge(…)`, the next sampled reply,
    and so on; sampled token ids are part of it unchanged. Where these are the tokenizer's own encoding of the
    reply, the concatenation decodes to exactly the template's rendering of the whole conversation. Message
    contents cannot forge turns: special tokens within them are encoded as plain text.

    Args:
        tokenizer: A Hugging Face tokenizer.
        template: Name of a shipped template (see `shipped_templates`), or path of a `.jinja` file. None uses the
            tokenizer's own. The shipped templates have the tokens and roles of the originals, never rewrite an
            earlier turn and add no system prompt.

    Attributes:
        tokenizer: The tokenizer.
        end_ids: Tokens that end a turn.
        turn_end: The token that the template writes at the end of a reply; None if it writes no special token.

    Raises:
        ConfigurationError: The template is unknown, does not fit the tokenizer, or rewrites earlier turns, which
            is checked by rendering small conversations.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str | Path | None = None) -> None:
        self.tokenizer = tokenizer
        self._template: Template = load_template(tokenizer, template)
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        texts = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._head = self._render(_BASE) + _REPLY
        self._check_append_only()
        closing = self.encode(self._bridge_text(_BASE))
        self.turn_end = next((i for i in closing if i in tokenizer.added_tokens_decoder), None)
        self.end_ids: frozenset[int] = frozenset({self.turn_end, tokenizer.eos_token_id} - {None})

    @property
    def template_text(self) -> str:
        """The chat template."""
        return self._template.text

    def opening(
        self, messages: Sequence[Message], prefill: str = "", tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens of a new conversation, up to the beginning of the reply.

        Args:
            messages: Messages before the first sampled reply; they may include assistant messages.
            prefill: Forced beginning of the reply.
            tools: Schemas of functions, which the template writes into the prompt; see `check_tools`.
        """
        return self._tokens(messages, prefill, partial(self._render, tools=tools))

    def bridge(self, last_sampled_ids: Sequence[int], messages: Sequence[Message], prefill: str = "") -> list[int]:
        """Return the tokens between a sampled reply and the next reply.

        Args:
            last_sampled_ids: Token ids of the sampled reply, with its end-of-turn token or, if the reply was cut,
                without it. Only the last token is used.
            messages: Messages before the next reply, usually one user message; with function calls the answers.
            prefill: Forced beginning of the next reply.
        """
        ids = self._tokens(messages, prefill, self._bridge_text)
        if last_sampled_ids and last_sampled_ids[-1] == self.turn_end:
            return ids[ids.index(self.turn_end) + 1 :]
        return ids

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a part of a reply that a dialogue wrote."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def has_special(self, text: str) -> bool:
        """Return True if a text contains a special token of the tokenizer."""
        return self._special is not None and self._special.search(text) is not None

    def _tokens(self, messages: Sequence[Message], prefill: str, render: _Render) -> list[int]:
        if self._special is None or not any(self._special.search(message.content) for message in messages):
            return self.encode(render(messages) + prefill)
        # While the template renders, special tokens in contents are replaced by a private-use character that no
        # message contains.
        contents = "".join(message.content for message in messages)
        placeholder = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in contents)
        replaced: list[str] = []

        def replace(match: re.Match[str]) -> str:
            replaced.append(match[0])
            return placeholder

        masked = [Message(message.role, self._special.sub(replace, message.content)) for message in messages]
        first, *rest = render(masked).split(placeholder)
        ids = self.encode(first if rest else first + prefill)
        for n, (literal, text) in enumerate(zip(replaced, rest, strict=True)):
            ids += self.tokenizer.encode(literal, add_special_tokens=False, split_special_tokens=True)
            ids += self.encode(text + prefill if n == len(rest) - 1 else text)
        return ids

    def _bridge_text(self, messages: Sequence[Message]) -> str:
        """Return the text between a reply and the next, which does not depend on the conversation before it."""
        text = self._render([*_BASE, Message("assistant", _REPLY), *messages])
        if not text.startswith(self._head):  # A template may write the date.
            self._head = self._render(_BASE) + _REPLY
        if not text.startswith(self._head):
            raise self._not_append_only("it changes earlier turns")
        return text[len(self._head) :]

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return self._render_plain([message._asdict() for message in messages], tools)

    def _render_plain(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=True,
                chat_template=self._template.text,
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ConfigurationError(
                f"{self._template.name} cannot render messages with the roles {roles}: {error}"
            ) from None
        return str(text)

    def _check_append_only(self) -> None:
        """Check that rendering a conversation at once and turn by turn gives the same text."""
        bridge, replies = self._bridge_text(_BASE), _PROBES.values()
        repeated = [(fault, (reply, reply)) for fault, reply in _PROBES.items()]
        mixed = [("it changes earlier turns", pair) for pair in permutations(replies, 2)]
        for fault, pair in repeated + mixed:
            conversation, concatenation = list(_BASE), self._render(_BASE)
            for reply in pair:
                conversation += [Message("assistant", reply), *_BASE]
                concatenation += reply + bridge
                if self._render(conversation) != concatenation:
                    raise self._not_append_only(fault)

    def check_tools(self) -> None:
        """Check that the template supports function calls, token for token as in `agents/tool_calls.py`.

        Raises:
            ConfigurationError: It leaves out functions, writes calls in another form, or rewrites earlier turns.
        """
        tools = [_TOOL.schema()]
        opening = self._render(_BASE, tools)
        reply = write_reply(None, "", [_CALL])
        function = {"name": _CALL.name, "arguments": _CALL.arguments}
        structured = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        }
        user, answers = _BASE[0]._asdict(), [Message("tool", "probe answer")]
        try:
            written = self._render_plain([user, structured, answers[0]._asdict()], tools)
        except ConfigurationError:
            written = ""
        if _TOOL.name not in opening or _TOOL.name not in written.removeprefix(opening):
            raise self._without_tools("does not support function calls")
        if written != opening + reply + self._bridge_text(answers):
            raise self._without_tools("writes function calls in another form than <tool_call>{JSON}</tool_call>")
        conversation, concatenation = list(_BASE), opening
        for added in (answers, answers * 2, _BASE, answers):
            conversation += [Message("assistant", reply), *added]
            concatenation += reply + self._bridge_text(added)
            if self._render(conversation, tools) != concatenation:
                raise self._not_append_only("it changes earlier function calls")

    def _without_tools(self, fault: str) -> ConfigurationError:
        return ConfigurationError(f"{self._template.name} {fault}; {suggest_tool_template(self.tokenizer)}")

    def _not_append_only(self, fault: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._template.name} is not append-only ({fault}), so training and sampling would use different "
            f"tokens; {suggest_template(self.tokenizer)}"
        )
