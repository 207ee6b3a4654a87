"""Search-o1 (Li et al., 2025, arXiv:2501.05366): search while reasoning; a second call condenses the documents."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..envs.errors import ConfigurationError
from .base import Reply, Seat
from .checks import check_counts
from .dialogue import Dialogue
from .dialogue.search_o1 import BEGIN_QUERY, BEGIN_RESULT, END_QUERY, END_RESULT, SearchO1Dialogue, queries
from .engines.base import Completion, Sampling
from .episode import SPENT
from .language import ChatState, LanguageAgent

_FINDING = "**Final Information**"

READING_PROMPT = (
    "You help someone who reasons towards the answer of a question and has just searched. Read the documents, and"
    " keep only what helps the next step of the reasoning. Write it, briefly and in your own words, under the"
    f" heading {_FINDING}. If nothing in them helps, write there: No helpful information found."
)
LIMIT_NOTICE = "The search limit is reached. Answer from what you know by now."
REPETITION_NOTICE = "You have searched for this already. Look at the earlier result, or search for something else."


@dataclass(slots=True, kw_only=True)
class SearchState(ChatState):
    """A conversation with the queries made so far.

    Attributes:
        queries: The queries made, normalized.
        reading: True while a request that condenses documents is in progress.
    """

    queries: set[str] = field(default_factory=set)
    reading: bool = False

    def copy(self) -> SearchState:
        return replace(self, usage=replace(self.usage), queries={*self.queries})


class SearchO1(LanguageAgent):
    """Agent that searches while it reasons.

    A separate request condenses the retrieved documents, and only its result enters the conversation.

    Args:
        searches: Maximum number of searches per episode (the paper has 5 for single-hop questions, 10 for
            multi-hop).
        settings: See `LanguageAgent`; the dialogue is a `SearchO1Dialogue` with the history "full".
    """

    def __init__(self, *args: Any, searches: int = 10, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.check(self.sampling, searches=searches)
        self.searches = searches

    @classmethod
    def check(cls, sampling: Sampling, **settings: Any) -> None:
        check_counts(settings, searches=0)

    @classmethod
    def check_dialogue(cls, dialogue: Dialogue) -> None:
        # Findings and notices are messages of their own, which no other format or history has.
        if not isinstance(dialogue, SearchO1Dialogue) or dialogue.history != "full":
            raise ConfigurationError(
                f'agent search_o1 needs the dialogue search_o1 with the history "full", not {dialogue.name} with'
                f' "{dialogue.history}".'
            )

    def begin(self, seat: Seat) -> None:
        super().begin(seat)
        chat: ChatState = seat.memory
        seat.memory = SearchState(chat.messages, name=chat.name)

    def ask(self, seat: Seat, text: str | None = None) -> Reply | None:
        chat: SearchState = seat.memory
        last = chat.messages[-1].content
        # A reply can end in the delimiter and still contain no query, if its action was a plain <search> element.
        searched = queries(last) if seat.episode.turns and last.rstrip().endswith(END_QUERY) else []
        if text is None and searched and seat.info["valid"]:
            chat.reading = True
            query = searched[-1]
            reasoning = _compress([m.content for m in chat.messages if m.role == "assistant"])
            user = f"Reasoning so far:\n{reasoning}\n\nQuery: {query}\n\nDocuments:\n{seat.observation.strip()}"
            self.ask_separately(seat, READING_PROMPT, user, "reading")
            return None
        return super().ask(seat, text)

    def receive(self, seat: Seat, completion: Completion) -> Reply | None:
        chat: SearchState = seat.memory
        if chat.reading and completion.finish not in ("error", "rejected"):
            chat.reading = False
            finding = completion.text.rpartition(_FINDING)[2].strip(" \n:*")
            return self.ask(seat, f"{BEGIN_RESULT}\n{finding or 'No helpful information found.'}\n{END_RESULT}")
        mark = chat.mark
        reply = super().receive(seat, completion)
        if reply is None or not reply.actions or not reply.actions[0].startswith("<search>"):
            return reply
        query = " ".join(reply.actions[0].lower().split())
        if query not in chat.queries and len(chat.queries) < self.searches:
            chat.queries.add(query)
            return reply
        notice = REPETITION_NOTICE if query in chat.queries else LIMIT_NOTICE
        if self.dialogue.max_turns is not None and len(chat.inputs) >= self.dialogue.max_turns:
            return replace(reply, actions=(), quit=f"the {self.dialogue.max_turns} turns {SPENT}")
        chat.mark = mark  # the tokens of this exchange are recorded with the next turn
        return self.ask(seat, f"{BEGIN_RESULT}\n{notice}\n{END_RESULT}")


def _compress(steps: list[str]) -> str:
    """Return the first step, the last four and every step with a query, with gaps marked by an ellipsis."""
    kept = [i for i, step in enumerate(steps) if i == 0 or i >= len(steps) - 4 or BEGIN_QUERY in step]
    lines: list[str] = []
    for previous, i in zip([-1, *kept], kept, strict=False):
        lines += [*(["..."] if i > previous + 1 else []), steps[i].strip()]
    return "\n\n".join(lines)
