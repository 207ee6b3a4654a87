"""Sample episodes of a run's validations for people to read: `samples.jsonl`, one episode a line.

Beside the fields of every stored episode, a turn has the text of the prompt and of the reply, decoded from the
tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...agents.episode import Episode
from ...envs.files import read_jsonl, write_atomic

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE = "samples.jsonl"
_TOKEN_FIELDS = ("token_ids", "logprobs", "loss_mask")


class SampleEpisodes:
    """File of a run's sample episodes.

    Args:
        folder: Folder of the run.
        tokenizer: Tokenizer of the model.
    """

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self._path = folder / FILE
        self._tokenizer = tokenizer

    def truncate(self, update: int) -> None:
        """Drop the samples of validations after an update: they will be made again."""
        kept = [sample for sample in read_samples(self._path.parent) if sample["update"] <= update]
        write_atomic(self._path, "".join(json.dumps(sample) + "\n" for sample in kept))

    def add(self, update: int, episodes: Iterable[Episode]) -> None:
        """Append episodes of the validation after an update."""
        lines = [json.dumps({"update": update, **self._decode(episode)}) + "\n" for episode in episodes]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))

    def _decode(self, episode: Episode) -> dict[str, Any]:
        """Return the episode as plain data, with text in the place of tokens."""
        record = episode.to_dict()
        for turn in record["turns"]:
            ids, mask = turn.get("token_ids"), turn.get("loss_mask")
            if ids is not None and mask is not None:
                turn["prompt"] = self._tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if not m])
                turn["sampled"] = self._tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if m])
            for name in _TOKEN_FIELDS:
                turn.pop(name, None)
        return record


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """Return the samples of a run, oldest first, leaving out damaged lines."""
    return read_jsonl(folder / FILE, damaged="skip")
