"""Format of Search-R1 (Jin et al., 2025, arXiv:2503.09516): reasoning, then one tagged action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...envs.delimiters import find_between, first_element
from ..episode import Turn
from .base import Dialogue, Parsed, strip_span


@dataclass(frozen=True, kw_only=True)
class Tags(Dialogue):
    """`<think>…</think>` and then `<search>query</search>` or `<answer>answer</answer>`.

    The action is the reply up to and including its first complete search or answer. Environments with tagged
    actions (`TextSearchQA-v0`) extract the tag from it and check the format around it. A reply without a tag is
    passed as it is; the environment rejects it and counts the step.
    """

    format_penalty: float = 0.0
    name: ClassVar[str] = "tags"
    stop: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")
    has_thoughts: ClassVar[bool] = True
    action_prefix: ClassVar[str] = "<think></think>\n"

    def format_rules(self) -> str:
        return (
            "Reason inside <think> and </think>. Then either look something up with <search>query</search>, or"
            " give the final answer with <answer>answer</answer>."
        )

    def parse(self, reply: str) -> Parsed:
        action = first_element(reply, ("search", "answer"))
        thought = find_between(reply if action is None else reply[: action[1].start], "<think>", "</think>")
        text = thought.content.strip() if thought else None
        if action is None:
            return Parsed((reply,) if reply.strip() else (), text, False)
        return Parsed((reply[: action[1].end],), text, True)

    def user(self, observation: str, turns: list[Turn]) -> str:
        return observation

    def demonstrate(self, thought: str, action: str) -> str:
        return f"<think>{thought}</think>\n{action}"

    def write_action(self, action: str) -> str:
        element = first_element(action, ("search", "answer"))
        return action if element is None else action[element[1].start : element[1].end]

    def read_action(self, text: str) -> str:
        return self.write_action(text).strip()

    def thought_span(self, reply: str) -> tuple[int, int] | None:
        action = first_element(reply, ("search", "answer"))
        thought = find_between(reply, "<think>", "</think>")
        if action is None or thought is None or thought.end > action[1].start:
            return None
        return strip_span(reply, thought.start + len("<think>"), thought.end - len("</think>"))
