"""Noun taggers for the title score of the reward.

The published reward takes nouns from spaCy's small English model. `tagger="spacy"` uses that model (`pip install
spacy` and `python -m spacy download en_core_web_sm`). The built-in approximation, `tagger="letters"`, counts every
run of the letters A–Z as a noun. Product titles are mostly nouns, but it also counts "with", "women's" or "black",
so its title scores and rewards differ somewhat. `tagger="auto"`, the default, is spaCy if the model is installed
and the approximation otherwise. Every purchase reports the tagger in `info["tagger"]`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import ConfigurationError, unknown_name

SPACY_MODEL = "en_core_web_sm"
TAGGERS = ("auto", "letters", "spacy")


class Tagger(NamedTuple):
    """Named function from a title to its nouns.

    Attributes:
        name: Name of the tagger, as reported with a purchase.
        nouns: Function that returns the nouns of a title in lower case, in order, with repeats.
    """

    name: str
    nouns: Callable[[str], list[str]]


def letter_runs(title: str) -> list[str]:
    """Return every run of the letters A–Z, in lower case."""
    return (
        re.findall(r"[a-z]+", title.lower())
        if title.isascii()
        else [word.lower() for word in re.findall(r"[A-Za-z]+", title)]
    )


@lru_cache(maxsize=1)
def _spacy_nouns() -> Callable[[str], list[str]]:
    model: Any = importlib.import_module("spacy").load(SPACY_MODEL, disable=["ner", "lemmatizer"])

    @lru_cache(maxsize=1 << 14)
    def nouns(title: str) -> list[str]:
        return [token.text.lower() for token in model(title) if token.pos_ in ("NOUN", "PROPN")]

    return nouns


def make_tagger(choice: str | Callable[[str], list[str]] = "auto") -> Tagger:
    """Return the tagger with a name ("auto", "letters" or "spacy"), or wrap a custom function.

    Raises:
        ConfigurationError: The name is unknown, or `tagger="spacy"` lacks spaCy or its model.
    """
    if callable(choice):
        return Tagger(getattr(choice, "__name__", type(choice).__name__), choice)
    if choice not in TAGGERS:
        raise unknown_name("tagger", choice, TAGGERS)
    installed = all(importlib.util.find_spec(name) is not None for name in ("spacy", SPACY_MODEL))
    if choice == "letters" or (choice == "auto" and not installed):
        return Tagger("letters", letter_runs)
    if not installed:
        raise ConfigurationError(
            'tagger="spacy" needs spaCy with its small English model: "pip install spacy", then'
            f' "python -m spacy download {SPACY_MODEL}".'
        )
    return Tagger(f"spacy {SPACY_MODEL}", _spacy_nouns())
