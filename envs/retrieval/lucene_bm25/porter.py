"""The Porter stemmer of Lucene's English analyzer.

The algorithm is M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with two changes from the
author's later implementations, which Lucene ports: `-bli` becomes `-ble`, and `-logi` becomes `-log`. Snowball's
"porter" stemmer has neither, so its stems of words such as "technology" differ.
"""

from __future__ import annotations

_STEP_2 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
"""Suffixes by their second-to-last letter."""

_STEP_3 = {
    "e": (("icate", "ic"), ("ative", ""), ("alize", "al")),
    "i": (("iciti", "ic"),),
    "l": (("ical", "ic"), ("ful", "")),
    "s": (("ness", ""),),
}
"""Suffixes by their last letter."""

_STEP_4 = {
    "a": ("al",),
    "c": ("ance", "ence"),
    "e": ("er",),
    "i": ("ic",),
    "l": ("able", "ible"),
    "n": ("ant", "ement", "ment", "ent"),
    "o": ("ion", "ou"),
    "s": ("ism",),
    "t": ("ate", "iti"),
    "u": ("ous",),
    "v": ("ive",),
    "z": ("ize",),
}
"""Suffixes by their second-to-last letter."""


def _form(word: str) -> str:
    """Return a word as a string of `c` (consonant) and `v` (vowel); y is a vowel after a consonant."""
    form = []
    kind = "v"
    for i, letter in enumerate(word):
        if letter in "aeiou":
            kind = "v"
        elif letter == "y" and i:
            kind = "v" if kind == "c" else "c"
        else:
            kind = "c"
        form.append(kind)
    return "".join(form)


def _measure(stem: str) -> int:
    """Return Porter's m, the number of vowel runs that a consonant run follows."""
    return _form(stem).count("vc")


def _ends_double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _form(word)[-1] == "c"


def _ends_cvc(word: str) -> bool:
    """Return whether a word ends in consonant, vowel, consonant, the last not w, x or y."""
    return len(word) > 2 and word[-1] not in "wxy" and _form(word).endswith("cvc")


def _step_1(word: str) -> str:
    if word[-1] == "s":
        if word.endswith("sses"):
            word = word[:-2]
        elif word.endswith("ies"):
            word = word[:-3] + "i"
        elif word[-2] != "s":
            word = word[:-1]
    if word.endswith("eed"):
        if _measure(word[:-3]) > 0:
            word = word[:-1]
    else:
        stem = word[:-2] if word.endswith("ed") else word[:-3] if word.endswith("ing") else None
        if stem is not None and "v" in _form(stem):
            word = stem
            if word.endswith(("at", "bl", "iz")):
                word += "e"
            elif _ends_double_consonant(word):
                if word[-1] not in "lsz":
                    word = word[:-1]
            elif _measure(word) == 1 and _ends_cvc(word):
                word += "e"
    if word.endswith("y") and "v" in _form(word[:-1]):
        word = word[:-1] + "i"
    return word


def _replace_suffix(word: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for suffix, replacement in pairs:
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            return stem + replacement if _measure(stem) > 0 else word
    return word


def _step_4(word: str) -> str:
    for suffix in _STEP_4.get(word[-2], ()):
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            if suffix == "ion" and not stem.endswith(("s", "t")):
                continue
            return stem if _measure(stem) > 1 else word
    return word


def _step_5(word: str) -> str:
    m = _measure(word)
    if word[-1] == "e" and (m > 1 or (m == 1 and not _ends_cvc(word[:-1]))):
        word = word[:-1]
    if word.endswith("ll") and m > 1:
        word = word[:-1]
    return word


def porter_stem(word: str) -> str:
    """Return the stem of a lower-case word; words of one or two letters are unchanged."""
    if len(word) < 3:
        return word
    word = _step_1(word)
    if len(word) > 1:
        word = _replace_suffix(word, _STEP_2.get(word[-2], ()))
    word = _replace_suffix(word, _STEP_3.get(word[-1], ()))
    if len(word) > 1:
        word = _step_4(word)
    return _step_5(word)
