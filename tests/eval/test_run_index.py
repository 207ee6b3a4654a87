"""The index of a run: equal to the lines of `episodes.jsonl` in every state of both files, and quick to extend."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from arboretum.agents.episode import Episode
from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.eval import planning, run_index
from arboretum.eval.agents import NamedAgent
from arboretum.eval.episode_filter import SORT_KEYS, EpisodeFilter
from arboretum.eval.evaluate import evaluate
from arboretum.eval.index_connection import open_stored, transaction
from arboretum.eval.manifest import SCHEMA, read_manifest
from arboretum.eval.planning import Scope
from arboretum.eval.results import report
from arboretum.eval.run_index import INDEX_FILE, open_index
from arboretum.eval.store import EpisodeKey, Result, Store, encode_episode, read_episode, read_results
from arboretum.eval.summary import load_run
from support.permissions import readable_by_all

SUITE = """
entries:
  - {name: A, env: TextBandit-v0, split: train, repeats: 2}
  - {env: TextFrozenLake-v0, tasks: 9}
"""
EPISODES = 2 * (24 * 2 + 9)
STORED = Path(__file__).parent / "stored_runs"


def play(suite: Path, out: Path, **kwargs: Any) -> int:
    with open(os.devnull, "w") as sink:
        agents = [NamedAgent("random"), NamedAgent("expert")]
        return evaluate(str(suite), agents, out=out, references=False, console=Console(file=sink), **kwargs)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "s.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture(scope="module")
def finished(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run, which tests must not change."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert play(suite, out) == 0
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Offsets of the lines that an index parses."""
    offsets: list[int] = []
    original = run_index.parse_head

    def spy(line: bytes, offset: int) -> Result | str:
        offsets.append(offset)
        return original(line, offset)

    monkeypatch.setattr(run_index, "parse_head", spy)
    yield offsets


def indexed(folder: Path) -> dict[EpisodeKey, Result]:
    with open_index(folder) as index:
        return index.results()


def test_index_has_the_results_of_the_lines_and_is_not_made_again(run: Path, parsed: list[int]) -> None:
    assert (run / INDEX_FILE).is_file()
    assert indexed(run) == read_results(run).latest
    assert list(indexed(run)) == list(read_results(run).latest)
    assert len(indexed(run)) == EPISODES and parsed == []


@pytest.mark.parametrize("fault", ["deleted", "no database", "truncated", "pages overwritten", "version", "empty"])
def test_lost_damaged_or_old_index_is_made_anew(fault: str, run: Path, parsed: list[int]) -> None:
    path = run / INDEX_FILE
    content = path.read_bytes()
    if fault == "deleted":
        path.unlink()
    elif fault == "version":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 999")
        connection.close()
    else:
        damaged = {
            "no database": b"not a database" * 1000,
            "truncated": content[: len(content) // 3],
            "pages overwritten": content[:4096] + b"\xa5" * (len(content) - 4096),
            "empty": b"",
        }
        path.write_bytes(damaged[fault])
    assert indexed(run) == read_results(run).latest
    assert len(parsed) == EPISODES
    parsed.clear()
    assert indexed(run) == read_results(run).latest and parsed == []
    assert not report([run]).problems


@pytest.mark.parametrize("mark", ["PRAGMA application_id = 7", "CREATE TABLE notes (text TEXT)"])
def test_database_of_another_program_is_refused_and_kept(mark: str, run: Path, suite: Path, capfd: Any) -> None:
    path = run / INDEX_FILE
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (text TEXT)")
        connection.execute("INSERT INTO mine VALUES ('not to be lost')")
        connection.execute(mark)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"index\.sqlite: is a database of another program .* move it away"):
        play(suite, run)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(run)])
    assert ended.value.code and "Traceback" not in capfd.readouterr().err
    assert path.read_bytes() == before


def test_index_of_another_run_of_the_suite_is_made_anew(suite: Path, run: Path, tmp_path: Path) -> None:
    assert play(suite, tmp_path / "other") == 0
    shutil.copy2(tmp_path / "other" / INDEX_FILE, run / INDEX_FILE)
    assert indexed(run) == read_results(run).latest


