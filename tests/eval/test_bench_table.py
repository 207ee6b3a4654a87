"""Benchmarks from the command line: missed targets, missing extras, the exit status."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from arboretum import cli
from arboretum.envs.errors import ConfigurationError
from arboretum.eval import bench
from arboretum.eval.bench.row import Row, not_measured
from arboretum.eval.table import bench_table


def table_text(rows: list[Row], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(bench_table(rows, width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def run_bench(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run `arboretum bench` on a module that yields `rows`, and return its exit status and output."""
    module = ModuleType("bench_of_a_test")

    def measure(peers: bool) -> Iterator[Row]:
        yield from rows

    module.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "TRAINING", {"mine": (module.__name__,)})
    output = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(cli, "console", output)
    status = cli.bench("mine")
    return status, output.file.getvalue()  # type: ignore[attr-defined]


def test_missed_target_is_marked_in_words_and_in_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row("fast", 3, "x", 2), Row("slow", 1, "x", 2), Row("large", 9, "MB", 5, False), Row("free", 1, "x")]
    status, text = run_bench(rows, monkeypatch)
    assert status == 1 and "2 of 3 targets missed." in text
    marked = {line.split()[0] for line in text.splitlines() if line.rstrip().endswith("missed")}
    assert marked == {"slow", "large"}


def test_reached_targets_exit_with_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    status, text = run_bench([Row("fast", 3, "x", 2), Row("free", 1, "x")], monkeypatch)
    assert status == 0 and "missed" not in text


def test_measurement_without_its_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not_measured("a row", "web", "json") is None
    row = not_measured("the web server", "web", "surely_not_installed")
    assert row is not None and row.reached is None
    status, text = run_bench([Row("fast", 3, "x", 2), row], monkeypatch)
    assert status == 0
    assert 'Not measured: the web server needs the extra "web" (surely_not_installed is missing): ' in text
    assert "nan" not in text


@pytest.mark.parametrize("what", ["rollout", "train", "openai", "phases"])
def test_benchmark_without_its_extra_stops_before_measuring(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"torch", "aiohttp"}
    find = importlib.util.find_spec
    monkeypatch.setattr(bench, "find_spec", lambda name: None if name in absent else find(name))
    extra = "openai" if what == "openai" else "lm"
    with pytest.raises(ConfigurationError, match=f'arboretum bench {what} needs the extra "{extra}"'):
        next(bench.measurements(what, further=cli.TRAINING))


def test_every_part_of_the_training_benchmark_names_its_extra() -> None:
    parts: list[Any] = [module.rpartition(".")[2] for modules in cli.TRAINING.values() for module in modules]
    assert set(parts) <= set(bench.REQUIRED)
    assert set(bench.REQUIRED) <= {*parts, *(m.rpartition(".")[2] for ms in bench.BENCHES.values() for m in ms)}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_table_fits_its_width(width: int) -> None:
    rows = [Row("a measurement with a name that is rather long, as some are", 1234.5, "tokens/s", 2000)]
    assert max(map(len, table_text(rows, width).splitlines())) <= width
