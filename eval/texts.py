"""`texts.jsonl`: system messages of a run's conversations, each stored once and referred to by its digest.

Instructions and examples are equal in all episodes of an entry and longer than most episodes. A line of
`texts.jsonl` is `{"digest": …, "text": …}`. In `episodes.jsonl`, the content of such a message is
`{"text": digest, "after": rest}`: the text of that digest, then the rest, which is missing where it is empty.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..envs.files import read_jsonl

FILE = "texts.jsonl"
_REFERENCE = re.compile(rb'\{"text":"([0-9a-f]{32})"[,}]')  # Inside a JSON string, the quotes would be escaped.


class TextStore:
    """File of shared texts, appended to by one process at a time; created with the first text.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._known = set(read_texts(folder))

    def add(self, texts: Mapping[str, str]) -> None:
        """Append the texts that are not stored yet, and flush them to the disk.

        Args:
            texts: Texts by digest.
        """
        new = {digest: text for digest, text in texts.items() if digest not in self._known}
        if not new:
            return
        with self._path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # Ends a line that a killed process left incomplete; readers skip it.
            # In ASCII, because a text may have lone surrogates.
            file.writelines(json.dumps({"digest": d, "text": t}).encode() + b"\n" for d, t in new.items())
            file.flush()
            os.fsync(file.fileno())
        self._known.update(new)


def read_texts(folder: Path) -> dict[str, str]:
    """Return the shared texts of a run by digest; damaged lines are left out, as their digests tell."""
    texts = {}
    for record in read_jsonl(folder / FILE, damaged="skip"):
        if isinstance(record, dict) and isinstance(record.get("text"), str):
            digest = digest_text(record["text"])
            if record.get("digest") == digest:
                texts[digest] = record["text"]
    return texts


def referred_texts(line: bytes) -> set[str]:
    """Return the digests of the texts to which a line of `episodes.jsonl` refers."""
    return {digest.decode() for digest in _REFERENCE.findall(line)} if b'{"text":"' in line else set()


def describe_lost_texts(folder: Path, digests: set[str]) -> list[str]:
    """Return a sentence if the texts of some digests are not stored; an empty list otherwise."""
    lost = digests - set(read_texts(folder)) if digests else set()
    if not lost:
        return []
    return [
        f"{folder / FILE}: is lost or damaged; {len(lost)} of {len(digests)} system messages are missing from the"
        " conversations. Results do not depend on them."
    ]


def digest_text(text: str) -> str:
    """Return 32 hexadecimal digits of the SHA-256 digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def share_texts(record: Mapping[str, Any]) -> dict[str, str]:
    """Replace the system messages in an episode's record by references; return the texts by digest.

    A message that begins with the text of another one, such as instructions with the notes of earlier trials after
    them, refers to that text.

    Args:
        record: Result of `Episode.to_dict`; its messages are changed.
    """
    messages = [message for message in _system_messages(record) if isinstance(message[1], str)]
    found: dict[str, str] = {}
    for message in sorted(messages, key=lambda message: len(message[1])):
        content = message[1]
        digest, text = max(
            ((d, t) for d, t in found.items() if content.startswith(t)),
            key=lambda item: len(item[1]),
            default=("", ""),
        )
        if not text:
            digest, text = digest_text(content), content
            found[digest] = text
        after = content[len(text) :]
        message[1] = {"text": digest, **({"after": after} if after else {})}
    return found


def restore_texts(record: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return an episode's record with texts in the place of references; a lost text is replaced by a sentence."""

    def restore(content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        lost = f"(The text {content['text']} is missing: {FILE} is damaged.)"
        return str(texts.get(content["text"], lost)) + str(content.get("after", ""))

    exchanges = [
        {**exchange, "add": [[role, restore(content)] for role, content in exchange["add"]]}
        for exchange in record.get("exchanges", ())
    ]
    trials = [restore_texts(trial, texts) for trial in record.get("trials", ())]
    return {**record, "exchanges": exchanges, "trials": trials}


def has_lost_texts(record: Mapping[str, Any], texts: Mapping[str, str]) -> bool:
    """Return True if an episode's record refers to a text that is not among `texts`."""
    contents = (message[1] for message in _system_messages(record))
    return any(isinstance(content, dict) and content["text"] not in texts for content in contents)


def _system_messages(record: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the system messages of an episode's record and of its earlier trials."""
    for episode in (*record.get("trials", ()), record):
        for exchange in episode.get("exchanges", ()):
            yield from (message for message in exchange["add"] if message[0] == "system")
