"""Tables of episodes: CSV with one row per episode, and Parquet with the conversation as well."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from ...envs.extras import optional_module
from ..decisions import EpisodeDecisions, Labels, read_labels
from ..episode_filter import ALL_EPISODES
from .conversation import clean, conversation, plain
from .source import ExportedEpisode, Source, head

ROWS = 1000
"""Episodes of a row group of a Parquet file, which are in memory at the same time."""


def write_csv(source: Source, path: Path) -> int:
    """Write the heads of all episodes as CSV in UTF-8, and return their number.

    Details of an environment or agent, such as token counts, are columns named `details.<name>`.
    """
    results = source.results(ALL_EPISODES)
    names = list(dict.fromkeys(name for result in results for name in result.details))
    with path.open("w", encoding="utf-8", newline="") as file:
        columns = [*head(results[0]), *(f"details.{clean(name)}" for name in names)]
        writer = csv.writer(file)
        writer.writerow(columns)
        for result in results:
            writer.writerow([*head(result).values(), *(_cell(result.details.get(name)) for name in names)])
    return len(results)


def _cell(value: Any) -> Any:
    return clean(json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value)


def write_parquet(source: Source, path: Path) -> int:
    """Write all episodes as Parquet, and return their number.

    `messages` is a conversation in the form of TRL's conversational data sets, a list of `role` and `content`.
    `actions`, `rewards`, `valid` and `optimal` have one item per executed action; `optimal` is null in a run whose
    decisions are not labelled. `details` is a JSON object.

    Raises:
        ConfigurationError: The extra `parquet` is not installed.
    """
    pyarrow = optional_module("pyarrow", "parquet", "--to parquet")
    parquet = optional_module("pyarrow.parquet", "parquet", "--to parquet")
    schema = _schema(pyarrow)
    results = source.results(ALL_EPISODES)
    labels = read_labels(source.folder, results)
    written = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        for one in source.episodes(results):
            rows.append(_row(one, labels.get(one.result.key)))
            if len(rows) == ROWS:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                written += len(rows)
                rows.clear()
        if rows:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            written += len(rows)
    return written


def _row(one: ExportedEpisode, labels: Labels | None) -> dict[str, Any]:
    moves = [move for turn in one.episode.turns for move in turn.moves]
    return {
        **head(one.result),
        "env": one.episode.env,
        "messages": plain(conversation(one.episode, one.instructions)),
        "actions": [clean(move.action) for move in moves],
        "rewards": [float(move.reward) for move in moves],
        "valid": [move.valid for move in moves],
        "optimal": [one.optimal for one in labels.decisions] if isinstance(labels, EpisodeDecisions) else None,
        "final_observation": clean(one.episode.final_observation),
        "details": clean(json.dumps(one.result.details, ensure_ascii=False)),
    }


def _schema(pyarrow: Any) -> Any:
    text, count, number, flag = pyarrow.string(), pyarrow.int64(), pyarrow.float64(), pyarrow.bool_()
    kinds = {
        **dict.fromkeys(("agent", "entry", "task"), text),
        **dict.fromkeys(("repeat", "seed"), count),
        "success": flag,
        "reward": number,
        **dict.fromkeys(("steps", "turns", "invalid"), count),
        "truncated": flag,
        "seconds": number,
        **dict.fromkeys(("error", "env"), text),
        "messages": pyarrow.list_(pyarrow.struct([("role", text), ("content", text)])),
        "actions": pyarrow.list_(text),
        "rewards": pyarrow.list_(number),
        "valid": pyarrow.list_(flag),
        "optimal": pyarrow.list_(flag),
        "final_observation": text,
        "details": text,
    }
    return pyarrow.schema(list(kinds.items()))
