"""Values of wrong kinds in `episodes.jsonl`: the line is named and left out, and everything else counts."""

from __future__ import annotations

import json
import shutil
import zlib
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from arboretum.eval.agents import NamedAgent
from arboretum.eval.evaluate import evaluate
from arboretum.eval.planning import Scope
from arboretum.eval.report import _pack_cells
from arboretum.eval.reported_run import ReportedRun
from arboretum.eval.results import report
from arboretum.eval.run_index import open_index
from arboretum.eval.store import read_episode, read_results
from arboretum.eval.summary import load_run, summarize

SCOPE = Scope(limit=6)
AGENTS = [NamedAgent("random"), NamedAgent("expert")]
LINES = 6 * 2 * 2


def play(suite: Path, out: Path) -> tuple[int, str]:
    text = StringIO()
    status = evaluate(
        str(suite), AGENTS, scope=SCOPE, references=False, out=out, console=Console(file=text, width=300)
    )
    return status, text.getvalue()


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "s.yaml"
    path.write_text(
        "entries:\n  - {name: B, env: TextBandit-v0, split: train, repeats: 2, score: points, group_by: kind}\n"
    )
    return path


@pytest.fixture(scope="module")
def finished(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run, which tests must not change."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert play(suite, out)[0] == 0
    return out


def lines_of(out: Path) -> list[bytes]:
    return (out / "episodes.jsonl").read_bytes().splitlines(keepends=True)


def sign(record: dict[str, Any]) -> bytes:
    """Return the line of a record with a valid checksum, as a program with a fault of its own would write it."""
    record = {name: value for name, value in record.items() if name != "crc"}
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    body = text.encode("utf-8", "surrogatepass")[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def copy_with(finished: Path, out: Path, changed: dict[int, bytes]) -> Path:
    shutil.copytree(finished, out)
    lines = lines_of(finished)
    for number, line in changed.items():
        lines[number] = line
    (out / "episodes.jsonl").write_bytes(b"".join(lines))
    return out


HEAD = {
    "agent": ["other", 3, None, ["random"]],
    "entry": ["C", None, {}],
    "task": ["Teacher/Nobody", 1, [1], {"a": 1}],
    "repeat": [7, -1, "0", 0.5, None, 10**30],
    "seed": [1, -1, "1", None, 1e300],
    "success": ["yes", 1, None, [True]],
    "return": ["0.5", None, float("nan"), float("inf"), 1e308, True, {}],
    "steps": [-1, 2.5, "3", None],
    "turn_count": [-1, "3", None],
    "invalid": [-1, "0", None],
    "truncated": [0, "no", None],
    "seconds": ["1", None, float("-inf")],
    "error": [0, False, ["failed"]],
    "details": [None, [], "none", 3],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in HEAD for value in HEAD[name]])
def test_wrong_kind_in_the_head_is_named_by_file_and_line_and_left_out(
    name: str, value: Any, finished: Path, tmp_path: Path
) -> None:
    record = json.loads(lines_of(finished)[-2])
    if record[name] == value and type(record[name]) is type(value):
        pytest.skip("the same value")
    out = copy_with(finished, tmp_path / "run", {LINES - 2: sign({**record, name: value})})
    summary = report([out])
    (problem,) = summary.problems
    assert problem.startswith(f"{out / 'episodes.jsonl'}, line {LINES - 1}: ") and problem.endswith("left out.")
    assert summary.episodes == LINES - 1 and not summary.complete
    assert "line 23" in (out / "report.html").read_text(encoding="utf-8")
    assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["problems"] == [problem]


def test_line_of_a_wrong_kind_is_played_again(finished: Path, suite: Path, tmp_path: Path) -> None:
    record = json.loads(lines_of(finished)[5])
    out = copy_with(finished, tmp_path / "run", {5: sign({**record, "return": "0.5"})})
    status, shown = play(suite, out)
    assert status == 0
    assert "line 6: has no finite number as `return` but '0.5'; it was moved to episodes.damaged.jsonl" in shown
    assert len(lines_of(out)) == LINES


def test_line_that_belongs_to_no_episode_counts_neither_in_the_report_nor_as_finished(
    finished: Path, suite: Path, tmp_path: Path
) -> None:
    record = json.loads(lines_of(finished)[5])
    out = copy_with(finished, tmp_path / "run", {5: sign({**record, "seed": record["seed"] + 1})})
    assert not report([out]).complete
    status, shown = play(suite, out)
    assert status == 0 and "line 6: belongs to no episode of the run" in shown
    assert len(lines_of(out)) == LINES + 1


@pytest.mark.parametrize("score", ["high", float("nan"), [1], 1e300])
def test_score_that_is_no_number_is_left_out(score: Any, finished: Path, tmp_path: Path) -> None:
    record = json.loads(lines_of(finished)[0])
    record["details"]["points"] = score
    out = copy_with(finished, tmp_path / "run", {0: sign(record)})
    assert "line 1: has no finite number as `points`" in report([out]).problems[0]


@pytest.mark.parametrize("value", [-5, "many", 1e300, None, True, [1]])
def test_token_counts_and_costs_that_cannot_be_true_count_nothing(
    value: Any, finished: Path, tmp_path: Path
) -> None:
    changed = {}
    for number, line in enumerate(lines_of(finished)[:2]):
        record = json.loads(line)
        counts = dict.fromkeys(("prompt_tokens", "completion_tokens", "cost"), value if number else 2)
        record["details"] = {**record["details"], **counts}
        changed[number] = sign(record)
    summary = report([copy_with(finished, tmp_path / "run", changed)])
    assert summary.problems == [] and summary.complete
    assert "random: 2 prompt and 2 sampled tokens, $2.00" in summary.notes


@pytest.mark.parametrize(
    "turns", [[3], [{"observation": "x"}], [{"observation": "x", "reply": "y", "moves": [1]}], [{"a": 1}]]
)
def test_episode_with_damaged_turns_counts_but_is_not_shown(
    turns: list[Any], finished: Path, tmp_path: Path
) -> None:
    record = json.loads(lines_of(finished)[0])
    out = copy_with(finished, tmp_path / "run", {0: sign({**record, "turns": turns})})
    summary = report([out])
    (problem,) = summary.problems
    assert "is damaged" in problem and "it is not shown" in problem
    assert summary.complete


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_anywhere_in_a_line_ends_a_summary(data: st.DataObject, finished: Path, tmp_path: Path) -> None:
    number = data.draw(st.integers(0, LINES - 1))
    record = json.loads(lines_of(finished)[number])
    path = data.draw(st.sampled_from(places(record)[1:]))
    owner = record
    for key in path[:-1]:
        owner = owner[key]
    if data.draw(st.booleans()) or isinstance(owner, list):
        owner[path[-1]] = data.draw(JSON)
    else:
        del owner[path[-1]]
    out = tmp_path / "run"
    shutil.rmtree(out, ignore_errors=True)
    copy_with(finished, out, {number: sign(record)})
    run = load_run(out)
    summary = summarize(run.suite, run.agents, run.results, run.manifest, run.problems)
    others = [key for key in read_results(finished).latest if key in run.results]
    assert len(others) >= LINES - 1
    assert summary.episodes + sum(summary.errors.values()) + len(run.problems) == LINES
    with open_index(out) as index:
        _pack_cells([ReportedRun(out, index, run.manifest, {name: name for name in run.agents})], summary)
    assert len(summary.problems) <= 1
    for line in summary.lines:
        assert 0.0 <= line.success.value <= 1.0


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_bytes_in_the_file_end_a_summary(data: st.DataObject, finished: Path, tmp_path: Path) -> None:
    content = bytearray((finished / "episodes.jsonl").read_bytes())
    start = data.draw(st.integers(0, len(content) - 1))
    length = data.draw(st.integers(0, 400))
    content[start : start + length] = data.draw(st.binary(max_size=400))
    out = tmp_path / "run"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(finished, out)
    (out / "episodes.jsonl").write_bytes(content)
    run = load_run(out)
    original = read_results(finished).latest
    assert run.results.keys() <= original.keys()
    for key, result in run.results.items():
        assert read_episode(out, result) == read_episode(finished, original[key])
    summarize(run.suite, run.agents, run.results, run.manifest, run.problems)
