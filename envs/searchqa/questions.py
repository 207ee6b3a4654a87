"""Seeded generation of questions about the encyclopedia, of one to four hops.

The number of hops is the number of supporting articles. A *bridge* question follows references (the mayor of the
birthplace of …); a *comparison* question compares a fact of two articles, each of which may be reached through
references.

Spelling in questions is British; it is part of the data and must not change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from ..seeding import stable_seed
from .datasets import Question
from .encyclopedia import Encyclopedia, Kind, encyclopedia

COUNTS: Mapping[str, int] = {"train": 4000, "dev": 500, "test": 500}
"""Number of questions by split, for each number of hops."""
MAX_HOPS = 4

REFERENCES: Mapping[Kind, Mapping[str, tuple[Kind, str]]] = {
    "person": {
        "birthplace": ("place", "the birthplace of {}"),
        "teacher": ("person", "the teacher of {}"),
        "employer": ("organization", "the employer of {}"),
    },
    "place": {"mayor": ("person", "the mayor of {}")},
    "work": {
        "author": ("person", "the author of {}"),
        "setting": ("place", "the place where {} is set"),
        "publisher": ("organization", "the publisher of {}"),
    },
    "organization": {
        "founder": ("person", "the founder of {}"),
        "seat": ("place", "the seat of {}"),
    },
}
"""Facts that refer to another article: the kind of that article, and a phrase that denotes it."""

FACT_QUESTIONS: Mapping[Kind, Mapping[str, str]] = {
    "person": {
        "birthplace": "Where was {} born?",
        "born": "In which year was {} born?",
        "profession": "What was the profession of {}?",
        "teacher": "Who taught {}?",
        "employer": "By which organisation was {} employed?",
        "instrument": "Which instrument did {} play?",
    },
    "place": {
        "river": "On which river does {} lie?",
        "founded": "In which year was {} founded?",
        "population": "What is the population of {}?",
        "goods": "What goods is {} known for?",
        "mayor": "Who is the mayor of {}?",
    },
    "work": {
        "author": "Who is the author of {}?",
        "year": "In which year was {} completed?",
        "setting": "Where is {} set?",
        "publisher": "Who published {}?",
        "form": "What form of work is {}?",
    },
    "organization": {
        "founder": "Who founded {}?",
        "seat": "In which place does {} have its seat?",
        "founded": "In which year was {} founded?",
        "emblem": "What does the emblem of {} show?",
        "members": "How many members does {} have?",
    },
}
COMPARISONS: Mapping[Kind, tuple[tuple[str, str, bool], ...]] = {
    "person": (("born", "Who was born earlier, {} or {}?", False),),
    "place": (
        ("founded", "Which was founded earlier, {} or {}?", False),
        ("population", "Which has the larger population, {} or {}?", True),
    ),
    "work": (("year", "Which was completed earlier, {} or {}?", False),),
    "organization": (
        ("founded", "Which was founded earlier, {} or {}?", False),
        ("members", "Which has more members, {} or {}?", True),
    ),
}
"""(fact, question, larger number is the answer) of numeric facts that can be compared."""
EQUALITY_QUESTIONS: Mapping[Kind, tuple[tuple[str, str], ...]] = {
    "person": (("profession", "Did {} and {} have the same profession?"),),
    "place": (("river", "Do {} and {} lie on the same river?"),),
    "work": (("form", "Are {} and {} works of the same form?"),),
    "organization": (("emblem", "Do {} and {} have the same emblem?"),),
}

_KINDS: tuple[Kind, ...] = ("person", "place", "work", "organization")


class _Phrase(NamedTuple):
    """A phrase of a question that denotes an article.

    Attributes:
        text: The phrase.
        kind: Kind of the article.
        title: Title of the article.
        chain: Titles of the articles that lead to it, ending with its own.
    """

    text: str
    kind: Kind
    title: str
    chain: tuple[str, ...]


class QuestionGenerator:
    """Generator of distinct questions of one split and one number of hops."""

    def __init__(self, source: Encyclopedia, split: str, hops: int) -> None:
        self._encyclopedia = source
        self._split = split
        self._hops = hops
        self._rng = random.Random(stable_seed("questions", source.seed, split, hops))

    def questions(self, count: int) -> Iterator[Question]:
        """Yield `count` questions, none of them twice."""
        seen: set[str] = set()
        while len(seen) < count:
            comparison = self._hops > 1 and self._rng.random() < 0.4
            question = self._draw_comparison() if comparison else self._draw_bridge()
            if question is not None and question.question not in seen:
                yield question._replace(id=f"{self._split}/{self._hops}hop/{len(seen)}")
                seen.add(question.question)

    def _draw_chain(self, hops: int, kind: Kind | None = None) -> _Phrase | None:
        """Draw a chain of `hops` articles that ends in an article of `kind`; None if the draw fails."""
        rng = self._rng
        start = rng.choice(_KINDS)
        if hops == 1 and kind is not None:
            start = kind
        title = rng.choice(self._encyclopedia.titles[self._split, start])
        at = start
        text = f"the {title}" if start == "organization" else title
        chain = [title]
        for _ in range(hops - 1):
            name = rng.choice(tuple(REFERENCES[at]))
            title = self._encyclopedia.articles[title].facts[name]
            at, form = REFERENCES[at][name]
            if title in chain:
                return None
            text = form.format(text)
            chain.append(title)
        return _Phrase(text, at, title, tuple(chain)) if kind in (None, at) else None

    def _draw_bridge(self) -> Question | None:
        phrase = self._draw_chain(self._hops)
        if phrase is None:
            return None
        facts = self._encyclopedia.articles[phrase.title].facts
        name = self._rng.choice(tuple(FACT_QUESTIONS[phrase.kind]))
        if facts[name] in phrase.chain:  # The question would contain its answer.
            return None
        text = FACT_QUESTIONS[phrase.kind][name].format(phrase.text)
        kind = "single" if self._hops == 1 else "bridge"
        return _question(text, facts[name], kind, phrase.chain)

    def _draw_comparison(self) -> Question | None:
        rng = self._rng
        left = self._draw_chain(self._hops // 2)
        if left is None:
            return None
        right = self._draw_chain(self._hops - self._hops // 2, left.kind)
        if right is None or set(left.chain) & set(right.chain):
            return None
        one, other = self._encyclopedia.articles[left.title].facts, self._encyclopedia.articles[right.title].facts
        chain = left.chain + right.chain
        if rng.random() < 0.4:
            name, form = rng.choice(EQUALITY_QUESTIONS[left.kind])
            same = one[name] == other[name]
            # Equal pairs are rare; most unequal pairs are rejected to balance the answers "yes" and "no".
            if not same and rng.random() < 0.9:
                return None
            text = form.format(left.text, right.text)
            return _question(text, "yes" if same else "no", "comparison", chain)
        name, form, larger = rng.choice(COMPARISONS[left.kind])
        a, b = int(one[name]), int(other[name])
        if a == b:
            return None
        answer = left.title if (a > b) == larger else right.title
        return _question(form.format(left.text, right.text), answer, "comparison", chain)


def _question(text: str, answer: str, kind: str, chain: tuple[str, ...]) -> Question:
    return Question("", text, (answer,), chain, {"type": kind, "hops": len(chain)})


@lru_cache(maxsize=16)
def generate_questions(seed: int, split: str) -> tuple[Question, ...]:
    """Return the questions of a split, with the number of hops cycling from one to four."""
    source = encyclopedia(seed)
    count = COUNTS[split]
    by_hops = [QuestionGenerator(source, split, hops).questions(count) for hops in range(1, MAX_HOPS + 1)]
    return tuple(question for row in zip(*by_hops, strict=True) for question in row)
