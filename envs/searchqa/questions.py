"""Questions about the generated encyclopedia: one to four hops, each with the chain of articles to read.

A hop is an article that has to be read. A *bridge* question follows references (the mayor of the birthplace of …);
a *comparison* question follows one or two of them on either side and compares what it finds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from ..seeding import stable_seed
from .datasets import Question
from .encyclopedia import SPLITS, Encyclopedia, Kind, encyclopedia

COUNTS: Mapping[str, int] = {"train": 4000, "dev": 500, "test": 500}
"""Questions by split, for each number of hops."""
MAX_HOPS = 4

_REFERENCES: Mapping[Kind, Mapping[str, tuple[Kind, str]]] = {
    "person": {
        "birthplace": ("place", "the birthplace of {}"),
        "teacher": ("person", "the teacher of {}"),
        "employer": ("organisation", "the employer of {}"),
    },
    "place": {"mayor": ("person", "the mayor of {}")},
    "work": {
        "author": ("person", "the author of {}"),
        "setting": ("place", "the place where {} is set"),
        "publisher": ("organisation", "the publisher of {}"),
    },
    "organisation": {
        "founder": ("person", "the founder of {}"),
        "seat": ("place", "the seat of {}"),
    },
}
"""Facts that name another article: its kind, and how to speak of it."""

_ASKED: Mapping[Kind, Mapping[str, str]] = {
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
    "organisation": {
        "founder": "Who founded {}?",
        "seat": "In which place does {} have its seat?",
        "founded": "In which year was {} founded?",
        "emblem": "What does the emblem of {} show?",
        "members": "How many members does {} have?",
    },
}
_COMPARED: Mapping[Kind, tuple[tuple[str, str, bool], ...]] = {
    "person": (("born", "Who was born earlier, {} or {}?", False),),
    "place": (
        ("founded", "Which was founded earlier, {} or {}?", False),
        ("population", "Which has the larger population, {} or {}?", True),
    ),
    "work": (("year", "Which was completed earlier, {} or {}?", False),),
    "organisation": (
        ("founded", "Which was founded earlier, {} or {}?", False),
        ("members", "Which has more members, {} or {}?", True),
    ),
}
"""Numbers that can be compared, and whether the larger one wins."""
_EQUATED: Mapping[Kind, tuple[tuple[str, str], ...]] = {
    "person": (("profession", "Did {} and {} have the same profession?"),),
    "place": (("river", "Do {} and {} lie on the same river?"),),
    "work": (("form", "Are {} and {} works of the same form?"),),
    "organisation": (("emblem", "Do {} and {} have the same emblem?"),),
}

_KINDS: tuple[Kind, ...] = ("person", "place", "work", "organisation")


class _Phrase(NamedTuple):
    """An article as a question speaks of it, and the articles to read on the way to it, itself the last."""

    text: str
    kind: Kind
    title: str
    chain: tuple[str, ...]


class Generator:
    """Draws the questions of one split and one number of hops; none occurs twice."""

    def __init__(self, source: Encyclopedia, split: str, hops: int) -> None:
        self._encyclopedia = source
        self._split = split
        self._hops = hops
        self._rng = random.Random(stable_seed("questions", source.seed, split, hops))

    def questions(self, count: int) -> Iterator[Question]:
        seen: set[str] = set()
        while len(seen) < count:
            comparison = self._hops > 1 and self._rng.random() < 0.4
            question = self._compare() if comparison else self._bridge()
            if question is not None and question.question not in seen:
                yield question._replace(id=f"{self._split}/{self._hops}hop/{len(seen)}")
                seen.add(question.question)

    def _phrase(self, hops: int, kind: Kind | None = None) -> _Phrase | None:
        """A chain of `hops` articles that ends in one of `kind`; None where the draw led round in a circle."""
        rng = self._rng
        start = rng.choice(_KINDS)
        if hops == 1 and kind is not None:
            start = kind
        title = rng.choice(self._encyclopedia.titles[self._split, start])
        at = start
        text = f"the {title}" if start == "organisation" else title
        chain = [title]
        for _ in range(hops - 1):
            name = rng.choice(tuple(_REFERENCES[at]))
            title = self._encyclopedia.articles[title].facts[name]
            at, form = _REFERENCES[at][name]
            if title in chain:
                return None
            text = form.format(text)
            chain.append(title)
        return _Phrase(text, at, title, tuple(chain)) if kind in (None, at) else None

    def _bridge(self) -> Question | None:
        phrase = self._phrase(self._hops)
        if phrase is None:
            return None
        facts = self._encyclopedia.articles[phrase.title].facts
        name = self._rng.choice(tuple(_ASKED[phrase.kind]))
        if facts[name] in phrase.chain:  # the way back
            return None
        text = _ASKED[phrase.kind][name].format(phrase.text)
        kind = "single" if self._hops == 1 else "bridge"
        return _question(text, facts[name], kind, phrase.chain)

    def _compare(self) -> Question | None:
        rng = self._rng
        left = self._phrase(self._hops // 2)
        if left is None:
            return None
        right = self._phrase(self._hops - self._hops // 2, left.kind)
        if right is None or set(left.chain) & set(right.chain):
            return None
        one, other = self._encyclopedia.articles[left.title].facts, self._encyclopedia.articles[right.title].facts
        chain = left.chain + right.chain
        if rng.random() < 0.4:
            name, form = rng.choice(_EQUATED[left.kind])
            same = one[name] == other[name]
            # Pairs that agree are rare: most of those that do not are passed over, for about as many yes as no.
            if not same and rng.random() < 0.9:
                return None
            text = form.format(left.text, right.text)
            return _question(text, "yes" if same else "no", "comparison", chain)
        name, form, larger = rng.choice(_COMPARED[left.kind])
        a, b = int(one[name]), int(other[name])
        if a == b:
            return None
        answer = left.title if (a > b) == larger else right.title
        return _question(form.format(left.text, right.text), answer, "comparison", chain)


def _question(text: str, answer: str, kind: str, chain: tuple[str, ...]) -> Question:
    return Question("", text, (answer,), chain, {"type": kind, "hops": len(chain)})


@lru_cache(maxsize=16)
def generated_questions(seed: int, split: str) -> tuple[Question, ...]:
    """The questions of a split, of one to four hops in turn."""
    source = encyclopedia(seed)
    count = COUNTS[split]
    grades = [Generator(source, split, hops).questions(count) for hops in range(1, MAX_HOPS + 1)]
    return tuple(question for row in zip(*grades, strict=True) for question in row)


__all__ = ["COUNTS", "MAX_HOPS", "SPLITS", "Generator", "generated_questions"]
