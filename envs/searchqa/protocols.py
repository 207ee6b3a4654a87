"""Protocols by which an agent searches and answers: the turn that follows from an action, and the form of actions.

`tags` and `react` define the texts of the two protocols; the classes here apply them to the state of an episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from ..retrieval.interface import Document, Retriever
from ..tools import Parameter, Tool
from . import react, tags
from .inquiry import Inquiry
from .tags import FormatState

Protocol = Literal["tags", "react"]
"""Names of the protocols."""

REACT_CANDIDATES = 10
"""Number of retrieved documents among which the page of a title is searched; a page may have several passages."""

_ANSWER = Parameter("text", "The answer, without explanation.")

Turn = tuple[Inquiry, str, bool, tuple[str, ...] | None]
"""Result of an action, as a plain tuple, which is constructed in a sixth of a `NamedTuple`'s time: next state, in
which an answer ends the episode; text shown next, which is no part of the state if it refuses the action; True if
the action was understood and accepted; ids of the documents shown, None unless it searched or looked something up.
"""


class SearchProtocol(ABC):
    """Protocol of an episode.

    Args:
        retriever: Retriever of the corpus.
        observation_budget: Maximum number of characters of document text per observation.

    Attributes:
        instructions: Description of the actions, for an agent to read once.
    """

    instructions: ClassVar[str]

    def __init__(self, retriever: Retriever, observation_budget: int) -> None:
        self._retriever = retriever
        self._budget = observation_budget

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """Functions whose calls are actions."""

    @abstractmethod
    def is_search(self, action: str) -> bool:
        """Return True if an action searches the corpus."""

    @abstractmethod
    def format_action(self, kind: Literal["search", "answer"], text: str) -> str:
        """Return the action that searches for a text, or answers with it."""

    @abstractmethod
    def turn(self, state: Inquiry, action: str, is_last: bool) -> Turn:
        """Return the result of an action.

        Args:
            state: State before the action.
            action: The action; any string.
            is_last: True if only an answer is accepted, because no step follows.

        Raises:
            RetrievalError: A remote retriever failed.
        """

    def _retrieve(self, query: str, k: int) -> list[Document]:
        return [hit.document for hit in self._retriever.search([query], k)[0]]

    def _answer(self, state: Inquiry, answer: str, format_state: FormatState) -> Turn:
        observation = f"Answer: {answer[: self._budget]}"
        state = state._replace(observation=observation, answer=answer, format=format_state)
        return state, observation, True, None


class TagsProtocol(SearchProtocol):
    """Protocol of Search-R1 and Tree-GRPO: actions in tags, within the full text of a turn.

    Args:
        retriever: Retriever of the corpus.
        observation_budget: Maximum number of characters of document text per observation.
        topk: Number of documents per search.
        scores_format: True if the reward depends on the format of the dialogue. A refused turn then breaks the
            format, and the actions of tools and experts contain a thought.
    """

    instructions = tags.INSTRUCTIONS

    def __init__(self, retriever: Retriever, observation_budget: int, topk: int, scores_format: bool) -> None:
        super().__init__(retriever, observation_budget)
        self._topk = topk
        self._scores_format = scores_format

    @property
    def tools(self) -> tuple[Tool, ...]:
        # Shaped rewards check the form of a reply, in which a thought precedes the tag.
        before = "<think></think>\n" if self._scores_format else ""
        query = Parameter("query", "Words to search for in the corpus.")
        return (
            Tool("search", "Search the corpus.", before + "<search>{query}</search>", (query,)),
            Tool("answer", "Give the final answer.", before + "<answer>{text}</answer>", (_ANSWER,)),
        )

    def is_search(self, action: str) -> bool:
        parsed = tags.parse_action(action)
        return parsed is not None and parsed.kind == "search"

    def format_action(self, kind: Literal["search", "answer"], text: str) -> str:
        action = f"<{kind}>{text}</{kind}>"
        if not self._scores_format:
            return action
        thought = f"I should read about {text}." if kind == "search" else "I have read what I need."
        return f"<think>{thought}</think>\n{action}"

    def turn(self, state: Inquiry, action: str, is_last: bool) -> Turn:
        parsed = tags.parse_action(action)
        format_state = tags.advance(state.format, tags.truncate_turn(action))
        if parsed is not None and parsed.kind == "answer":
            return self._answer(state, parsed.text, format_state)
        if is_last or parsed is None:
            if self._scores_format:
                # A refused turn remains part of the dialogue, so the dialogue can no longer be well-formed.
                state = state._replace(format=FormatState.BROKEN)
            return state, tags.SEARCHES_USED_UP if is_last else tags.REFUSAL, False, None
        documents = self._retrieve(parsed.text, self._topk)
        observation = tags.format_results(documents, self._budget)
        shown = tags.visible_documents(documents, self._budget)
        state = state.show(shown, observation, format=tags.advance(format_state, observation))
        return state, observation, True, tuple(document.id for document in shown)


class ReActProtocol(SearchProtocol):
    """Protocol of ReAct: search for the page of a title, look up a keyword on it, finish with an answer."""

    instructions = react.INSTRUCTIONS

    @property
    def tools(self) -> tuple[Tool, ...]:
        title = Parameter("entity", "Title of the page.")
        keyword = Parameter("keyword", "Word to find on the page.")
        return (
            Tool("search", "Open the page of a title.", "search[{entity}]", (title,)),
            Tool("lookup", "Show the next sentence with a keyword.", "lookup[{keyword}]", (keyword,)),
            Tool("answer", "Give the final answer, which ends the episode.", "finish[{text}]", (_ANSWER,)),
        )

    def is_search(self, action: str) -> bool:
        parsed = react.parse_action(action)
        return parsed is not None and parsed.kind == "search"

    def format_action(self, kind: Literal["search", "answer"], text: str) -> str:
        return f"search[{text}]" if kind == "search" else f"finish[{text}]"

    def turn(self, state: Inquiry, action: str, is_last: bool) -> Turn:
        parsed = react.parse_action(action)
        if parsed is not None and parsed.kind == "finish":
            return self._answer(state, parsed.text, state.format)
        if is_last or parsed is None or not parsed.text:
            return state, react.SEARCHES_USED_UP if is_last else react.REFUSAL, False, None
        return self._search(state, parsed.text) if parsed.kind == "search" else self._look_up(state, parsed.text)

    def _search(self, state: Inquiry, title: str) -> Turn:
        documents = self._retrieve(title, REACT_CANDIDATES)
        page = react.find_page(title, documents)
        if page:
            sentences = tuple(react.split_sentences(" ".join(document.text for document in page)))
            observation = react.format_opening(sentences)[: self._budget]
            state = state.show(page, observation, page=sentences, keyword="", looked_up=0)
        else:
            observation = react.format_not_found(title, documents)[: self._budget]
            state = state.show((), observation)
        return state, observation, True, tuple(document.id for document in page)

    def _look_up(self, state: Inquiry, keyword: str) -> Turn:
        if not state.page:
            return state, "No page is open; search for one first.", False, None
        index = state.looked_up if keyword.lower() == state.keyword else 0
        found, more = react.lookup(state.page, keyword, index)
        observation = found[: self._budget]
        state = state.show((), observation, keyword=keyword.lower(), looked_up=index + more)
        return state, observation, True, ()
