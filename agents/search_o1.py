"""Search-o1 (Li et al., 2025, arXiv:2501.05366): search while reasoning; a second call reads what was found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .base import Reply, Seat
from .dialogue.search_o1 import BEGIN_QUERY, BEGIN_RESULT, END_QUERY, END_RESULT, QUERY
from .engines.base import Completion
from .language import LanguageAgent, Talk

_FINDING = "**Final Information**"

READ = (
    "You help someone who reasons towards the answer of a question and has just searched. Read the documents, and"
    " keep only what helps the next step of the reasoning. Write it, briefly and in your own words, under the"
    f" heading {_FINDING}. If nothing in them helps, write there: No helpful information found."
)
LIMIT = "The search limit is reached. Answer from what you know by now."
REPEATED = "You have searched for this already. Look at the earlier result, or search for something else."


@dataclass(slots=True)
class Research(Talk):
    """A conversation with what has been asked so far.

    Attributes:
        queries: normalised queries made.
        reading: whether a call that reads documents is under way.
    """

    queries: set[str] = field(default_factory=set)
    reading: bool = False


class SearchO1(LanguageAgent):
    """Reasons with searches. The documents found are read by a separate call, whose findings alone are inserted.

    Args:
        searches: searches an episode at most (5 for single-hop questions in the paper, 10 for multi-hop).
        settings: see `LanguageAgent`; the dialogue is always `SearchO1Dialogue`.
    """

    def __init__(self, *args: Any, searches: int = 10, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.searches = searches

    def begin(self, seat: Seat) -> None:
        super().begin(seat)
        talk: Talk = seat.memory
        seat.memory = Research(talk.name, talk.messages)

    def ask(self, seat: Seat, text: str | None = None) -> Reply | None:
        talk: Research = seat.memory
        searched = bool(seat.episode.turns) and talk.messages[-1].content.rstrip().endswith(END_QUERY)
        if text is None and searched and seat.info["valid"]:
            talk.reading = True
            query = QUERY.findall(talk.messages[-1].content)[-1].strip()
            reasoning = _compress([m.content for m in talk.messages if m.role == "assistant"])
            user = f"Reasoning so far:\n{reasoning}\n\nQuery: {query}\n\nDocuments:\n{seat.observation.strip()}"
            self.aside(seat, READ, user, "reading")
            return None
        return super().ask(seat, text)

    def hear(self, seat: Seat, completion: Completion) -> Reply | None:
        talk: Research = seat.memory
        if talk.reading and completion.finish != "error":
            talk.reading = False
            finding = completion.text.rpartition(_FINDING)[2].strip(" \n:*")
            return self.ask(seat, f"{BEGIN_RESULT}\n{finding or 'No helpful information found.'}\n{END_RESULT}")
        mark = talk.mark
        reply = super().hear(seat, completion)
        if reply is None or not reply.actions or not reply.actions[0].startswith("<search>"):
            return reply
        query = " ".join(reply.actions[0].lower().split())
        if query not in talk.queries and len(talk.queries) < self.searches:
            talk.queries.add(query)
            return reply
        notice = REPEATED if query in talk.queries else LIMIT
        if self.dialogue.max_turns is not None and len(talk.users) >= self.dialogue.max_turns:
            return replace(reply, actions=(), quit=f"the {self.dialogue.max_turns} turns are spent")
        talk.mark = mark  # the exchange belongs to the turn that follows
        return self.ask(seat, f"{BEGIN_RESULT}\n{notice}\n{END_RESULT}")


def _compress(steps: list[str]) -> str:
    """The first step, the last four, and every step that searched; gaps are marked."""
    kept = [i for i, step in enumerate(steps) if i == 0 or i >= len(steps) - 4 or BEGIN_QUERY in step]
    lines: list[str] = []
    for before, i in zip([-1, *kept], kept, strict=False):
        lines += [*(["..."] if i > before + 1 else []), steps[i].strip()]
    return "\n\n".join(lines)
