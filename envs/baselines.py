"""Measured baselines of the environments, as their pages show them.

`eval/baselines.py` measures them and writes the file from which the pages are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .docstrings import markdown_table
from .files import write_atomic

BASELINES_FILE = "baselines.json"
"""Name of the file beside the pages."""

COMMAND = "arboretum envs --write docs/environments --measure runs/baselines"
"""Command that measures the baselines of the repository's pages."""

HEADING = "## Baselines"


class Baseline(NamedTuple):
    """Result of one agent on the held-out tasks of one environment.

    Attributes:
        env: Gymnasium id.
        settings: Arguments of the environment, in addition to the split.
        split: Task split.
        agent: Name of the agent, or of the model that plays.
        dialogue: Dialogue of the model; None without one.
        tasks: Number of tasks, each played once.
        success: Success rate with the bounds of its 95 % interval.
        mean_return: Mean undiscounted return with the bounds of its 95 % interval.
        steps: Mean number of actions per episode.
    """

    env: str
    settings: Mapping[str, Any]
    split: str
    agent: str
    dialogue: str | None
    tasks: int
    success: tuple[float, float, float]
    mean_return: tuple[float, float, float]
    steps: float


def read_baselines(folder: Path) -> list[Baseline]:
    """Return the baselines in a folder of pages; none if it has no file of them."""
    path = folder / BASELINES_FILE
    if not path.exists():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["baselines"]
    return [Baseline(**{name: _as_tuple(value) for name, value in row.items()}) for row in rows]


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def write_baselines(folder: Path, baselines: Sequence[Baseline], versions: Mapping[str, str]) -> None:
    """Write the file of baselines, one line for each.

    Args:
        folder: Folder of the pages, which is created if needed.
        baselines: Baselines.
        versions: Versions of Arboretum, Python and libraries, by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(f"  {json.dumps(row._asdict())}" for row in baselines)
    head = f'"command": {json.dumps(COMMAND)},\n"versions": {json.dumps(versions)}'
    write_atomic(folder / BASELINES_FILE, f'{{{head},\n"baselines": [\n{rows}\n]}}\n')


def baselines_section(ids: Iterable[str], baselines: Sequence[Baseline]) -> str:
    """Return the section of a page with the baselines of its environments; empty if there are none."""
    rows = [row for id in ids for row in baselines if row.env == id]
    if not rows:
        return ""
    common = [text for text in _settings(rows[0]) if all(text in _settings(row) for row in rows)]
    table = markdown_table(
        ("id", "agent", "tasks", "success in %", "return", "steps"),
        [
            (
                ", ".join([f"`{row.env}`", *(text for text in _settings(row) if text not in common)]),
                row.agent if row.dialogue is None else f"`{row.agent}`, dialogue `{row.dialogue}`",
                str(row.tasks),
                _interval((100 * value for value in row.success), 1),
                _interval(row.mean_return, 2),
                f"{row.steps:.1f}",
            )
            for row in rows
        ],
    )
    details = ", ".join([f"split `{rows[0].split}`", *common])
    model = (
        " Models called `sapling` are [shipped](../studies.md#the-saplings); they reply greedily, and a full"
        " context window ends their episodes."
    )
    return (
        f"{HEADING}\nGenerated data and the defaults of the environment, {details}: means over the first tasks of"
        " the split, each played once, with 95 % intervals in brackets. Steps are the mean number of actions."
        f"{model if any(row.dialogue for row in rows) else ''}\n\n{table}\n"
        f"Measured by `{COMMAND}`; [{BASELINES_FILE}]({BASELINES_FILE}) has the numbers.\n"
    )


def _settings(row: Baseline) -> list[str]:
    return [f"`{name}={json.dumps(value)}`" for name, value in row.settings.items()]


def _interval(values: Iterable[float], digits: int) -> str:
    mean, low, high = (f"{round(value, digits) + 0.0:.{digits}f}" for value in values)
    return f"{mean} [{low}, {high}]"
