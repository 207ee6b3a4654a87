"""Data for training, as JSON lines: conversations for fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..episode_filter import EpisodeFilter
from .conversation import plain, segments
from .source import Source, identity


def write_sft(source: Source, path: Path, *, everything: bool = False) -> int:
    """Write conversations for supervised fine-tuning, and return their number.

    A row has `messages`, and the identity and the return of its episode. An episode whose dialogue shortens the
    history has a row for each request that does not continue the one before it.

    Args:
        source: The run.
        path: File to write.
        everything: Also write unsuccessful episodes; those that broke off are always left out.
    """
    which = EpisodeFilter(error=False) if everything else EpisodeFilter(success=True)
    results = source.results(which)

    def rows() -> Iterator[dict[str, Any]]:
        for one in source.episodes(results):
            for messages in segments(one.episode, one.instructions):
                if any(message.role == "assistant" for message in messages):
                    yield {"messages": plain(messages), **identity(one)}

    return write_lines(path, rows())


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON lines in UTF-8, and return their number."""
    number = 0
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            number += 1
    return number
