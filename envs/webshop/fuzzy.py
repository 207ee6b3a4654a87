"""Fuzzy comparison of phrases by the token set ratio (A. Cohen, "FuzzyWuzzy", 2011)."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import lru_cache

MAX_COMPARED = 2000
"""Maximum number of characters of phrases that are compared by their matching characters, which takes quadratic
time; longer ones are alike only if their words are equal."""

_REMOVE_UPPER_LATIN_1 = dict.fromkeys(range(128, 256))


def _words(text: str) -> frozenset[str]:
    """Return the distinct lower-case words of a text; characters of Latin-1 above ASCII are removed."""
    plain = re.sub(r"\W", " ", text.translate(_REMOVE_UPPER_LATIN_1))
    return frozenset(plain.lower().split())


def _ratio_above(first: str, second: str, threshold: int) -> bool:
    if first == second:
        return True
    if not first or not second:
        return False
    if max(len(first), len(second)) > MAX_COMPARED:
        return False
    matcher = SequenceMatcher(None, first, second)
    # Two cheap upper bounds before the quadratic comparison.
    return all(
        round(100 * ratio()) > threshold
        for ratio in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    )


@lru_cache(maxsize=1 << 15)
def token_sets_alike(first: str, second: str, threshold: int = 85) -> bool:
    """Return whether the token set ratio of two phrases is above a threshold.

    Let s be the sorted words of both phrases, and a and b the sorted words of only one. The token set ratio, from
    0 to 100, is the largest ratio among the pairs (s, s a), (s, s b) and (s a, s b), where the ratio of a pair is
    200 × matching characters / all characters.
    """
    one, other = _words(first), _words(second)
    if not one or not other:
        return False
    both = " ".join(sorted(one & other))
    left = f"{both} {' '.join(sorted(one - other))}".strip()
    right = f"{both} {' '.join(sorted(other - one))}".strip()
    return any(_ratio_above(a, b, threshold) for a, b in ((both, left), (both, right), (left, right)))
