"""Expert that searches: it answers questions about the generated encyclopedia from the passages that it was shown.

It reads the question by the forms in which questions are generated, searches for the first article by its title,
reads the fact in the passage by the forms of the sentences, and follows the reference to the next article.
`SearchQA.expert_actions` in contrast has the titles of all supporting articles and the gold answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from . import react, tags
from .encyclopedia import OPENINGS, SENTENCES
from .questions import COMPARISONS, EQUALITY_QUESTIONS, FACT_QUESTIONS, REFERENCES

_PASSAGE = re.compile(r'Doc \d+\(Title: "(?P<title>[^"]*)"\) (?P<text>.*)')
_PREFIX = "Question: "
_TITLE = "\N{NULL}"


class SearchAction(NamedTuple):
    """A search for `text`, or the answer `text`."""

    kind: Literal["search", "answer"]
    text: str


class _Chain(NamedTuple):
    """A phrase that denotes an article: the article that it names, and the references to follow from there.

    Attributes:
        title: Title in the question.
        references: Names of facts, in the order of following.
    """

    title: str
    references: tuple[str, ...]


class _Goal(NamedTuple):
    """A question as it is worded.

    Attributes:
        fact: Name of the fact that is asked for.
        chains: Phrases that denote the articles with this fact: one, or two to compare.
        choose: Returns the answer from the titles and facts of two articles; None if the fact is the answer.
    """

    fact: str
    chains: tuple[_Chain, ...]
    choose: Callable[[Sequence[str], Sequence[str]], str] | None = None


class _Missing(Exception):
    """A fact of an article has not been shown."""

    def __init__(self, title: str) -> None:
        self.title = title


def next_action(observations: Sequence[str], actions: Sequence[str]) -> SearchAction | None:
    """Return the next action, or None if the question is worded otherwise or no search finds the article.

    Args:
        observations: The first observation, which is the question, and the reply to every action.
        actions: The actions so far, in either protocol, which may be those of another agent.
    """
    goal = _read_question(observations[0])
    if goal is None:
        return None
    passages: dict[str, str] = {}
    queries: list[str] = []
    for action, reply in zip(actions, observations[1:], strict=True):
        parsed = react.parse_action(action) or tags.parse_action(action)
        if parsed is None or parsed.kind != "search":
            continue
        queries.append(parsed.text)
        found = {match["title"]: match["text"] for match in _PASSAGE.finditer(reply)}
        passages.update(found or {parsed.text: reply})  # ReAct's replies are pages without a title.
    try:
        return SearchAction("answer", _answer(goal, passages))
    except _Missing as missing:
        # The title alone ranks first the article with that title; further terms can help where it does not.
        for query in (missing.title, f"{missing.title} {goal.fact}"):
            if query not in queries:
                return SearchAction("search", query)
    return None


def _answer(goal: _Goal, passages: Mapping[str, str]) -> str:
    """Return the answer.

    Raises:
        _Missing: No passage states a fact on the way.
    """
    titles = []
    for chain in goal.chains:
        title = chain.title
        for reference in chain.references:
            title = _read_fact(passages, title, reference)
        titles.append(title)
    facts = [_read_fact(passages, title, goal.fact) for title in titles]
    return facts[0] if goal.choose is None else goal.choose(titles, facts)


def _read_fact(passages: Mapping[str, str], title: str, fact: str) -> str:
    """Return a fact of an article; see `_answer`."""
    text = passages.get(title, "").replace(title, _TITLE)
    for sentence in _sentences_with(fact):
        found = sentence.search(text)
        if found is not None:
            return found[fact].replace(_TITLE, title)
    raise _Missing(title)


@lru_cache
def _sentences_with(fact: str) -> tuple[re.Pattern[str], ...]:
    """Return the patterns of the sentences that state a fact, with `_TITLE` in the place of the title."""
    sentences = [sentence for openings in OPENINGS.values() for sentence in openings]
    sentences += [sentence for groups in SENTENCES.values() for group in groups for sentence in group]
    patterns = []
    for sentence in sentences:
        if f"{{{fact}}}" in sentence:
            pattern = re.escape(sentence).replace(r"\{t\}", _TITLE)
            patterns.append(re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^.,()]+)", pattern)))
    return tuple(patterns)


# ------------------------------------------------------------------ reading questions


@lru_cache(maxsize=4096)
def _read_question(observation: str) -> _Goal | None:
    question = observation.removeprefix(_PREFIX).strip()
    return next(_readings(question), None)


def _readings(question: str) -> Iterator[_Goal]:
    for equality in EQUALITY_QUESTIONS.values():
        for fact, form in equality:
            if pair := _match(form, question):
                yield _Goal(fact, _chains(pair), _say_whether_equal)
    for comparison in COMPARISONS.values():
        for fact, form, larger in comparison:
            if pair := _match(form, question):
                yield _Goal(fact, _chains(pair), _choose_larger if larger else _choose_smaller)
    for questions in FACT_QUESTIONS.values():
        for fact, form in questions.items():
            if phrase := _match(form, question):
                yield _Goal(fact, _chains(phrase))


def _match(form: str, text: str) -> tuple[str, ...]:
    """Return what stands in the places of a form, or nothing if the text has another form."""
    found = re.fullmatch(re.escape(form).replace(r"\{\}", "(.+)"), text)
    return found.groups() if found else ()


def _chains(phrases: Sequence[str]) -> tuple[_Chain, ...]:
    return tuple(map(_read_phrase, phrases))


def _read_phrase(phrase: str) -> _Chain:
    for references in REFERENCES.values():
        for name, (_, form) in references.items():
            if inner := _match(form, phrase):
                chain = _read_phrase(inner[0])
                return _Chain(chain.title, (*chain.references, name))
    return _Chain(phrase.removeprefix("the "), ())  # Only organizations have an article before the title.


def _say_whether_equal(titles: Sequence[str], facts: Sequence[str]) -> str:
    return "yes" if facts[0] == facts[1] else "no"


def _choose_larger(titles: Sequence[str], facts: Sequence[str]) -> str:
    return titles[0] if int(facts[0]) > int(facts[1]) else titles[1]


def _choose_smaller(titles: Sequence[str], facts: Sequence[str]) -> str:
    return titles[0] if int(facts[0]) < int(facts[1]) else titles[1]
