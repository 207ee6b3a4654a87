"""ReAct protocol for question answering (Yao et al., 2023): search[title], lookup[keyword], finish[answer]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ..retrieval.interface import Document

_ACTION = re.compile(r"(search|lookup|finish)\[(.*)\]", re.IGNORECASE | re.DOTALL)
_HEADER = re.compile(r"^[^\S\n]*Action(?: \d+)?:", re.MULTILINE)
_SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bMr\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bJr\.)(?<!\bMrs\.)\s+(?=[^a-z\s])"
)
"""End of a sentence: punctuation that does not end an initial or a common abbreviation, not before lower case."""

SENTENCES_SHOWN = 5
"""Number of sentences of a page that a search shows (ReAct's HotpotQA environment)."""
SIMILAR_SHOWN = 5
"""Number of similar titles that are shown if no page has the requested title."""

REFUSAL = "That action is not valid. The actions are search[entity], lookup[keyword] and finish[answer]."
SEARCHES_USED_UP = "There are no steps left for looking things up. Only finish[answer] was accepted."

INSTRUCTIONS = (
    "Answer the question by looking things up. The actions are: search[entity] opens the page of that title and"
    " shows its first sentences, or names similar titles where there is no such page; lookup[keyword] shows the"
    " next sentence with that keyword on the open page; finish[answer] gives the final answer and ends the"
    " episode."
)


class ParsedAction(NamedTuple):
    """A parsed action and its argument."""

    kind: Literal["search", "lookup", "finish"]
    text: str


def parse_action(action: str) -> ParsedAction | None:
    """Parse an action such as `Search[Milhouse]`, in any case, optionally after `Action:` or `Action 3:`."""
    text = action.strip()
    match = _ACTION.fullmatch(text)
    if match is None:
        end = max((header.end() for header in _HEADER.finditer(text)), default=None)  # of the last header
        match = _ACTION.fullmatch(text[end:].strip()) if end is not None else None
    if match is None:
        return None
    kind = match[1].lower()
    argument = match[2].strip()
    return ParsedAction("search" if kind == "search" else "lookup" if kind == "lookup" else "finish", argument)


def split_sentences(text: str) -> list[str]:
    """Split the text of a page into sentences without line breaks."""
    flat = " ".join(text.split())
    return [part for part in _SENTENCE_END.split(flat) if part]


def find_page(entity: str, documents: Sequence[Document]) -> list[Document]:
    """Return the passages with the title `entity` (in any case), which form a page, in the order of their ids."""
    wanted = " ".join(entity.casefold().split())
    page = [d for d in documents if " ".join(d.title.casefold().split()) == wanted]
    return sorted(page, key=lambda d: (len(d.id), d.id))


def format_opening(sentences: Sequence[str]) -> str:
    """Return the observation of a search that found a page."""
    return " ".join(sentences[:SENTENCES_SHOWN]) or "The page is empty."


def format_not_found(entity: str, documents: Sequence[Document]) -> str:
    """Return the observation of a search for a title that no page has."""
    titles = list(dict.fromkeys(" ".join(d.title.split()) for d in documents))[:SIMILAR_SHOWN]
    return f"Could not find [{' '.join(entity.split())[:200]}]. Similar: {titles}."


def lookup(sentences: Sequence[str], keyword: str, index: int) -> tuple[str, bool]:
    """Return the observation of a lookup, and True if there is a result.

    Args:
        sentences: Sentences of the open page.
        keyword: Keyword, in any case.
        index: 0-based number of the result to show.
    """
    wanted = keyword.lower()
    results = [sentence for sentence in sentences if wanted in sentence.lower()]
    if index >= len(results):
        return "No more results.", False
    return f"(Result {index + 1} / {len(results)}) {results[index]}", True
