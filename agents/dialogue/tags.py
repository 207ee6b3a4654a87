"""Format of Search-R1 (Jin et al., 2025, arXiv:2503.09516): reasoning, then one tagged action."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ..episode import Turn
from .base import Dialogue, Parsed

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)


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

    def format_rules(self) -> str:
        return (
            "Reason inside <think> and </think>. Then either look something up with <search>query</search>, or"
            " give the final answer with <answer>answer</answer>."
        )

    def parse(self, reply: str) -> Parsed:
        match = _ACTION.search(reply)
        thought = _THINK.search(reply if match is None else reply[: match.start()])
        text = thought.group(1).strip() if thought else None
        if match is None:
            return Parsed((reply,) if reply.strip() else (), text, False)
        return Parsed((reply[: match.end()],), text, True)

    def user(self, observation: str, turns: list[Turn]) -> str:
        return observation

    def demonstrate(self, thought: str, action: str) -> str:
        return f"<think>{thought}</think>\n{action}"
