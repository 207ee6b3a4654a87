"""Typeface of capital letters and digits in 5 x 7 dots, for labels in pictures."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

GLYPH_WIDTH, GLYPH_HEIGHT = 5, 7

_ROWS = {
    "A": "0e11111f111111", "B": "1e11111e11111e", "C": "0e11101010110e", "D": "1e11111111111e",
    "E": "1f10101e10101f", "F": "1f10101e101010", "G": "0e11101711110f", "H": "1111111f111111",
    "I": "0e04040404040e", "J": "0702020202120c", "K": "11121418141211", "L": "1010101010101f",
    "M": "111b1515111111", "N": "11191513111111", "O": "0e11111111110e", "P": "1e11111e101010",
    "Q": "0e11111115120d", "R": "1e11111e141211", "S": "0f10100e01011e", "T": "1f040404040404",
    "U": "1111111111110e", "V": "11111111110a04", "W": "11111115151b11", "X": "11110a040a1111",
    "Y": "11110a04040404", "Z": "1f01020408101f", "0": "0e11131519110e", "1": "040c040404040e",
    "2": "0e11010608101f", "3": "1f02040201110e", "4": "02060a121f0202", "5": "1f101e0101110e",
    "6": "0608101e11110e", "7": "1f010204080808", "8": "0e11110e11110e", "9": "0e11110f01020c",
    "-": "0000001f000000", " ": "00000000000000",
}  # fmt: skip
"""Rows of each letter from top to bottom, two hexadecimal digits each; the lowest bit is the rightmost dot."""

_UNKNOWN = "1f11111111111f"


@lru_cache(maxsize=64)
def glyph(letter: str) -> NDArray[np.bool_]:
    """Return the dots of a letter, [7, 5]; a box for characters that the typeface does not have."""
    rows = bytes.fromhex(_ROWS.get(letter.upper(), _UNKNOWN))
    return np.array([[row >> (GLYPH_WIDTH - 1 - place) & 1 for place in range(GLYPH_WIDTH)] for row in rows], bool)
