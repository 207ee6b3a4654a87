"""Format of RAGEN (arXiv:2504.20073, §3): reasoning in one tag, one or more actions in another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ...envs.delimiters import find_between
from .base import Dialogue, Parsed

SEPARATOR = "||"

_BETWEEN = re.compile(r"</think>\s*<answer>")
_TAGS = re.compile(r"</?(?:think|answer)>")


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

    def format_rules(self) -> str:
        answer = f"first action {SEPARATOR} second action" if self.max_actions_per_turn > 1 else "action"
        return f"Reason first, then act: <think>your reasoning</think><answer>{answer}</answer>, and nothing else."

    def parse(self, reply: str) -> Parsed:
        # Equal to a search for <think>(.*?)</think>\s*<answer>(.*?)</answer>, but in linear time: if the first
        # <think> begins no match, no later one does.
        start = reply.find("<think>")
        between = _BETWEEN.search(reply, start + len("<think>")) if start >= 0 else None
        end = reply.find("</answer>", between.end()) if between else -1
        if between is None or end < 0:
            return Parsed((), None, False)
        thought = reply[start + len("<think>") : between.start()]
        answer = reply[between.end() : end]
        return Parsed(split_actions(_TAGS.sub("", answer)), _TAGS.sub("", thought).strip(), True)

    def demonstrate(self, thought: str, action: str) -> str:
        return f"<think>{thought}</think><answer>{action}</answer>"


@dataclass(frozen=True, kw_only=True)
class NoThink(Dialogue):
    """`<answer>first action || second action</answer>`, without reasoning."""

    max_actions_per_turn: int = 5
    show_reward: bool = True

    name: ClassVar[str] = "no_think"
    prefill: ClassVar[str] = "<answer>"
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
