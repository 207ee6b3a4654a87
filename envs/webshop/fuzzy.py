"""How alike two phrases are as sets of words: the token set ratio (A. Cohen, "FuzzyWuzzy", 2011)."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import lru_cache

_LATIN_1_UPPER = dict.fromkeys(range(128, 256))


def _words(text: str) -> frozenset[str]:
    plain = re.sub(r"\W", " ", text.translate(_LATIN_1_UPPER))
    return frozenset(plain.lower().split())


def _alike(first: str, second: str, threshold: int) -> bool:
    if first == second:
        return True
    if not first or not second:
        return False
    matcher = SequenceMatcher(None, first, second)
    # Two cheap upper bounds before the quadratic comparison.
    return all(
        round(100 * ratio()) > threshold
        for ratio in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    )


@lru_cache(maxsize=1 << 15)
def token_sets_alike(first: str, second: str, threshold: int = 85) -> bool:
    """Whether the token set ratio of two phrases, 0 to 100, is above a threshold.

    With s the words in both, sorted and joined, and a, b the words of only one: the ratio is the largest among
    those of (s, s a), (s, s b) and (s a, s b), each 200 × matching characters / all characters.
    """
    one, other = _words(first), _words(second)
    if not one or not other:
        return False
    both = " ".join(sorted(one & other))
    left = f"{both} {' '.join(sorted(one - other))}".strip()
    right = f"{both} {' '.join(sorted(other - one))}".strip()
    return any(_alike(a, b, threshold) for a, b in ((both, left), (both, right), (left, right)))
