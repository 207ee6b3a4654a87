"""Generated passages with the statistics of prose: made-up, Zipf-distributed words and English function words."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...envs.retrieval.interface import Document

VOCABULARY = 200_000
"""Number of distinct content words, about as many as in 100,000 paragraphs of Wikipedia."""

_FUNCTION_SHARE = 0.35  # of running text; these words are stop words of the analyzer
_FUNCTION_WORDS = [
    "the",
    "of",
    "and",
    "in",
    "a",
    "to",
    "was",
    "is",
    "for",
    "on",
    "as",
    "by",
    "with",
    "at",
    "from",
    "it",
    "his",
    "he",
    "that",
    "an",
]
_ONSETS = [
    "b",
    "c",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "w",
    "z",
    "br",
    "ch",
    "st",
    "tr",
    "pl",
]
_RIMES = ["a", "e", "i", "o", "u", "ai", "ea", "ou", "an", "en", "in", "or", "er"]
_BLOCK = 1000


def passages(count: int, seed: int = 0) -> Iterator[Document]:
    """Yield passages of 50 to 139 words.

    Args:
        count: Number of passages; fewer passages are a prefix of more.
        seed: Seed of the random generator.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    words = np.array(_make_words())
    weights = 1.0 / np.arange(10, len(words) + 10)
    cumulative = np.cumsum(weights / weights.sum())
    function = np.array(_FUNCTION_WORDS)
    for first in range(0, count, _BLOCK):
        lengths = rng.integers(50, 140, _BLOCK)
        total = int(lengths.sum())
        content = words[np.minimum(np.searchsorted(cumulative, rng.random(total)), len(words) - 1)]
        text = np.where(
            rng.random(total) < _FUNCTION_SHARE, function[rng.integers(0, len(function), total)], content
        )
        ends = np.cumsum(lengths)
        for i, end in enumerate(ends[: count - first]):
            body = text[end - lengths[i] : end].tolist()
            title = " ".join(body[:3]).title()
            yield Document(str(first + i), f'"{title}"\n{" ".join(body)}.')


def _make_words() -> list[str]:
    """Return `VOCABULARY` distinct made-up words."""
    rng = random.Random(7)
    syllables = [onset + rime for onset in _ONSETS for rime in _RIMES]
    found: dict[str, None] = {}
    while len(found) < VOCABULARY:
        found["".join(rng.choice(syllables) for _ in range(rng.choice((1, 2, 2, 3, 3, 4))))] = None
    return list(found)


def write_passages(path: Path, count: int, seed: int = 0) -> None:
    """Write passages to a corpus file of JSON lines."""
    with path.open("w") as file:
        for document in passages(count, seed):
            file.write(json.dumps(document._asdict()) + "\n")


def questions(documents: list[Document], count: int, words: int = 14, seed: int = 1) -> list[str]:
    """Return queries: runs of consecutive words from random passages, as long as HotpotQA's questions."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        body = rng.choice(documents).text.split()
        start = rng.randrange(len(body) - words)
        found.append(" ".join(body[start : start + words]))
    return found
