"""Analysis of text into index terms, identical to the default English analyzer of Lucene and Anserini.

The steps are:

1. Split at Unicode word breaks (UAX #29) with Lucene's tailoring: runs of South-East Asian letters stay together,
   Han and Hiragana characters are single tokens, and emoji are tokens.
2. Remove the possessive `'s`.
3. Convert to lower case.
4. Drop 33 stop words.
5. Apply the Porter stemmer.

The tables below are Unicode's word-break and emoji properties in the version of Lucene's tokenizer. There is one
difference: letters that Unicode added after version 9 are letters here, and Lucene drops them.

Characters are first mapped to one letter per word-break class, so that one small regular expression over the
classes segments any script.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

from .porter import porter_stem

_STOP = """a an and are as at be but by for if in into is it no not of on or such that the their then there these
they this to was will with"""
STOP_WORDS = frozenset(_STOP.split())
"""Lucene's English stop words."""

MAX_TOKEN = 255
"""Maximum number of characters of a token; longer ones are cut, and tokenization continues after the cut."""

_PICTOGRAPHS = (
    "00A9 00AE 203C 2049 2122 2194-2199 21A9-21AA 231A-231B 2328 2388 23CF 23E9-23F3 23F8-23FA 25AA-25AB 25B6"
    " 25C0 25FB-25FE 2600-2605 2607-2612 2614-2685 2690-2705 2708-2712 2714 2716 271D 2721 2728 2733-2734 2744"
    " 2747 274C 274E 2753-2755 2757 2763-2767 2795-2797 27A1 27B0 27BF 2934-2935 2B05-2B07 2B1B-2B1C 2B50 2B55"
    " 3030 303D 3297 3299 1F000-1F0FF 1F10D-1F10F 1F12F 1F16C-1F171 1F17E-1F17F 1F18E 1F191-1F19A 1F1AD-1F1E5"
    " 1F201-1F20F 1F21A 1F22F 1F232-1F23A 1F23C-1F23F 1F249-1F3FA 1F400-1F53D 1F546-1F64F 1F680-1F6FF"
    " 1F774-1F77F 1F7D5-1F7FF 1F80C-1F80F 1F848-1F84F 1F85A-1F85F 1F888-1F88F 1F8AE-1F8FF 1F90C-1F93A"
    " 1F93C-1F945 1F947-1FFFD"
)
"""Extended_Pictographic of Unicode Emoji 11.0 (hexadecimal code points)."""

_CLASSES: tuple[tuple[str, str], ...] = (
    ("'", "0027"),
    ('"', "0022"),
    (".", "002E 2018 2019 2024 FE52 FF07 FF0E"),  # Joins letters, and joins digits.
    (":", "003A 00B7 0387 05F4 2027 FE13 FE55 FF1A"),  # Joins letters.
    (",", "002C 003B 037E 0589 060C 060D 066C 07F8 2044 FE10 FE14 FF0C FF1B"),  # Joins digits.
    ("_", "005F 202F 203F-2040 2054 FE33-FE34 FE4D-FE4F FF3F"),
    ("#", "0023 002A"),
    ("v", "FE0F"),
    ("w", "FE0E"),
    ("z", "200D"),
    ("x", "200C FF9E-FF9F"),
    ("c", "20E3"),
    (" ", "200B"),
    ("r", "1F1E6-1F1FF"),
    ("m", "1F3FB-1F3FF"),
    ("t", "E0020-E007E"),
    ("T", "E007F"),
    ("0", "066B FF10-FF19"),
    ("k", "3031-3035 309B-309C 30A0-30FA 30FC-30FF 31F0-31FF 32D0-32FE 3300-3357 FF66-FF9D 1B000"),
    ("i", "3005 3007 3021-3029 3038-303B 3041-3096 309D-309F 2E80-2FD5 3400-9FFF F900-FAD9 1F200 20000-3FFFD"),
    ("s", "0E01-0E3A 0E40-0E4E 0E81-0EBD 0EC0-0EC4 0EC6 0ECD 0EDC-0EDF 1000-103F 1050-108F 109A-109F"),
    ("s", "1780-17D3 17D7 17DC-17DD 1950-1974 1980-19C9 19DA 19DE-19DF 1A20-1A7C 1AA0-1AAD A9E0-A9EF A9FA-A9FE"),
    ("s", "AA60-AAC2 AADB-AADF 11700-1172B 1173A-1173F"),
    ("h", "05D0-05F2 FB1D FB1F-FB4F"),
    ("a", "05F3 24B6-24E9 1F130-1F149 1F150-1F169 1F170-1F189"),
    ("e", _PICTOGRAPHS),
)
"""Word-break classes and their code points; earlier rows win, and other characters use their general category."""


def _parse_ranges(ranges: str) -> list[tuple[int, int]]:
    spans = (span.partition("-") for span in ranges.split())
    return [(int(first, 16), int(last or first, 16)) for first, _, last in spans]


