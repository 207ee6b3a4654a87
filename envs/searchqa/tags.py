"""The tags dialogue of Search-R1 and Tree-GRPO: `<think>`, `<search>`, `<information>`, `<answer>`.

Only the agent's own text is ever parsed; what a corpus contains cannot act. Tags inside retrieved text are still
written with `&lt;`, so that whoever reads a whole transcript later cannot be misled either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple

from ..retrieval.interface import Document

INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_PAIR = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"</?(?:think|search|information|answer)>")
_FOREIGN_TAG = re.compile(r"<(?=/?\s*(?:think|search|information|answer)\s*>)", re.IGNORECASE)

REFUSAL = (
    "\n\nThat action is not valid. To search, write the query between <search> and </search>. To answer, write the"
    " final answer between <answer> and </answer>. Try again.\n\n"
)
SEARCHES_USED_UP = (
    "\n\nThere are no searches left. Only a final answer between <answer> and </answer> was accepted.\n\n"
)

INSTRUCTIONS = (
    "Answer the given question. First reason inside <think> and </think> whenever you have new information. If you"
    " lack knowledge, search the corpus with <search> query </search>; the best matching documents come back"
    " between <information> and </information>. You may search several times. When you need no further knowledge,"
    " give the answer inside <answer> and </answer>, without explanation. For example, <answer> Beijing </answer>."
)


class Move(NamedTuple):
    """A parsed action: search for `text`, or answer with it."""

    kind: Literal["search", "answer"]
    text: str


def cut(turn: str) -> str:
    """A turn's text up to and including its first `</search>`, else its first `</answer>`, else all of it."""
    for closing in ("</search>", "</answer>"):
        end = turn.find(closing)
        if end >= 0:
            return turn[: end + len(closing)]
    return turn


def parse(turn: str) -> Move | None:
    """The action of one turn: the first complete search or answer pair of the cut text, stripped; else None."""
    match = _PAIR.search(cut(turn))
    if match is None:
        return None
    return Move("search" if match[1] == "search" else "answer", match[2].strip())


def neutralise(text: str) -> str:
    """Retrieved text with the angle brackets of the dialogue's own tags written as `&lt;`."""
    return _FOREIGN_TAG.sub("&lt;", text)


def information(documents: Sequence[Document], budget: int) -> str:
    """The observation of a search: `Doc i(Title: {first line}) {rest}` a document, within information tags.

    Args:
        documents: in order of rank.
        budget: the most characters of document text; what lies beyond is cut off, the closing tag never.
    """
    text = neutralise("".join(_lines(documents)).strip()[:budget])
    return f"\n\n<information>{text}</information>\n\n"


def shown(documents: Sequence[Document], budget: int) -> Sequence[Document]:
    """Those documents of which `information` shows at least the beginning."""
    start = 0
    for i, line in enumerate(_lines(documents)):
        if start >= budget:
            return documents[:i]
        start += len(line)
    return documents


def _lines(documents: Sequence[Document]) -> list[str]:
    lines = []
    for i, document in enumerate(documents, 1):
        title, _, rest = document.contents.partition("\n")
        lines.append(f"Doc {i}(Title: {title}) {rest}\n")
    return lines


class FormatState(Enum):
    """Where a dialogue stands in the grammar think → (search → information → think)* → answer."""

    START = "start"
    IN_THINK = "in think"
    THOUGHT = "thought"
    IN_SEARCH = "in search"
    SEARCHED = "searched"
    IN_INFORMATION = "in information"
    INFORMED = "informed"
    IN_ANSWER = "in answer"
    ANSWERED = "answered"
    BROKEN = "broken"


_S = FormatState
_MOVES: dict[tuple[FormatState, str], FormatState] = {
    (_S.START, "<think>"): _S.IN_THINK,
    (_S.INFORMED, "<think>"): _S.IN_THINK,
    (_S.IN_THINK, "</think>"): _S.THOUGHT,
    (_S.THOUGHT, "<search>"): _S.IN_SEARCH,
    (_S.IN_SEARCH, "</search>"): _S.SEARCHED,
    (_S.SEARCHED, "<information>"): _S.IN_INFORMATION,
    (_S.IN_INFORMATION, "</information>"): _S.INFORMED,
    (_S.THOUGHT, "<answer>"): _S.IN_ANSWER,
    (_S.IN_ANSWER, "</answer>"): _S.ANSWERED,
}
_WITHIN = frozenset({_S.IN_THINK, _S.IN_SEARCH, _S.IN_INFORMATION, _S.IN_ANSWER})


def advance(state: FormatState, text: str) -> FormatState:
    """The grammar's state after `text`. Between elements only white space may stand; a fault is for ever.

    A dialogue is well formed if the state at its end is ANSWERED. The text may arrive in pieces, cut anywhere but
    inside a tag.
    """
    position = 0
    for match in _TAG.finditer(text):
        if state not in _WITHIN and text[position : match.start()].strip():
            return FormatState.BROKEN
        state = _MOVES.get((state, match[0]), FormatState.BROKEN)
        if state is FormatState.BROKEN:
            return state
        position = match.end()
    if state not in _WITHIN and text[position:].strip():
        return FormatState.BROKEN
    return state