def test_only_appended_lines_are_parsed(run: Path, parsed: list[int]) -> None:
    lines = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    first = json.loads(lines[0])
    key = EpisodeKey(first["agent"], first["entry"], first["task"], first["repeat"])
    again = Episode("TextBandit-v0", key.task, first["seed"], key.agent, error="failed later")
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(encode_episode(key, again).line)
        file.write(b'{"agent": "incomp')
    assert indexed(run)[key].error == "failed later"
    assert parsed == [sum(map(len, lines))]
    with open_index(run) as index:
        assert index.has_damage() and [p.split(": ")[1] for p in index.problems()] == [
            "is incomplete; it is left out."
        ]
    assert parsed[1:] == []


@pytest.mark.parametrize("change", ["same size", "shorter", "longer"])
def test_changed_file_is_indexed_again(change: str, run: Path) -> None:
    path = run / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "same size":
        lines[3] = (
            lines[3].replace(b'"success":true', b'"success":null').replace(b'"success":false', b'"success":12345')
        )
    elif change == "shorter":
        del lines[:5]
    else:
        lines[10:10] = [b"damage in the middle\n"]
    path.write_bytes(b"".join(lines))
    stored = read_results(run)
    with open_index(run) as index:
        assert index.results() == stored.latest
        assert index.problems() == stored.problems
        assert index.has_damage() == (change != "shorter")


def test_lines_of_another_run_are_problems_and_no_damage(run: Path) -> None:
    key = EpisodeKey("nobody", "A", "Teacher/Trader", 0)
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(encode_episode(key, Episode("E", key.task, 0, key.agent)).line)
    with open_index(run) as index:
        (problem,) = index.problems()
        assert "belongs to no agent and entry of the run ('nobody', 'A')" in problem
        assert not index.has_damage() and index.count() == EPISODES


def test_texts_that_are_not_unicode_are_kept(tmp_path: Path) -> None:
    manifest = {"suite": {}, "agents": []}
    store = Store(tmp_path / "run", manifest)
    key = EpisodeKey("random \ud800", "A", "t\udfff/√", 0)
    episode = Episode("E", key.task, 5, key.agent, error="bad \udc00", details={"kind": "\ud801"})
    store.append(encode_episode(key, episode))
    store.close()
    (result,) = indexed(tmp_path / "run").values()
    assert result.key == key and result.error == "bad \udc00" and result.details == {"kind": "\ud801"}
    assert read_episode(tmp_path / "run", result) == episode


# ---------------------------------------------------------------------- pages


@pytest.mark.parametrize("sort", SORT_KEYS)
@pytest.mark.parametrize("descending", [False, True])
def test_pages_together_are_all_results_in_order(sort: str, descending: bool, finished: Path) -> None:
    with open_index(finished) as index:
        pages = [
            index.page(sort=sort, descending=descending, offset=at, limit=10) for at in range(0, EPISODES, 10)
        ]
        everything = [result for page in pages for result in page]
        assert everything == index.page(sort=sort, descending=descending, limit=None)
    assert {result.key for result in everything} == set(read_results(finished).latest)
    values = {"return": "total_reward"}
    if sort in ("steps", "turns", "return", "seconds", "invalid", "success"):
        column = [getattr(result, values.get(sort, sort)) for result in everything]
        assert column == sorted(column, reverse=descending)
    if sort == "task" and not descending:
        lakes = [result.key.task for result in everything if result.key.entry == "TextFrozenLake-v0"]
        numbers = [int(task.rpartition("/")[2]) for task in lakes]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("which", "condition"),
    [
        (EpisodeFilter(), lambda r: True),
        (EpisodeFilter(agents=("expert",)), lambda r: r.key.agent == "expert"),
        (EpisodeFilter(entries=("A",), success=True), lambda r: r.key.entry == "A" and r.success),
        (EpisodeFilter(success=False), lambda r: not r.success),
        (EpisodeFilter(error=True), lambda r: False),
        (EpisodeFilter(task="TEACH"), lambda r: "teach" in r.key.task.lower()),
        (EpisodeFilter(task="%"), lambda r: "%" in r.key.task),
        (EpisodeFilter(min_steps=2, max_steps=6), lambda r: 2 <= r.steps <= 6),
        (EpisodeFilter(max_steps=np.int64(6)), lambda r: r.steps <= 6),
    ],
)
def test_filter_selects_as_its_condition_does(which: EpisodeFilter, condition: Any, finished: Path) -> None:
    expected = [result for result in read_results(finished).latest.values() if condition(result)]
    with open_index(finished) as index:
        assert index.page(which, limit=None) == expected
        assert index.count(which) == len(expected)
        cells = index.cells(which)
    assert sum(cell.episodes for cell in cells) == len(expected)
    assert sum(cell.solved for cell in cells) == sum(result.success for result in expected)


