"""Tags protocol of Search-R1 and Tree-GRPO: `<think>`, `<search>`, `<information>`, `<answer>`.

Only the agent's own text is parsed, so the content of a corpus cannot trigger an action. Tags inside retrieved
text are nevertheless escaped with `&lt;`, so that parsers of complete transcripts are not misled either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple

from ..delimiters import first_element
from ..retrieval.interface import Document

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


class ParsedAction(NamedTuple):
    """A parsed action: search for `text`, or answer with `text`."""

    kind: Literal["search", "answer"]
    text: str


def truncate_turn(turn: str) -> str:
    """Cut a turn after its first `</search>`, else after its first `</answer>`, else not at all."""
    for closing in ("</search>", "</answer>"):
        end = turn.find(closing)
        if end >= 0:
            return turn[: end + len(closing)]
    return turn


def parse_action(turn: str) -> ParsedAction | None:
    """Return the first complete search or answer of the truncated turn, or None if there is none."""
    found = first_element(truncate_turn(turn), ("search", "answer"))
    if found is None:
        return None
    tag, element = found
    return ParsedAction("search" if tag == "search" else "answer", element.content.strip())


def escape_tags(text: str) -> str:
    """Replace the opening angle bracket of the protocol's tags in a retrieved text by `&lt;`."""
    return _FOREIGN_TAG.sub("&lt;", text)


def format_results(documents: Sequence[Document], budget: int) -> str:
    """Return the observation of a search: a line `Doc i(Title: {first line}) {rest}` per document, in tags.

    Args:
        documents: Documents in order of rank.
        budget: Maximum number of characters of document text. Longer text is cut; the closing tag is always kept.
    """
    text = escape_tags("".join(_lines(documents)).strip()[:budget])
    return f"\n\n<information>{text}</information>\n\n"


def visible_documents(documents: Sequence[Document], budget: int) -> Sequence[Document]:
    """Return the documents of which `format_results` shows at least the beginning."""
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
    """State of a dialogue in the format grammar think → (search → information → think)* → answer."""

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
_TRANSITIONS: dict[tuple[FormatState, str], FormatState] = {
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
_INSIDE_ELEMENT = frozenset({_S.IN_THINK, _S.IN_SEARCH, _S.IN_INFORMATION, _S.IN_ANSWER})


def advance(state: FormatState, text: str) -> FormatState:
    """Return the state of the format grammar after `text`.

    Only white space is allowed between elements. After an error the state remains BROKEN. A dialogue is
    well-formed if its final state is ANSWERED. It can be processed in parts, split anywhere except inside a tag.

    Args:
        state: State before the text.
        text: Next part of the dialogue.
    """
    position = 0
    for match in _TAG.finditer(text):
        if state not in _INSIDE_ELEMENT and text[position : match.start()].strip():
            return FormatState.BROKEN
        state = _TRANSITIONS.get((state, match[0]), FormatState.BROKEN)
        if state is FormatState.BROKEN:
            return state
        position = match.end()
    if state not in _INSIDE_ELEMENT and text[position:].strip():
        return FormatState.BROKEN
    return state
