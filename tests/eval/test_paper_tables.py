"""Tables of suites in the layout of papers: averages, marks of other tasks, published rows, broken definitions."""

from __future__ import annotations

import json
import math
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.envs.searchqa.downloads import DATA_SETS
from arboretum.eval.agents import NamedAgent
from arboretum.eval.evaluate import evaluate
from arboretum.eval.paper_results import Cell, average
from arboretum.eval.paper_text import format_bounds, table_text
from arboretum.eval.planning import Scope
from arboretum.eval.results import report
from arboretum.eval.suite import load_suite, parse_suite
from arboretum.trainers.study.reference_definitions import TABLE_EXAMPLE

SUITE = """
name: small
entries:
  - name: Sea
    env: TextSearchQA-v0
    needs: [sea/test.jsonl]
    kwargs: {dataset: sea}
    split: test
    score: f1
    otherwise:
      - {kwargs: {dataset: encyclopedia, hops: 1}, split: test, tasks: 8, note: generated questions}
  - {name: Arms, env: TextBandit-v0, split: test}
  - {name: Other arms, env: TextBanditRev-v0, split: test, repeats: 3}
tables:
  - title: Everything
    columns:
      - {name: Sea, entry: Sea, tasks: 2}
      - {name: F1, entry: Sea, metric: score, tasks: 2}
      - {name: Arms, entry: Arms, tasks: 16}
      - {name: Other, entry: Other arms, note: other pairs}
      - {name: Macro, macro: [Arms, Other]}
      - {name: Micro, micro: [Arms, Other]}
      - {name: All, macro: [Sea, Arms]}
    published:
      - {method: Method, model: Model-3B, source: "A paper, table 4", values: {Sea: 40.25, Arms: 71, Other: 9.5}}
      - {method: Method two, source: "Another, table 1", values: {Arms: 72}}
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    path = tmp_path / "small.yaml"
    path.write_text(SUITE)
    return str(path)


@pytest.fixture
def sea(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data folder with a data set of two questions and its corpus."""
    folder = tmp_path / "data" / "sea"
    folder.mkdir(parents=True)
    questions = [
        {"id": str(n), "question": f"How deep is sea {n}?", "golden_answers": [f"{n} miles"]} for n in (1, 2)
    ]
    passages = [{"id": str(n), "contents": f'"Sea {n}"\nIt is {n} miles deep.'} for n in (1, 2)]
    for name, rows in (("test", questions), ("corpus", passages)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("ARBORETUM_DATA", str(folder.parent))
    return folder


def run(suite: str, out: Path, width: int = 80, **options: Any) -> str:
    """Evaluate the random agent and the expert, and return what is printed."""
    text = StringIO()
    agents = [NamedAgent("random"), NamedAgent("expert")]
    evaluate(suite, agents, out=out, console=Console(file=text, width=width), **options)
    return text.getvalue()


def row_of(text: str, label: str) -> list[str]:
    """Return the cells of the row with a label, in all parts of a table."""
    return [cell for line in text.splitlines() if line.startswith(f"{label} ") for cell in line.split()[1:]]


# ---------------------------------------------------------------------- averages


def test_macro_and_micro_averages_with_intervals_are_those_worked_by_hand() -> None:
    a, b = Cell(50.0, 40.0, 60.0, 100), Cell(90.0, 80.0, 94.0, 300)
    macro, micro = average([a, b], pooled=False), average([a, b], pooled=True)
    # Equal weights: below sqrt((10/2)² + (10/2)²), above sqrt((10/2)² + (4/2)²).
    assert macro == pytest.approx((70.0, 70 - math.sqrt(50), 70 + math.sqrt(29), 400))
    # Weights 1/4 and 3/4: below sqrt(2.5² + 7.5²), above sqrt(2.5² + 3²).
    assert micro == pytest.approx((80.0, 80 - math.sqrt(62.5), 80 + math.sqrt(15.25), 400))
    assert average([a, None], pooled=False) is None and average([], pooled=True) is None


def test_interval_of_a_single_part_is_its_own() -> None:
    cell = Cell(12.0, 3.5, 30.25, 17)
    assert average([cell], pooled=True) == cell and average([cell], pooled=False) == cell


def test_micro_average_weights_by_episodes_and_macro_by_columns(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    summary = report([tmp_path / "r"])
    (table,) = summary.tables
    rates = {line.entry: line for line in summary.lines if line.agent == "random"}
    arms, other = rates["Arms"], rates["Other arms"]
    assert (arms.episodes, other.episodes) == (16, 48)
    found = dict(zip([column.name for column in table.columns], table.rows[0].cells, strict=True))
    assert table.rows[0].label == "random" and found["Macro"] is not None and found["Micro"] is not None
    assert found["Macro"].value == pytest.approx(50 * (arms.success.value + other.success.value))
    assert found["Micro"].value == pytest.approx(25 * arms.success.value + 75 * other.success.value)
    assert found["Macro"].episodes == found["Micro"].episodes == 64


# ---------------------------------------------------------------------- marks


def test_generated_data_is_marked_and_its_published_value_is_in_parentheses(suite: str, tmp_path: Path) -> None:
    text = run(suite, tmp_path / "r")
    assert row_of(text, "expert")[:3] == ["100.0*", "100.0*", "100.0"]
    # The label is "Method [1]".
    assert row_of(text, "Method")[:5] == ["[1]", "(40.25)", "–", "71", "(9.5)"]
    flat = " ".join(text.split())
    assert "* generated encyclopedia in place of the benchmark's files: Sea, F1" in flat
    assert "* generated questions: Sea, F1" in flat and "+ other pairs: Other" in flat
    assert "( ) published for other tasks than this run's: not comparable" in flat
    assert "ARBORETUM_DATA names no folder with sea/test.jsonl, so entries that need" in flat
    assert "`arboretum data list` shows the commands that get the data" in flat
    (column, *_) = json.loads((tmp_path / "r" / "summary.json").read_text())["tables"][0]["columns"]
    assert column["generated"] == "generated encyclopedia" and column["comparable"] is False


def test_column_on_the_benchmarks_files_has_no_mark(suite: str, sea: Path, tmp_path: Path) -> None:
    text = run(suite, tmp_path / "r")
    assert row_of(text, "expert")[:3] == ["100.0", "100.0", "100.0"]
    assert row_of(text, "Method")[1] == "40.25" and "generated" not in text and "ARBORETUM_DATA" not in text


def test_average_of_generated_data_and_files_is_left_out(suite: str, sea: Path, tmp_path: Path) -> None:
    assert "no average" not in run(suite, tmp_path / "files")
    (sea / "test.jsonl").unlink()
    text = run(suite, tmp_path / "mixed")
    reason = "+ no average: only some of its columns are on generated data: All"
    assert reason in " ".join(text.split())
    for folder, has_average in (("files", True), ("mixed", False)):
        (table,) = report([tmp_path / folder]).tables
        assert [row.cells[-1] is not None for row in table.rows[:2]] == [has_average] * 2


def test_part_of_the_tasks_is_marked(suite: str, sea: Path, tmp_path: Path) -> None:
    text = run(suite, tmp_path / "r", scope=Scope(limit=1))
    assert row_of(text, "Method")[1:4] == ["(40.25)", "–", "(71)"]
    assert (
        "+ another number of tasks than in the paper: Sea 1 instead of 2, F1 1 instead of 2, Arms 1 instead of 16"
        in " ".join(text.split())
    )


def test_missing_files_without_a_replacement_are_named(suite: str, tmp_path: Path) -> None:
    path = Path(suite)
    path.write_text(re.sub(r"    otherwise:\n.*\n", "", SUITE))
    with pytest.raises(
        ConfigurationError, match=r"'Sea': ARBORETUM_DATA names no folder with sea/test\.jsonl; set"
    ):
        run(suite, tmp_path / "r")


def test_replacement_without_a_note_is_marked(suite: str, tmp_path: Path) -> None:
    entry = "{name: Arms, env: TextBandit-v0, split: test"
    replaced = f"{entry}, needs: [arms.txt], otherwise: [{{split: test}}]"
    Path(suite).write_text(SUITE.replace(entry, replaced))
    text = run(suite, tmp_path / "r")
    assert row_of(text, "Method")[3] == "(71)"
    assert "+ other tasks, because files are missing: Arms" in " ".join(text.split())
    assert "because files are missing: Sea" not in " ".join(text.split())


def test_damaged_file_is_no_missing_file(suite: str, sea: Path, tmp_path: Path) -> None:
    (sea / "test.jsonl").write_text('{"id": "1"}\n')
    with pytest.raises(ConfigurationError, match=r"test\.jsonl, line 1: has no 'question'"):
        run(suite, tmp_path / "r")


def test_text_of_kwargs_names_the_data_folder(sea: Path, tmp_path: Path) -> None:
    (sea / "corpus.jsonl").rename(sea.parent / "elsewhere.jsonl")
    path = tmp_path / "s.yaml"
    path.write_text(
        "entries:\n  - {env: TextSearchQA-v0, split: test, kwargs: {dataset: sea, retriever:"
        " $ARBORETUM_DATA/elsewhere.jsonl}}\n"
    )
    run(str(path), tmp_path / "r")
    stored = json.loads((tmp_path / "r" / "run.json").read_text())["suite"]["entries"][0]["kwargs"]
    assert stored["retriever"] == "$ARBORETUM_DATA/elsewhere.jsonl"  # No path of this machine.


# ---------------------------------------------------------------------- published rows and layout


def test_published_rows_carry_source_and_model(suite: str, tmp_path: Path) -> None:
    flat = " ".join(run(suite, tmp_path / "r").split())
    assert "[1] published: A paper, table 4; model: Model-3B" in flat
    assert "[2] published: Another, table 1; model: not recorded" in flat
    rows = json.loads((tmp_path / "r" / "summary.json").read_text())["tables"][0]["rows"]
    assert [(row["label"], row["published"], row["source"]) for row in rows] == [
        ("random", False, ""),
        ("expert", False, ""),
        ("Method", True, "A paper, table 4"),
        ("Method two", True, "Another, table 1"),
    ]
    assert rows[2]["cells"][0] == {"value": 40.25, "low": None, "high": None, "episodes": 0}


@pytest.mark.parametrize("transposed", [False, True])
def test_table_of_any_width_shows_every_value_in_lines_that_fit(
    suite: str, tmp_path: Path, transposed: bool
) -> None:
    if transposed:
        Path(suite).write_text(SUITE.replace("title: Everything", "title: Everything\n    transposed: true"))
    run(suite, tmp_path / "r")
    (table,) = report([tmp_path / "r"]).tables
    for width in (24, 40, 60, 80, 200):
        text = table_text(table, width).plain
        assert all(len(line) <= width for line in text.splitlines())
        shown = {word.strip("()*+") for word in text.split()}
        for row in table.rows:
            for cell in row.cells:
                value = "–" if cell is None else f"{cell.value:g}" if row.published else f"{cell.value:.1f}"
                assert value in shown, (width, row.label)
        assert all(part in text for part in ("Sea*", "Macro+", "expert", "published"))


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell(50.0, 40.4, 59.6, 9), "40–60"),
        (Cell(1.0, -5.2, 15.0, 9), "\N{MINUS SIGN}5 to 15"),
        (Cell(0.2, -0.2, 0.6, 9), "0–1"),
        (Cell(40.25, math.nan, math.nan, 0), ""),
        (Cell(5.0, -math.inf, math.inf, 1), ""),
        (None, ""),
    ],
)
def test_bounds_are_readable(cell: Cell | None, text: str) -> None:
    assert format_bounds(cell) == text


