"""Format of RAGEN (arXiv:2504.20073, §3): reasoning in one tag, one or more actions in another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ...envs.delimiters import find_between
from .base import Dialogue, Parsed, strip_span

SEPARATOR = "||"

_BETWEEN = re.compile(r"</think>\s*<answer>")
_TAGS = re.compile(r"</?(?:think|answer)>|<\|im_(?:start|end)\|>")
"""Texts that are removed from thoughts and actions: the tags, and the marks of messages in a chat."""


def split_actions(text: str) -> tuple[str, ...]:
    """Return the actions between separators, stripped and without empty ones."""
    return tuple(action for part in text.split(SEPARATOR) if (action := part.strip()))


@dataclass(frozen=True, kw_only=True)
class Think(Dialogue):
    """`<think>…</think><answer>first action || second action</answer>`.

    The first such pair in the reply is used; text around it is ignored.
    """

    max_actions_per_turn: int = 5
    show_reward: bool = True

    name: ClassVar[str] = "think"
    prefill: ClassVar[str] = "<think>"
    stop: ClassVar[tuple[str, ...]] = ("</answer>",)
    has_thoughts: ClassVar[bool] = True
    action_prefix: ClassVar[str] = "<think></think><answer>"

    def format_rules(self) -> str:
        answer = f"first action {SEPARATOR} second action" if self.max_actions_per_turn > 1 else "action"
        return f"Reason first, then act: <think>your reasoning</think><answer>{answer}</answer>, and nothing else."

    def parse(self, reply: str) -> Parsed:
        found = _find_parts(reply)
        if found is None:
            return Parsed((), None, False)
        thought, answer = reply[slice(*found.thought)], reply[slice(*found.answer)]
        return Parsed(split_actions(_TAGS.sub("", answer)), _TAGS.sub("", thought).strip(), True)

    def demonstrate(self, thought: str, action: str) -> str:
        return f"<think>{thought}</think><answer>{action}</answer>"

    def write_action(self, action: str) -> str:
        return f"{action}</answer>"

    def read_action(self, text: str) -> str:
        return _join(self.parse(self.action_prefix + text)) or text.strip()

    def thought_span(self, reply: str) -> tuple[int, int] | None:
        found = _find_parts(reply)
        return None if found is None else strip_span(reply, *found.thought)


@dataclass(frozen=True, kw_only=True)
class NoThink(Dialogue):
    """`<answer>first action || second action</answer>`, without reasoning."""

    max_actions_per_turn: int = 5
    show_reward: bool = True

    name: ClassVar[str] = "no_think"
    prefill: ClassVar[str] = "<answer>"
    action_prefix: ClassVar[str] = "<answer>"
    stop: ClassVar[tuple[str, ...]] = ("</answer>",)

    def format_rules(self) -> str:
        answer = f"first action {SEPARATOR} second action" if self.max_actions_per_turn > 1 else "action"
        return f"Act: <answer>{answer}</answer>, and nothing else."

    def parse(self, reply: str) -> Parsed:
        answer = find_between(reply, "<answer>", "</answer>")
        if answer is None:
            return Parsed((), None, False)
        return Parsed(split_actions(_TAGS.sub("", answer.content)), None, True)

    def demonstrate(self, thought: str, action: str) -> str:
        return f"<answer>{action}</answer>"

    def write_action(self, action: str) -> str:
        return f"{action}</answer>"

    def read_action(self, text: str) -> str:
        return _join(self.parse(self.action_prefix + text)) or text.strip()


class _Parts(NamedTuple):
    """Start and end of thought and answer in a reply, without their tags."""

    thought: tuple[int, int]
    answer: tuple[int, int]


def _find_parts(reply: str) -> _Parts | None:
    """Return the first match of <think>(.*?)</think>\\s*<answer>(.*?)</answer> in a reply, or None.

    It is found in linear time: if the first <think> begins no match, no later one does.
    """
    start = reply.find("<think>")
    between = _BETWEEN.search(reply, start + len("<think>")) if start >= 0 else None
    end = reply.find("</answer>", between.end()) if between else -1
    if between is None or end < 0:
        return None
    return _Parts((start + len("<think>"), between.start()), (between.end(), end))


def _join(parsed: Parsed) -> str:
    """Return the actions of a reply as the reply separates them."""
    return f" {SEPARATOR} ".join(parsed.actions)