@pytest.mark.parametrize("arguments", [{"agents": "random"}, {"entries": "A"}, {"max_steps": "a"}])
def test_filter_of_wrong_types_is_refused(arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(arguments))):
        EpisodeFilter(**arguments)


def test_result_is_found_by_its_place_in_the_file_and_by_its_task(run: Path) -> None:
    stored = read_results(run).latest
    retried = next(iter(stored.values()))
    again = read_episode(run, retried)
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(encode_episode(retried.key, again).line)
    stored = read_results(run).latest
    with open_index(run) as index:
        assert [index.at(result.offset) for result in stored.values()] == list(stored.values())
        assert [index.at(place) for place in (retried.offset, 1, 10**14)] == [None] * 3
        for key in stored:
            same = [one for one in stored.values() if (one.key.entry, one.key.task) == (key.entry, key.task)]
            expected = sorted(same, key=lambda one: (one.key.agent, one.key.repeat))
            assert index.of_task(key.entry, key.task) == expected
        assert index.of_task("A", "no such task \ud800") == []


def test_unknown_sort_key_is_named(finished: Path) -> None:
    with open_index(finished) as index, pytest.raises(ConfigurationError, match="length"):
        index.page(sort="length")


# ---------------------------------------------------------------------- several processes, other file systems

READER = """
import sys, time
from pathlib import Path
from arboretum.eval.run_index import open_index
folder, expected = Path(sys.argv[1]), int(sys.argv[2])
before, deadline = 0, time.monotonic() + 100
while before < expected and time.monotonic() < deadline:
    if not (folder / "run.json").exists():
        continue
    with open_index(folder) as index:
        results = index.results()
        assert len(results) >= before and index.count() >= len(results)
        before = len(results)
print(before)
"""


def test_two_processes_read_while_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("entries:\n  - {env: TextBandit-v0, split: train, repeats: 60}\n")
    total = 24 * 60
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(tmp_path / "run"), str(2 * total)], stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    assert play(path, tmp_path / "run") == 0
    assert [int(reader.communicate(timeout=110)[0]) for reader in readers] == [2 * total] * 2
    assert indexed(tmp_path / "run") == read_results(tmp_path / "run").latest


def test_index_that_another_process_extends_meanwhile_is_not_made_anew(
    run: Path, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size was known from before the wait for the other process, and less than what that had indexed."""
    path = run / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-4]))
    with open_index(run) as index:
        path.write_bytes(b"".join(lines[:-2]))
        seen = index._status()
        path.write_bytes(b"".join(lines))
        open_index(run).close()
        parsed.clear()
        statuses = iter([seen])
        monkeypatch.setattr(index, "_status", lambda: next(statuses, type(index)._status(index)))
        index.refresh()
        assert len(index.results()) == EPISODES and parsed == []


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from arboretum.eval.run_index import open_index
if os.geteuid() == 0:
    os.setuid(65534)
with open_index(Path(sys.argv[1])) as index:
    print(index.count(), len(index.results()))
"""


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX systems")
@pytest.mark.parametrize("state", ["current", "stale", "absent"])
def test_folder_that_cannot_be_written_is_read(state: str, run: Path) -> None:
    path = run / "episodes.jsonl"
    if state == "stale":
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-4]))
        indexed(run)
        path.write_bytes(b"".join(lines))
    elif state == "absent":
        (run / INDEX_FILE).unlink()
    before = sorted(file.name for file in run.iterdir())
    with readable_by_all(run):
        run.chmod(0o555)
        for file in run.iterdir():
            file.chmod(0o444)
        command = [sys.executable, "-c", UNPRIVILEGED, str(run)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(EPISODES)] * 2, done.stderr
    assert sorted(file.name for file in run.iterdir()) == before


