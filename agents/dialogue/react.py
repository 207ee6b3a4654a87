"""ReAct (Yao et al., 2023, arXiv:2210.03629): a line of thought, then a line of action."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ..episode import Turn
from .base import Dialogue, Parsed, strip_span

_ACTION = re.compile(r"^[ \t]*action(?:[ \t]+\d+)?[ \t]*:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_THOUGHT = re.compile(r"^[ \t]*thought(?:[ \t]+\d+)?[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ReAct(Dialogue):
    """`Thought: …` and `Action: …`, one action per turn.

    The first action line of the reply is used. Text after it, such as a hallucinated observation or a further
    step, is ignored.
    """

    name: ClassVar[str] = "react"
    stop: ClassVar[tuple[str, ...]] = ("\nObservation:",)
    has_thoughts: ClassVar[bool] = True
    action_prefix: ClassVar[str] = "Thought:\nAction:"
    action_stop: ClassVar[tuple[str, ...]] = ("\n",)

    def format_rules(self) -> str:
        return "Answer in two lines: Thought: what you think; then Action: one action, and nothing after it."

    def user(self, observation: str, turns: list[Turn]) -> str:
        return super().user(f"Observation: {observation}", turns)

    def parse(self, reply: str) -> Parsed:
        match = _ACTION.search(reply)
        if match is None:
            return Parsed((), reply.strip() or None, False)
        thought = _THOUGHT.sub("", reply[: match.start()]).strip() or None
        action = match.group(1).strip()
        return Parsed((action,) if action else (), thought, bool(action))

    def demonstrate(self, thought: str, action: str) -> str:
        return f"Thought: {thought}\nAction: {action}"

    def write_action(self, action: str) -> str:
        return f" {action}"

    def thought_span(self, reply: str) -> tuple[int, int] | None:
        action, thought = _ACTION.search(reply), _THOUGHT.search(reply)
        if action is None or not action.group(1).strip() or thought is None or thought.end() > action.start():
            return None
        return strip_span(reply, thought.end(), action.start())