class _ClassTable(dict[int, int]):
    """Cache from a code point to the code point of its class letter, for `str.translate`."""

    def __init__(self) -> None:
        super().__init__()
        rows = [(name, span) for name, ranges in _CLASSES for span in _parse_ranges(ranges)]
        borders = {border for _, (first, last) in rows for border in (first, last + 1)}
        self._borders = sorted(borders)
        """First code points of the intervals within which the table's rows give one class."""
        self._names = [
            next((name for name, (first, last) in rows if first <= border <= last), "") for border in self._borders
        ]
        """Class of each interval; empty if it is in no row."""

    def __missing__(self, point: int) -> int:
        found = self[point] = ord(self._classify(point))
        return found

    def _classify(self, point: int) -> str:
        category = unicodedata.category(chr(point))
        if category[0] == "M" and not 0xFE0E <= point <= 0xFE0F and point != 0x20E3:
            return "x"
        interval = bisect_right(self._borders, point) - 1
        if interval >= 0 and self._names[interval]:
            return self._names[interval]
        if category[0] == "L" or category == "Nl":
            return "a"
        return {"Nd": "0", "Cf": "x"}.get(category, " ")


_table = _ClassTable()

# Extending and formatting characters belong to the character before them (rule WB4).
_EXTENDING = frozenset("xzvwctT")
_X = f"[{''.join(sorted(_EXTENDING))}]*"
_X_EMOJI = "[xzctT]*"  # Excludes the presentation selectors.
_KATAKANA = rf"k{_X}(?:(?:_{_X})*k{_X})*"
_WORD = (
    rf"(?:h{_X}(?:'{_X}|\"{_X}h{_X})"
    rf"|0{_X}(?:(?:(?:_{_X})*|[,.']{_X})0{_X})*"
    rf"|[ah]{_X}(?:(?:(?:_{_X})*|[:.']{_X})[ah]{_X})*)+"
)
_PICTURE = rf"(?:(?:e{_X_EMOJI})?m|e)"
# Consuming them at once keeps the search linear. The joiners after the last underscore may begin a token.
_NO_TOKEN = "_(?:[xzvwctT]*_)*+|z++"
_TOKENS = re.compile(
    rf"((?:_{_X})*+(?:{_KATAKANA}|{_WORD})(?:(?:_{_X})+(?:{_KATAKANA}|{_WORD}))*(?:_{_X})*"
    rf"|z*+{_PICTURE}(?:{_X_EMOJI}v?z{_PICTURE})*{_X_EMOJI}v?"
    rf"|#{_X_EMOJI}v?c{_X_EMOJI}"
    rf"|r{_X}r{_X}"
    rf"|(?:s{_X})+"
    rf"|i{_X})"
    rf"|{_NO_TOKEN}"
)
"""Tokens (group 1), or underscores and joiners that begin no token."""
_STARTS = re.compile(rf"((?:_{_X})*+[kh0a]|z*+[em]|#{_X_EMOJI}v?c|r{_X}r|s|i)|{_NO_TOKEN}")
"""Beginnings of the matches of `_TOKENS`, which are the same positions."""
_ASCII_TOKENS = re.compile(
    r"(?<!_)_*+(?:[0-9]+(?:(?:_*|[,;.'])[0-9]+)*|[A-Za-z]+(?:(?:_*|[:.'])[A-Za-z]+)*)+"
    r"(?:_+(?:[0-9]+(?:(?:_*|[,;.'])[0-9]+)*|[A-Za-z]+(?:(?:_*|[:.'])[A-Za-z]+)*)+)*_*"
)


def tokenize(text: str) -> list[str]:
    """Return the words of a text (step 1 of the analysis)."""
    if text.isascii():
        tokens: list[str] = _ASCII_TOKENS.findall(text)
        if len(text) <= MAX_TOKEN or max(map(len, tokens), default=0) <= MAX_TOKEN:
            return tokens
    classes = text.translate(_table)
    found: list[str] = []
    for match in _TOKENS.finditer(classes):
        begin, end = match.span(1)
        if end - begin > MAX_TOKEN:
            return found + [text[begin:end] for begin, end in _cut_tokens(classes, begin)]
        if end >= 0:
            found.append(text[begin:end])
    return found


def _cut_tokens(classes: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the tokens from `start` on, with long ones cut.

    A token is matched within `MAX_TOKEN` characters from its beginning, so that a long one is not matched again as
    a whole after every cut.
    """
    while match := _STARTS.search(classes, start):
        start = match.end()
        begin, letter = match.span(1)
        if begin >= 0 and letter - begin <= MAX_TOKEN:
            token = _TOKENS.match(classes, begin, begin + MAX_TOKEN)
            assert token is not None
            start = token.end()
            yield begin, start
        elif begin >= 0:
            # The underscores or joiners before the first letter are too long themselves; their parts are tokens.
            only_joiners = classes[begin] == "z"
            while letter - begin > MAX_TOKEN:
                yield begin, begin + MAX_TOKEN
                begin += MAX_TOKEN
                while not only_joiners and classes[begin : begin + 1] in _EXTENDING:
                    begin += 1
            start = begin


@lru_cache(maxsize=1 << 17)
def term_of(token: str) -> str:
    """Return the index term of a token (steps 2 to 5); empty for a stop word."""
    if token[-1:] in ("s", "S") and token[-2:-1] in ("'", "’", "＇"):
        token = token[:-2]
    # Java converts letter by letter: it has no final sigma, and every letter gives one character.
    token = token.lower() if token.isascii() else "".join(c.lower()[0] for c in token)
    return "" if token in STOP_WORDS else porter_stem(token)


def analyze(text: str) -> list[str]:
    """Return the index terms of a document or query, in order, with repeats."""
    return [term for term in map(term_of, tokenize(text)) if term]
