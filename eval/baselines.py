"""Measurement of the baselines on the environments' pages: random, the expert, and the shipped saplings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from ..agents.engines.shipped_models import (
    ALFWORLD_SAPLING,
    BLOCKSWORLD_SAPLING,
    SAPLING,
    SEARCH_SAPLING,
    THOUGHTS_SAPLING,
    read_taught_dialogue,
)
from ..envs.baselines import Baseline, write_baselines
from ..envs.errors import ConfigurationError
from .api import Evaluation, evaluate
from .statistics import Interval
from .suite import load_suite
from .summary import EXPERT, RANDOM

SUITE = "baselines"
"""Suite with every environment."""

PLAYED = {
    SAPLING: (
        "TextSokoban-v0",
        "TextSokobanNewVocab-v0",
        "TextLargeSokoban-v0",
        "TextSokobanEasy-v0",
        "TextSokobanMedium-v0",
        "TextSokobanHard-v0",
        "TextFrozenLake-v0",
    ),
    BLOCKSWORLD_SAPLING: ("TextBlocksworld-v0",),
    ALFWORLD_SAPLING: ("TextALFWorld-v0",),
    SEARCH_SAPLING: ("TextSearchQA-v0",),
    THOUGHTS_SAPLING: ("TextSokoban-v0", "TextFrozenLake-v0"),
}
"""Environments of the family of each shipped model."""

DIGITS = 6
"""Decimals that the file keeps; more would depend on the order of sums."""


def measure_baselines(runs: Path, folder: Path | None, console: Console) -> None:
    """Measure all baselines, and write their file.

    Args:
        runs: Folder of the evaluations' runs, which a second call resumes.
        folder: Folder of the pages.
        console: Terminal for a line after each run.

    Raises:
        ConfigurationError: There is no folder of the pages.
    """
    if folder is None:
        raise ConfigurationError("the measured baselines belong to the pages; add --write docs/environments.")
    baselines: list[Baseline] = []
    versions: dict[str, str] = {}
    for name in (None, *PLAYED):
        evaluation = measure(name, runs / (name or "references"))
        baselines += as_baselines(evaluation, name)
        versions = evaluation.summary.versions
        console.print(f"{name or 'random and expert'}: {evaluation.summary.episodes} episodes", markup=False)
    order = [(entry.env, entry.kwargs) for entry in load_suite(SUITE).entries]
    baselines.sort(key=lambda row: order.index((row.env, row.settings)))
    write_baselines(folder, baselines, versions)


def measure(model: str | None, out: Path | None = None, *, only: str | None = None) -> Evaluation:
    """Evaluate a shipped model on the environments of its family, or without a model random and the expert on all.

    Args:
        model: Name of the model.
        out: Folder of the run; None stores nothing.
        only: Environment to evaluate on; None for all of them.
    """
    suite = load_suite(SUITE)
    entries = [entry for entry in suite.entries if model is None or entry.env in PLAYED[model]]
    suite = dataclasses.replace(suite, entries=tuple(entry for entry in entries if only in (None, entry.env)))
    if model is None:
        return evaluate(suite, [RANDOM, EXPERT], out=out)
    return evaluate(
        suite, "direct", model=model, engine_args={"device": "cpu"}, dialogue=read_taught_dialogue(model), out=out
    )


def as_baselines(evaluation: Evaluation, model: str | None) -> Iterator[Baseline]:
    """Yield the results of `measure` as baselines.

    Args:
        evaluation: Results.
        model: Name of the model.
    """
    entries = {entry.name: entry for entry in load_suite(SUITE).entries}
    for line in evaluation.summary.lines:
        entry = entries[line.entry.rpartition(": ")[2]]  # Generated data is named before the entry.
        assert entry.split is not None
        yield Baseline(
            entry.env,
            dict(entry.kwargs),
            entry.split,
            model or line.agent,
            None if model is None else read_taught_dialogue(model),
            line.episodes,
            _rounded(line.success),
            _rounded(line.mean_return),
            round(line.steps, DIGITS),
        )


def _rounded(interval: Interval) -> tuple[float, float, float]:
    mean, low, high = (round(value, DIGITS) for value in (interval.value, interval.low, interval.high))
    return mean, low, high
