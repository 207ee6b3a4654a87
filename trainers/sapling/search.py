"""The family `search`: questions about generated encyclopedias, of one hop and of two."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from ...agents.engines.shipped_models import SEARCH_SAPLING
from ...envs.searchqa import encyclopedia as articles
from ...envs.searchqa import questions as asked
from ...envs.searchqa.tags import REFUSAL, SEARCHES_USED_UP
from ..config.settings import DialogueConfig, EnvConfig, ExpertConfig
from .family import Family, Stage, VariedSource
from .tokenizer import make_tokenizer

_PLACE = re.compile(r"\{\w*\}")


def _fragments(forms: Iterator[str]) -> Iterator[str]:
    """Yield the text between the places of forms, without the point at the end."""
    for form in forms:
        yield from filter(None, _PLACE.split(form.removesuffix(".")))


def _syllables() -> Iterator[str]:
    """Yield the beginnings of syllables, consonants and vowel, as they occur in invented names."""
    for onset in dict.fromkeys(articles.ONSETS):
        for vowel in dict.fromkeys(articles.VOWELS):
            yield from (onset + vowel, (onset + vowel).capitalize())


def _sentences() -> Iterator[str]:
    for kind, openings in articles.OPENINGS.items():
        yield from openings
        for variants in articles.SENTENCES[kind]:
            yield from variants
        yield from articles.ASIDES[kind]


def _questions() -> Iterator[str]:
    for references in asked.REFERENCES.values():
        yield from (form for _, form in references.values())
    for facts in asked.FACT_QUESTIONS.values():
        yield from facts.values()
    for comparisons in asked.COMPARISONS.values():
        yield from (form for _, form, _ in comparisons)
    for equalities in asked.EQUALITY_QUESTIONS.values():
        yield from (form for _, form in equalities)


# A name is the same tokens in a question, a passage and an action, so that it can be copied from one to the other:
# no piece reaches over the ends of a name. The words of a list, such as "plough", are a token each.
SEARCH_PIECES: tuple[str, ...] = (
    *("<search>", "</search>", "<answer>", "</answer>", "Question: ", "Answer: ", "yes", "no"),
    *(f"Turn {turn}\n" for turn in range(1, 21)),
    *('\n\n<information>Doc 1(Title: "', *(f'.\nDoc {rank}(Title: "' for rank in (2, 3, 4, 5)), '") '),
    *(". ", ".</information>\n\n", "\n\n<information></information>\n\n"),
    *(REFUSAL, SEARCHES_USED_UP),
    "Your last reply held no action that the world accepts. Reply with the action and nothing else.",
    # sentences and questions
    *_fragments(_sentences()),
    *_fragments(_questions()),
    *("the ", "The "),
    # listed words
    *(f"The {color} " for color in articles.COLORS),
    *articles.THINGS,
    *(f" {body}" for body in articles.BODIES),
    *articles.FORMS,
    *articles.PROFESSIONS,
    *articles.INSTRUMENTS,
    *articles.GOODS,
    *articles.EMBLEMS,
    *articles.GENRES,
    *(genre.partition(" ")[2] for genre in articles.GENRES),
    # invented names and numbers
    *_syllables(),
    "th",
    *articles.PLACE_ENDINGS,
    *(f"{number:02}" for number in range(100)),
)

_OPTIONS = {"dataset": "encyclopedia", "topk": 1}
_QUESTIONS = {hops: EnvConfig("TextSearchQA-v0", {**_OPTIONS, "hops": hops}) for hops in (1, 2)}
_SEED = "encyclopedia_seed"
# A model copies names wrongly at times, and so has to search again after a search that missed the article.
_EXPERT = ExpertConfig(noise=0.1, learn_noise=False, searching=True)

SEARCH = Family(
    "search",
    SEARCH_SAPLING,
    "questions of one and two hops about generated encyclopedias",
    # Every chunk has an encyclopedia of its own, so that no fact can be learned by heart. Encyclopedia 0 is left
    # for validation, tests and reinforcement learning.
    stages=(
        Stage(
            (VariedSource(_QUESTIONS[1], 32000, _SEED),),
            _EXPERT,
            lr=1e-3,
            lr_span=2.0,
            chunks=8,
            observation_weight=0.3,
            validations=4,
        ),
        Stage(
            (VariedSource(_QUESTIONS[1], 16000, _SEED), VariedSource(_QUESTIONS[2], 32000, _SEED)),
            _EXPERT,
            lr=1e-3,
            lr_span=1.1,
            chunks=16,
            observation_weight=0.3,
            validations=8,
        ),
    ),
    held_out={"1 hop": _QUESTIONS[1], "2 hops": _QUESTIONS[2]},
    dialogue=DialogueConfig("plain"),
    tokenizer=partial(make_tokenizer, pieces=SEARCH_PIECES),
    context=1024,
    batch=16,
)
