"""The ReAct dialogue (Yao et al., 2023) for questions: search[title], lookup[keyword], finish[answer]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ..retrieval.interface import Document

_ACTION = re.compile(r"(search|lookup|finish)\[(.*)\]", re.IGNORECASE | re.DOTALL)
_NUMBERED = re.compile(r"(?:.*\n)?\s*Action(?: \d+)?:\s*(.*)\s*", re.DOTALL)
_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bMr\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bJr\.)(?<!\bMrs\.)\s+(?=[^a-z\s])"
)
"""A full stop that ends no initial and no common abbreviation, before anything but a small letter."""

SENTENCES_SHOWN = 5
"""How many sentences of a page a search shows (ReAct's HotpotQA environment)."""
SIMILAR_SHOWN = 5
"""How many titles are offered when there is no page of the title asked for."""

REFUSAL = "That action is not valid. The actions are search[entity], lookup[keyword] and finish[answer]."
SEARCHES_USED_UP = "There are no steps left for looking things up. Only finish[answer] was accepted."

INSTRUCTIONS = (
    "Answer the question by looking things up. The actions are: search[entity] opens the page of that title and"
    " shows its first sentences, or names similar titles where there is no such page; lookup[keyword] shows the"
    " next sentence with that keyword on the open page; finish[answer] gives the final answer and ends the"
    " episode."
)


class Move(NamedTuple):
    """A parsed action and its argument."""

    kind: Literal["search", "lookup", "finish"]
    text: str


def parse(action: str) -> Move | None:
    """One action such as `Search[Milhouse]`, in any case, optionally after `Action:` or `Action 3:`; else None."""
    text = action.strip()
    match = _ACTION.fullmatch(text)
    if match is None:
        numbered = _NUMBERED.fullmatch(text)
        match = _ACTION.fullmatch(numbered[1].strip()) if numbered else None
    if match is None:
        return None
    kind = match[1].lower()
    argument = match[2].strip()
    return Move("search" if kind == "search" else "lookup" if kind == "lookup" else "finish", argument)


def sentences(text: str) -> list[str]:
    """The sentences of a page, each on one line."""
    flat = " ".join(text.split())
    return [part for part in _SENTENCE_END.split(flat) if part]


def find_page(entity: str, documents: Sequence[Document]) -> list[Document]:
    """The retrieved passages whose title is `entity`, whatever the case: one page, in the order of their ids."""
    wanted = " ".join(entity.casefold().split())
    page = [d for d in documents if " ".join(d.title.casefold().split()) == wanted]
    return sorted(page, key=lambda d: (len(d.id), d.id))


def opening(page_sentences: Sequence[str]) -> str:
    """What a search shows of the page it found."""
    return " ".join(page_sentences[:SENTENCES_SHOWN]) or "The page is empty."


def not_found(entity: str, documents: Sequence[Document]) -> str:
    """What a search shows when no page has the title."""
    titles = list(dict.fromkeys(" ".join(d.title.split()) for d in documents))[:SIMILAR_SHOWN]
    return f"Could not find [{' '.join(entity.split())[:200]}]. Similar: {titles}."


def lookup(page_sentences: Sequence[str], keyword: str, index: int) -> tuple[str, bool]:
    """The sentence of rank `index` that contains `keyword` (any case), and whether there is one."""
    wanted = keyword.lower()
    results = [sentence for sentence in page_sentences if wanted in sentence.lower()]
    if index >= len(results):
        return "No more results.", False
    return f"(Result {index + 1} / {len(results)}) {results[index]}", True
