"""Lengths of played episodes: what a simulated sampler generates, and how long environments take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ....agents.episode import Episode
from ....assets import asset
from ....envs.errors import ConfigurationError, DataError
from ....envs.files import read_jsonl


class TurnLength(NamedTuple):
    """Size of one turn.

    Attributes:
        prompt: Tokens that the turn adds to the conversation before its reply.
        reply: Sampled tokens.
        env_seconds: Seconds that the environment takes for the turn's actions.
    """

    prompt: int
    reply: int
    env_seconds: float


Lengths = tuple[TurnLength, ...]
"""Turns of one episode."""


def turn_lengths(turns: Iterable[Mapping[str, Any]]) -> Lengths | None:
    """Return the lengths of the stored turns of an episode; None if they have no tokens."""
    lengths = []
    for turn in turns:
        mask = turn.get("loss_mask")
        if mask is None:
            return None
        reply = sum(mask)
        lengths.append(TurnLength(len(mask) - reply, reply, float(turn.get("env_seconds", 0.0))))
    return tuple(lengths) or None


def episode_lengths(episodes: Iterable[Episode]) -> list[Lengths]:
    """Return the lengths of the episodes that have tokens."""
    found = (turn_lengths(turn.to_dict() for turn in episode.turns) for episode in episodes)
    return [lengths for lengths in found if lengths is not None]


def read_lengths(run: Path) -> list[Lengths]:
    """Return the lengths of a run's episodes, without those of agents without tokens and those that broke off.

    Args:
        run: Folder of a run, or a file that `write_lengths` wrote.

    Raises:
        ConfigurationError: No episode of the run has tokens.
        DataError: The file is not one of lengths, or has none.
    """
    if run.is_file():
        try:
            stored = msgspec.json.decode(run.read_bytes(), type=list[Lengths])
        except msgspec.MsgspecError as error:
            raise DataError(run, f"no file of episode lengths: {error}") from None
        if not stored or not all(stored):
            raise DataError(run, "has no episode, or one without a turn.")
        return stored
    path = run / "episodes.jsonl"
    if not path.is_file():
        raise ConfigurationError(f"{run}: has no episodes.jsonl; give the folder of a run of `arboretum eval`.")
    complete = (record for record in read_jsonl(path) if record.get("error") is None)
    found = (turn_lengths(record.get("turns") or ()) for record in complete)
    lengths = [one for one in found if one is not None]
    if not lengths:
        raise ConfigurationError(
            f"{path}: no complete episode has tokens; give a run of a model with the engine transformers, vllm or"
            " vllm-server, which record them."
        )
    return lengths


def write_lengths(lengths: Sequence[Lengths], path: Path) -> None:
    """Write lengths as JSON, one episode a line."""
    lines = (msgspec.json.encode([(p, r, round(s, 6)) for p, r, s in one]).decode() for one in lengths)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def shipped_lengths() -> list[Lengths]:
    """Return the lengths of 64 episodes in generated homes, sampled from the model `sapling-alfworld`."""
    return read_lengths(asset("scaling/homes.json"))


def scale_replies(lengths: Sequence[Lengths], factor: float) -> list[Lengths]:
    """Return lengths with longer replies, as those of a model that reasons before it acts.

    Args:
        lengths: Lengths of episodes.
        factor: Factor of the replies; every reply keeps at least one token.

    Raises:
        ConfigurationError: The factor is not positive.
    """
    if not 0 < factor < math.inf:
        raise ConfigurationError(f"--reply-scale must be above 0, not {factor:g}")
    return [
        tuple(turn._replace(reply=max(1, round(factor * turn.reply))) for turn in episode) for episode in lengths
    ]


def total_tokens(episode: Lengths) -> int:
    """Return the tokens of an episode, prompts included."""
    return sum(turn.prompt + turn.reply for turn in episode)