# ---------------------------------------------------------------------- resuming


def test_resuming_neither_parses_old_lines_nor_searches_tasks_again(
    suite: Path, run: Path, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]))
    indexed(run)
    parsed.clear()
    monkeypatch.setattr("arboretum.eval.suite.distinct_tasks", lambda env, count: pytest.fail("a search"))
    assert play(suite, run) == 0
    assert len(parsed) == 3 and len(indexed(run)) == EPISODES
    with pytest.raises((pytest.fail.Exception, ConfigurationError), match="a search"):
        planning.plan_suite(load_run(run).suite, 5)


def test_index_of_another_scope_does_not_decide_the_tasks(suite: Path, run: Path) -> None:
    with pytest.raises(ConfigurationError, match="another suite"):
        play(suite, run, scope=Scope(limit=3))


# ---------------------------------------------------------------------- versions of a run


def test_run_of_the_first_schema_is_read_and_reported(tmp_path: Path) -> None:
    old = shutil.copytree(STORED / "schema_1", tmp_path / "run")
    assert "schema" not in json.loads((old / "run.json").read_text())
    assert read_manifest(old)["schema"] == SCHEMA
    summary = report([old])
    before = json.loads((STORED / "schema_1" / "summary.json").read_text())
    assert summary.complete and summary.problems == []
    assert [line["success"]["value"] for line in before["lines"]] == [line.success.value for line in summary.lines]
    results = load_run(old).results
    first = next(result for key, result in results.items() if key.agent == "direct:sapling")
    assert read_episode(old, first).exchanges[0].messages[0].role == "system"


def test_run_of_the_first_schema_is_resumed_and_gets_todays(tmp_path: Path) -> None:
    old = shutil.copytree(STORED / "schema_1", tmp_path / "run")
    manifest = json.loads((old / "run.json").read_text())
    agents = ["expert"]
    for name in ("run.json", ".run.json"):
        manifest.update(agents=agents, identities={"expert": {}}, budgets={"expert": {}})
        (old / name).write_text(json.dumps(manifest))
    lines = (old / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    own = [line for line in lines if b'"agent":"expert"' in line]
    (old / "episodes.jsonl").write_bytes(own[0])
    with open(os.devnull, "w") as sink:
        scope = Scope(limit=2)
        console = Console(file=sink)
        agent = [NamedAgent("expert")]
        status = evaluate("TextFrozenLake-v0", agent, out=old, references=False, scope=scope, console=console)
    assert status == 0
    assert (old / "episodes.jsonl").read_bytes().splitlines(keepends=True)[0] == own[0]
    assert len(load_run(old).results) == 2
    assert json.loads((old / "run.json").read_text())["schema"] == SCHEMA


@pytest.mark.parametrize(("schema", "message"), [(SCHEMA + 1, "newer version of Arboretum"), (0, "begin with 1")])
def test_other_schemas_are_refused(schema: int, message: str, run: Path) -> None:
    for name in ("run.json", ".run.json"):
        manifest = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps({**manifest, "schema": schema}))
    with pytest.raises(DataError, match=message):
        load_run(run)


def test_first_page_of_a_current_index_does_not_read_the_episodes(run: Path) -> None:
    start = time.perf_counter()
    with open_index(run) as index:
        assert len(index.page(limit=50)) == 50
    assert time.perf_counter() - start < 1.0


def test_index_goes_on_after_a_reader_delayed_its_extension_for_too_long(tmp_path: Path) -> None:
    connection = open_stored(tmp_path / INDEX_FILE)
    connection.execute("PRAGMA busy_timeout = 1")
    add = "INSERT INTO cells VALUES (1, 'a', 'b')"
    with closing(sqlite3.connect(tmp_path / INDEX_FILE, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT * FROM cells").fetchall() == []
        with pytest.raises(sqlite3.OperationalError, match="locked"), transaction(connection):
            connection.execute(add)
        reader.execute("COMMIT")
        with transaction(connection):
            connection.execute(add)
        assert reader.execute("SELECT agent, entry FROM cells").fetchall() == [("a", "b")]
    connection.close()