def test_report_contains_the_tables_escaped(suite: str, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    text = SUITE.replace("Everything", hostile).replace("Method two", hostile).replace("Another", hostile)
    Path(suite).write_text(text.replace("other pairs", hostile).replace("name: Micro", f"name: {hostile}"))
    run(suite, tmp_path / "r")
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    (table,) = re.findall(r'<table class="paper">.*?</table>', page, re.S)
    assert hostile not in page and table.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 3
    assert "(40.25)" in table and "100.0*" in table and "published" in table
    assert not re.search(r"<th(?![^>]*scope=)", table.replace("<thead", ""))


# ---------------------------------------------------------------------- stored runs


def test_resumed_run_takes_the_tables_and_the_description_that_the_suite_has_now(
    suite: str, tmp_path: Path
) -> None:
    out = tmp_path / "r"
    first = run(suite, out)
    stored = (out / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (out / "episodes.jsonl").write_bytes(b"".join(stored[:-5]))
    Path(suite).write_text(SUITE.replace("Arms: 71", "Arms: 71.5") + "description: Corrected.\n")
    second = run(suite, out)
    assert "5 of" not in second
    assert (row_of(first, "Method")[3], row_of(second, "Method")[3]) == ("71", "71.5")
    assert row_of(second, "random") == row_of(first, "random")
    assert len((out / "episodes.jsonl").read_bytes().splitlines()) == len(stored)
    summary = report([out])
    assert summary.description == "Corrected." and "71.5" in table_text(summary.tables[0], 200)
    Path(suite).write_text(SUITE.split("tables:")[0])
    run(suite, out)
    assert not report([out]).tables and not report([out]).description


def test_two_runs_are_one_table(suite: str, tmp_path: Path) -> None:
    run(suite, tmp_path / "a")
    run(suite, tmp_path / "b", references=False)
    (table,) = report([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html").tables
    assert [row.label for row in table.rows] == ["random", "expert", "Method", "Method two"]


def test_run_is_not_resumed_on_other_data(suite: str, sea: Path, tmp_path: Path) -> None:
    run(suite, tmp_path / "r")
    (sea / "test.jsonl").unlink()
    with pytest.raises(
        ConfigurationError, match=r"started on the benchmark's files for 'Sea', and now .* encyclop"
    ):
        run(suite, tmp_path / "r")


# ---------------------------------------------------------------------- broken definitions

_START = """
entries:
  - {name: A, env: TextBandit-v0}
  - {name: B, env: TextALFWorld-v0, group_by: task_type, groups: [Pick]}
"""


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("tables: 3", "s.yaml: `tables` must be a non-empty list of mappings"),
        ("tables: [{title: T}]", "s.yaml, table 1: `columns` must be a non-empty list of mappings"),
        ("tables: [{columns: [{name: A, entry: A}]}]", "table 1: `title` is missing"),
        ("tables: [{title: T, colums: []}]", "table 1: unknown key 'colums'; did you mean columns"),
        ("tables: [{title: T, columns: [{entry: A}]}]", "table 1, column 1: `name` is missing"),
        ("tables: [{title: T, columns: [{name: A}]}]", "exactly one of `entry`, `macro` and `micro`, not none"),
        ("tables: [{title: T, columns: [{name: A, entry: A, macro: [A]}]}]", "not entry and macro"),
        ("tables: [{title: T, columns: [{name: A, entry: C}]}]", "column 1: unknown entry 'C'; known: A, B"),
        ("tables: [{title: T, columns: [{name: A, entry: A, group: x}]}]", "entry 'A' has no `group_by`"),
        ("tables: [{title: T, columns: [{name: A, entry: B, group: Pack}]}]", "'Pack'; did you mean Pick"),
        ("tables: [{title: T, columns: [{name: A, entry: A, metric: f1}]}]", "`metric` has a value of the wrong"),
        ("tables: [{title: T, columns: [{name: A, entry: A, metric: score}]}]", "'A' has no `score`; add it"),
        ("tables: [{title: T, columns: [{name: A, entry: A, tasks: 0}]}]", "`tasks` must be at least 1"),
        ("tables: [{title: T, columns: [{name: A, entry: A, hidden: true}]}]", "all columns are hidden"),
        (
            "tables: [{title: T, columns: [{name: A, entry: A}, {name: A, entry: B}]}]",
            "column 1: two columns have the name 'A'",
        ),
        (
            "tables: [{title: T, columns: [{name: A, entry: A}, {name: M, macro: [A, X]}]}]",
            "column 2: unknown column of an entry 'X'",
        ),
        ("tables: [{title: T, columns: [{name: A, entry: A}, {name: M, micro: [A, A]}]}]", "names a column twice"),
        (
            "tables: [{title: T, columns: [{name: A, entry: A}, {name: M, macro: [A], tasks: 3}]}]",
            "is an average, which has no `tasks`",
        ),
    ],
)
def test_broken_table_is_rejected_with_place_and_reason(tables: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_suite(_START + tables, "s.yaml")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{source: s, values: {A: 1}}", "published row 1: `method` is missing"),
        ("{method: m, values: {A: 1}}", "published row 1: `source` is missing"),
        ("{method: m, source: ' ', values: {A: 1}}", "`source` is empty; name the publication and its table"),
        ("{method: m, source: s, values: {}}", "`values` is empty"),
        ("{method: m, source: s, values: {B: 1}}", "unknown column 'B'"),
        ("{method: m, source: s, values: {A: 101}}", "the value of 'A' must be between 0 and 100"),
        ("{method: m, source: s, values: {A: .nan}}", "the value of 'A' must be between 0 and 100"),
        ("{method: m, source: s, values: {A: high}}", "values.* has a value of the wrong type"),
        ("{method: m, source: s, values: {A: 1}, modle: x}", "unknown key 'modle'; did you mean model?"),
    ],
)
def test_broken_published_row_is_rejected_with_place_and_reason(row: str, message: str) -> None:
    text = f"tables: [{{title: T, columns: [{{name: A, entry: A}}], published: [{row}]}}]"
    with pytest.raises(DataError, match=message):
        parse_suite(_START + text, "s.yaml")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("otherwise: [{split: test}]", "has `otherwise` without `needs`"),
        ("needs: [a], otherwise: 3", "`otherwise` must be a list of mappings"),
        ("needs: [a], otherwise: [{splits: test}]", "replacement 1: unknown key 'splits'; did you mean split"),
        ("needs: [a], otherwise: [{tasks: 0}]", "replacement 1: `tasks` must be at least 1"),
    ],
)
def test_broken_replacement_is_rejected_with_place_and_reason(entry: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_suite(f"entries: [{{env: TextBandit-v0, {entry}}}]", "s.yaml")


def test_example_of_the_reference_is_read() -> None:
    suite = parse_suite(TABLE_EXAMPLE, "search.yaml")
    assert [column.name for column in suite.tables[0].columns] == ["NQ", "Two hops", "Average"]
    assert parse_suite(json.dumps(suite.to_dict()), "again") == suite


# ---------------------------------------------------------------------- shipped suites


def test_tstar_prints_its_eleven_data_sets_on_generated_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    text = run("tstar", tmp_path / "r", scope=Scope(limit=1))
    first = text.partition("\nALFWorld: ")[0]
    names = ["ALFWorld", "WebShop", "NQ", "TriviaQA", "PopQA", "HotpotQA", "2Wiki", "MuSiQue", "Bamboogle"]
    rows = [line for line in first.splitlines() if "success," in line or "exact match" in line]
    assert [re.split(r"[*+ ]", row)[0] for row in rows] == [*names, "Sokoban", "Blocksworld"]
    generated = [row.split()[0].endswith("*") for row in rows]
    assert generated == [True] * 9 + [False] * 2
    assert all(row.split()[-1].startswith("100.0") for row in rows)
    assert all(len(line) <= 80 for line in first.splitlines()) and "(78.8)" in text


@pytest.mark.parametrize("name", ["ragen", "tree_grpo"])
def test_shipped_tables_mark_every_published_value_on_generated_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    run(name, tmp_path / "r", scope=Scope(limit=1))
    tables = report([tmp_path / "r"]).tables
    assert not any(column.comparable for table in tables for column in table.columns)
    expert = [row for table in tables for row in table.rows if row.label == "expert"]
    assert all(cell is not None for row in expert for cell in row.cells)


def test_settings_of_ragen_are_those_of_the_paper() -> None:
    suite = load_suite("ragen")
    assert suite.sampling["temperature"] == 0.5 and suite.dialogue["max_turns"] == 5
    assert [(entry.tasks or 16) * entry.repeats for entry in suite.entries] == [256] * 7
    steps = {entry.name: entry.max_steps for entry in load_suite("tstar").entries}
    assert [steps[f"Sokoban {level}"] for level in ("easy", "medium", "hard")] == [20, 40, 60]
    assert steps["ALFWorld"] == 30 and {steps[name] for name in ("WebShop", "NQ", "Bamboogle")} == {20}
    limits = {entry.name: entry.max_steps for entry in load_suite("tree_grpo").entries}
    assert limits.pop("Web agent") == 6 and set(limits.values()) == {4}


def test_files_and_numbers_of_questions_are_those_of_the_known_data_sets() -> None:
    for name in ("tstar", "tree_grpo"):
        suite = load_suite(name)
        columns = {column.entry: column for table in suite.tables for column in table.columns}
        sets = [entry for entry in suite.entries if entry.needs]
        assert len(sets) == 7
        for entry in sets:
            known = DATA_SETS[entry.kwargs["dataset"]]
            assert entry.needs == (f"{known.name}/{entry.split}.jsonl", "wiki-18/index")
            assert f"{entry.split}.jsonl" in known.files
            assert columns[entry.name].tasks == known.rows[entry.split or ""]


def test_downloaded_questions_are_searched_in_the_index_of_wikipedia(
    tmp_path: Path, sea: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sea.parent
    (data / "wiki-18").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["index", "build", "--corpus", str(sea / "corpus.jsonl"), "--out", str(data / "wiki-18" / "index")])
    assert ended.value.code == 0
    sea.rename(data / "nq")
    (data / "nq" / "corpus.jsonl").unlink()
    run("tree_grpo", tmp_path / "r", scope=Scope(limit=2))
    single, *_ = report([tmp_path / "r"]).tables
    nq, trivia, *_ = single.columns
    assert (nq.generated, nq.differences, nq.tasks) == (None, ["another number of tasks than in the paper"], 2)
    assert trivia.generated == "generated encyclopedia"
    assert [None if row.cells[0] is None else row.cells[0].value for row in single.rows] == [0.0, 100.0]


# ---------------------------------------------------------------------- arguments of one environment


def test_env_arg_reaches_the_environment_and_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["eval", "TextFrozenLake-v0", "--limit", "3", "--agent", "random", "--workers", "1"]
    for extra in ([], ["--env-arg", "size=8", "--split", "valid"]):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *extra])
        assert ended.value.code == 0
    plain, changed = sorted((tmp_path / "runs").iterdir(), key=lambda path: len(path.name))
    assert changed.name == f"{plain.name}-size_8-split_valid"
    (entry,) = json.loads((changed / "run.json").read_text())["suite"]["entries"]
    assert entry["kwargs"] == {"size": 8} and entry["split"] == "valid"
    observation = json.loads((changed / "episodes.jsonl").read_text().splitlines()[0])["turns"][0]["observation"]
    assert re.search(r"^\S{8}$", observation, re.M)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quick", "--env-arg", "size=8"], "--env-arg and --split are for the id of an environment, and quick"),
        (["quick", "--split", "train"], "--split are for the id of an environment, and quick is a suite"),
        (["TextFrozenLake-v0", "--env-arg", "size"], "--env-arg takes key=value, not 'size'"),
        (["TextFrozenLake-v0", "--env-arg", "sice=8"], "sice"),
    ],
)
def test_unusable_env_arg_is_refused_in_a_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["eval", *arguments])
    assert ended.value.code == 2 and message in capsys.readouterr().err
