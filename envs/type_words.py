"""Messages about types in words, for people who write YAML and JSON rather than Python."""

from __future__ import annotations

import re

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


def in_words(error: Exception) -> str:
    """Return the message of a `msgspec.ValidationError` with types in words.

    "Expected `int | null`, got `str` - at `$.seed`" becomes "expected a whole number or nothing, got text, at
    `seed`".
    """

    def words(match: re.Match[str]) -> str:
        parts = (match[1] or match[2]).split(" | ")
        return " or ".join(_WORDS[part] for part in parts) if set(parts) <= _WORDS.keys() else match[0]

    text = re.sub(r"(?<=xpected )`([a-z |]+)`|(?<=got )`([a-z |]+)`", words, str(error))
    text = text.replace(" - at `$.", ", at `").replace("Object contains unknown", "it has the unknown")
    text = text.replace("Object missing required", "it lacks the")
    return text[:1].lower() + text[1:]
