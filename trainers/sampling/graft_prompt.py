"""Prompt of thought grafting, and the check of the thoughts that the policy writes in reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from ...agents.dialogue import Dialogue
from ...agents.engines.base import Message
from ...assets import asset

if TYPE_CHECKING:
    from jinja2 import Template

LEAKS = ("branch", "branches", "trajectory", "trajectories")
"""Words that show that a thought is about the grafting prompt instead of the situation."""
WORDS_PER_TOKEN = 0.75
"""Words of a thought per token of its limit, for the prompt."""

Fault = Literal["empty", "long", "equal", "leak", "format"]
FAULTS: tuple[Fault, ...] = ("empty", "long", "equal", "leak", "format")

_LABEL = re.compile(r"^\s*(?:thought|reasoning)\s*:\s*", re.IGNORECASE)


class ShownTurn(NamedTuple):
    """Earlier turn, as shown in the prompt."""

    observation: str
    action: str


class ShownBranch(NamedTuple):
    """First turn of a branch, as shown in the prompt."""

    thought: str
    action: str
    outcome: str


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, autoescape=False)
    return environment.from_string(asset("prompts/graft.jinja").read_text(encoding="utf-8"))


def graft_messages(
    instructions: str,
    history: Sequence[ShownTurn],
    observation: str,
    best: ShownBranch,
    worst: ShownBranch,
    thought_tokens: int,
) -> list[Message]:
    """Return the messages that ask for a corrected thought.

    Args:
        instructions: System message of the dialogue.
        history: Earlier turns.
        observation: Observation of the situation.
        best: Branch that worked.
        worst: Branch that failed.
        thought_tokens: Maximum length of the thought in tokens.
    """
    template = _template()
    context = template.new_context(
        {
            "instructions": instructions,
            "history": history,
            "observation": observation,
            "best": best,
            "worst": worst,
            "words": max(round(WORDS_PER_TOKEN * thought_tokens), 1),
        }
    )
    system, user = ("".join(template.blocks[name](context)).strip() for name in ("system", "user"))
    return [Message("system", system), Message("user", user)]


def clean_thought(reply: str, dialogue: Dialogue) -> str:
    """Return the thought in a reply to the grafting prompt, without the form of a reply of the dialogue."""
    for text in (reply, dialogue.prefill + reply):
        span = dialogue.thought_span(text)
        if span is not None:
            return text[slice(*span)]
    return _LABEL.sub("", reply).strip()


def thought_fault(
    thought: str, rejected: str, shown: str, reply: str, dialogue: Dialogue, *, cut: bool
) -> Fault | None:
    """Return the reason why a written thought is no use; None if it is valid.

    Args:
        thought: Result of `clean_thought`.
        rejected: Thought that it is to replace.
        shown: Texts of the environment; a word of `LEAKS` that occurs in them betrays nothing.
        reply: Reply of the dialogue with the thought.
        dialogue: Dialogue of the policy.
        cut: True if a limit of tokens ended the thought.

    Returns:
        "empty"; "long" if it was cut; "equal" to the rejected one but for case and white space; "leak" if it
        mentions the branches; "format" if the dialogue does not find it in the reply.
    """
    if not thought:
        return "empty"
    if cut:
        return "long"
    if _normalize(thought) == _normalize(rejected):
        return "equal"
    known = set(_words(shown))
    if any(word in LEAKS and word not in known for word in _words(thought)):
        return "leak"
    span = dialogue.thought_span(reply)
    return None if span is not None and reply[slice(*span)] == thought else "format"


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split())


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.casefold())
