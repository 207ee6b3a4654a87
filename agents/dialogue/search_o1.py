"""Format of Search-o1 (Li et al., 2025, arXiv:2501.05366): queries within free reasoning, and a boxed answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ..episode import Turn
from .base import Dialogue, Parsed

BEGIN_QUERY, END_QUERY = "<|begin_search_query|>", "<|end_search_query|>"
BEGIN_RESULT, END_RESULT = "<|begin_search_result|>", "<|end_search_result|>"

QUERY = re.compile(re.escape(BEGIN_QUERY) + r"(.*?)" + re.escape(END_QUERY), re.DOTALL)
BOX = "\\boxed{"
_BOXED = re.compile(r"\\boxed\{(.*)\}")


@dataclass(frozen=True, kw_only=True)
class SearchO1Dialogue(Dialogue):
    """Free reasoning with delimited queries, and the answer in `\\boxed{}`.

    Actions are `<search>…</search>` and `<answer>…</answer>`, as in `TextSearchQA-v0`.
    """

    max_turns: int | None = 15
    format_penalty: float = 0.0
    name: ClassVar[str] = "search_o1"
    stop: ClassVar[tuple[str, ...]] = (END_QUERY,)

    def format_rules(self) -> str:
        return (
            f"Reason step by step. To search, write {BEGIN_QUERY} your query {END_QUERY} and stop; what was found"
            f" comes back between {BEGIN_RESULT} and {END_RESULT}. Give the final answer as \\boxed{{answer}}."
        )

    def user(self, observation: str, turns: list[Turn]) -> str:
        return observation

    def parse(self, reply: str) -> Parsed:
        query = QUERY.search(reply)
        if query is not None and query.group(1).strip():
            return Parsed(
                (f"<search>{query.group(1).strip()}</search>",), reply[: query.start()].strip() or None, True
            )
        answers = _BOXED.findall(reply)
        if answers:
            return Parsed((f"<answer>{answers[-1].strip()}</answer>",), reply.strip(), True)
        return Parsed((reply,) if reply.strip() else (), reply.strip() or None, False)

    def demonstrate(self, thought: str, action: str) -> str:
        marked = action.replace("<search>", BEGIN_QUERY).replace("</search>", END_QUERY)
        return f"{thought}\n{marked.replace('<answer>', BOX).replace('</answer>', '}')}"
