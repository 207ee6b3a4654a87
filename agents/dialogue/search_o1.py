"""Format of Search-o1 (Li et al., 2025, arXiv:2501.05366): queries within free reasoning, and a boxed answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...envs.delimiters import find_between, iterate_between
from ..episode import Turn
from .base import Dialogue, Parsed, strip_span

BEGIN_QUERY, END_QUERY = "<|begin_search_query|>", "<|end_search_query|>"
BEGIN_RESULT, END_RESULT = "<|begin_search_result|>", "<|end_search_result|>"

BOX = "\\boxed{"


def queries(text: str) -> list[str]:
    """Return the delimited queries of a text in order, stripped."""
    return [query.content.strip() for query in iterate_between(text, BEGIN_QUERY, END_QUERY)]


def boxed(text: str) -> str | None:
    """Return the content of the last box, stripped, or None if there is none.

    A box extends from the first `\\boxed{` of its line to the last `}` of that line.
    """
    for line in reversed(text.split("\n")):
        first, last = line.find(BOX), line.rfind("}")
        if 0 <= first <= last - len(BOX):
            return line[first + len(BOX) : last].strip()
    return None


@dataclass(frozen=True, kw_only=True)
class SearchO1Dialogue(Dialogue):
    """Free reasoning with delimited queries, and the answer in `\\boxed{}`.

    Actions are `<search>…</search>` and `<answer>…</answer>`, as in `TextSearchQA-v0`.
    """

    max_turns: int | None = 15
    format_penalty: float = 0.0
    name: ClassVar[str] = "search_o1"
    stop: ClassVar[tuple[str, ...]] = (END_QUERY,)
    has_thoughts: ClassVar[bool] = True

    def format_rules(self) -> str:
        return (
            f"Reason step by step. To search, write {BEGIN_QUERY} your query {END_QUERY} and stop; what was found"
            f" comes back between {BEGIN_RESULT} and {END_RESULT}. Give the final answer as \\boxed{{answer}}."
        )

    def user(self, observation: str, turns: list[Turn]) -> str:
        return observation

    def parse(self, reply: str) -> Parsed:
        query = find_between(reply, BEGIN_QUERY, END_QUERY)
        if query is not None and (words := query.content.strip()):
            return Parsed((f"<search>{words}</search>",), reply[: query.start].strip() or None, True)
        answer = boxed(reply)
        if answer is not None:
            return Parsed((f"<answer>{answer}</answer>",), reply.strip(), True)
        return Parsed((reply,) if reply.strip() else (), reply.strip() or None, False)

    def demonstrate(self, thought: str, action: str) -> str:
        return f"{thought}\n{self.write_action(action)}"

    def write_action(self, action: str) -> str:
        marked = action.replace("<search>", BEGIN_QUERY).replace("</search>", END_QUERY)
        return marked.replace("<answer>", BOX).replace("</answer>", "}")

    def thought_span(self, reply: str) -> tuple[int, int] | None:
        query = find_between(reply, BEGIN_QUERY, END_QUERY)
        end = query.start if query is not None else reply.rfind(BOX)
        if end < 0 or not self.parse(reply).well_formed:
            return None
        return strip_span(reply, 0, end)
