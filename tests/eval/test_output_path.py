"""`--out` of pages: endings, folders and files of runs are refused before anything is computed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from arboretum import cli
from arboretum.cli import main
from arboretum.envs.files import write_atomic
from arboretum.envs.terminal import Terminal
from support.permissions import readable_by_all

RUN_FILES = ("run.json", ".run.json", "summary.json", "episodes.jsonl", "texts.jsonl", "decisions.jsonl")

UNPRIVILEGED = """
import contextlib, io, os, sys
from arboretum.cli import main
read_only, other, *arguments = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main([one.replace(read_only, other) for one in arguments])  # Imports everything: another user may not read it.
if os.geteuid() == 0:
    os.setuid(65534)
main(arguments)
"""


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of two runs, which tests must not change."""
    folder = tmp_path_factory.mktemp("played")
    for agent in ("random", "expert"):
        options = ("--agent", agent, "--no-references", "--workers", 1, "--limit", 4)
        assert call("eval", "TextFrozenLake-v0", *options, "--out", folder / agent) == 0
    return folder


@pytest.fixture
def runs(played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    shutil.copytree(played, tmp_path / "runs")
    monkeypatch.setattr(cli, "console", Terminal(highlight=False, width=300))
    return [tmp_path / "runs" / "random", tmp_path / "runs" / "expert"]


def contents(runs: list[Path]) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for run in runs for path in run.iterdir() if "index" not in path.name}


NAMES = (*RUN_FILES, "index.sqlite", "cool", "cool.json.gz", "run.html", "summary.html")


@pytest.mark.parametrize("name", NAMES)
def test_comparison_over_a_file_of_a_run_is_refused(
    name: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(runs)
    assert call("compare", *runs, "--out", runs[0] / name) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and str(runs[0] / name.split(".html")[0]) in shown.err
    assert contents(runs) == before


@pytest.mark.parametrize("name", NAMES[:-2])
def test_report_over_a_file_of_a_run_is_refused(
    name: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(runs)
    assert call("report", runs[0], "--out", runs[0] / name) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and f"{runs[0] / name}: has another ending than a page" in shown.err
    assert contents(runs) == before


def test_data_of_a_comparison_replaces_its_own_file_and_no_other(runs: list[Path], tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text('{"layers": 2}')
    assert call("compare", *runs, "--out", tmp_path / "config.html") == 2
    assert model.read_text() == '{"layers": 2}' and not (tmp_path / "config.html").exists()
    (runs[0] / "summary.json").unlink()
    assert call("compare", *runs, "--out", runs[0] / "summary.html") == 2
    for name in ("comparison.html", "comparison.html", "comparison.json"):
        assert call("compare", *runs, "--out", runs[0] / name) == 0
    assert json.loads((runs[0] / "comparison.json").read_text())["suite"] == "TextFrozenLake-v0"


@pytest.mark.parametrize("verb", ["report", "compare"])
def test_folders_in_the_place_of_a_page_are_refused_first(
    verb: str, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cool").mkdir()
    assert call(verb, *runs, "--out", tmp_path / "cool") == 2
    assert "cool: is a folder; name a file that ends in .html" in capsys.readouterr().err
    assert call(verb, *runs, "--out", "/nonexistent/x.html") == 2
    shown = capsys.readouterr()
    assert shown.err == "arboretum: /nonexistent: is no folder; create it, or choose another --out.\n"
    assert shown.out == "" and sorted(path.name for path in tmp_path.iterdir()) == ["cool", "runs"]


def test_failed_write_names_the_wanted_file(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        write_atomic(tmp_path / "page.html", "x")
    assert error.value.filename == str(tmp_path / "page.html") and list(tmp_path.glob("*.part")) == []


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX systems")
def test_read_only_runs_print_their_tables_and_name_the_file_that_cannot_be_written(runs: list[Path]) -> None:
    run = runs[0]

    def unprivileged(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", UNPRIVILEGED, *map(str, (run, runs[1], *arguments))]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"})

    with readable_by_all(run):
        run.parent.chmod(0o777)
        run.chmod(0o555)
        for file in run.iterdir():
            file.chmod(0o444)
        report, decisions = unprivileged("report", run), unprivileged("decisions", run)
        elsewhere = unprivileged("report", run, "--out", run.with_suffix(".html"))
        export = unprivileged("export", run, "--to", "csv")
        (run / "decisions.jsonl").unlink()
        labels = unprivileged("decisions", run)
    reason = f"{run / 'report.html'}: could not be written (Permission denied)"
    assert "success" in report.stdout and "why not solved" in report.stdout
    assert report.stderr == f"arboretum: {reason}; choose another --out.\n" and report.returncode == 2
    assert "why not solved" in decisions.stdout and f"{reason}." in decisions.stdout
    assert decisions.returncode == 1 and decisions.stderr == ""
    assert elsewhere.returncode == 0 and f"Report: {run.with_suffix('.html')}" in elsewhere.stdout
    assert "summary.json: could not be written (Permission denied)." in elsewhere.stdout
    reason = f"{run / 'episodes.csv'}: could not be written (Permission denied); choose another --out."
    assert export.stderr == f"arboretum: {reason}\n" and export.returncode == 2
    assert "decisions.jsonl: could not be written (Permission denied)." in labels.stdout
    assert labels.returncode == 1 and ".part" not in labels.stdout + labels.stderr


def test_results_kept_without_their_episodes_are_not_replaced_by_empty_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    played = ("eval", "TextBandit-v0", "--agent", "random", "--no-references", "--limit", "2", "--out", run)
    assert call(*played) == 0
    for file in (*run.glob("episodes.jsonl*"), *run.glob("index.sqlite*")):
        file.unlink()
    kept = {file.name: file.read_bytes() for file in run.iterdir()}
    other = ("eval", "TextFrozenLake-v0", "--agent", "random", "--limit", "1", "--out", run)
    for command in (played, other, ("report", run), ("decisions", run)):
        capsys.readouterr()
        assert call(*command) == 2
        assert "holds results whose episodes were not kept" in capsys.readouterr().err
    assert {name: (run / name).read_bytes() for name in kept} == kept


@pytest.mark.parametrize("name", ["summary.json", "report.html", "decisions.jsonl"])
def test_file_of_somebody_else_is_not_replaced_by_a_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("mine")
    assert call("eval", "TextBandit-v0", "--agent", "random", "--limit", "1", "--out", tmp_path) == 2
    assert f"{tmp_path}: holds {name}, which belongs to no run; choose another --out." in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "mine" and not (tmp_path / "episodes.jsonl").exists()
