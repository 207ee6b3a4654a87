"""Episodes of a run's validations, kept for people to read: `samples.jsonl`, a line for each.

Beside what every episode says of itself, a turn holds what the model was shown and what it said, decoded from the
very tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...agents.episode import Episode
from ...envs.files import write_atomic
from .metrics import json_lines

FILE = "samples.jsonl"
_TOKENS = ("token_ids", "logprobs", "loss_mask")


class Samples:
    """The file of a run's samples.

    Args:
        folder: of the run.
        tokenizer: of the model.
    """

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self._path = folder / FILE
        self._tokenizer = tokenizer

    def keep(self, update: int) -> None:
        """Drop those of validations after an update: they will be made again."""
        lines = [
            json.dumps(sample) + "\n" for sample in read_samples(self._path.parent) if sample["update"] <= update
        ]
        write_atomic(self._path, "".join(lines))

    def add(self, update: int, episodes: Iterable[Episode]) -> None:
        """Write down episodes of the validation after an update."""
        lines = [json.dumps({"update": update, **self._readable(episode)}) + "\n" for episode in episodes]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))

    def _readable(self, episode: Episode) -> dict[str, Any]:
        record = episode.to_dict()
        for turn in record["turns"]:
            ids, mask = turn.get("token_ids"), turn.get("loss_mask")
            if ids is not None and mask is not None:
                turn["shown"] = self._tokenizer.decode([i for i, said in zip(ids, mask, strict=True) if not said])
                turn["said"] = self._tokenizer.decode([i for i, said in zip(ids, mask, strict=True) if said])
            for name in _TOKENS:
                turn.pop(name, None)
        return record


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """The samples of a run, oldest first; a line that was cut off by a kill is left out."""
    return json_lines(folder / FILE)
