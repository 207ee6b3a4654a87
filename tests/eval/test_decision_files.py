"""Labels of runs: `decisions.jsonl`, its damage and staleness, the time limit, statistics, table and report."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import zlib
from io import StringIO
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from filelock import FileLock
from rich.console import Console
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.agents.execution import trial_seed
from arboretum.cli import main
from arboretum.envs.optimum import Optimum
from arboretum.eval.agents import NamedAgent
from arboretum.eval.api import evaluate as evaluate_in_python
from arboretum.eval.decisions import (
    EpisodeDecisions,
    Unlabelled,
    label_episode,
    labelling,
    read_labels,
    summarize_decisions,
)
from arboretum.eval.decisions.file import FILE, Labels, plain_labels
from arboretum.eval.decisions.labelling import Coverage, describe_coverage, label_run
from arboretum.eval.decisions.labels import judge
from arboretum.eval.decisions.replay import as_recorded, parse_recorded
from arboretum.eval.decisions.table import describe_basis, fit_decisions
from arboretum.eval.episode_lines import encode_episode
from arboretum.eval.evaluate import evaluate
from arboretum.eval.planning import Scope
from arboretum.eval.results import report
from arboretum.eval.run_index import open_index
from arboretum.eval.store import EpisodeKey, read_episode
from arboretum.eval.suite import load_suite
from arboretum.eval.summary import load_run
from support.pages import low_contrasts, set_width

SUITE = """
entries:
  - {name: Sokoban, env: TextSokoban-v0, split: test, repeats: 2}
  - {name: lake, env: TextFrozenLake-v0, split: test, max_turns: 6}
  - {name: shop, env: TextWebShop-v0, split: test}
  - {name: levels, env: TextSokobanHard-v0, split: test, max_steps: 6}
"""
TASKS = 6
EPISODES = 2 * (2 * TASKS + 3 * TASKS)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "s.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture(scope="module")
def old(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run without labels, as earlier versions wrote it; tests must not change it."""
    out = tmp_path_factory.mktemp("old") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ARBORETUM_DATA", raising=False)
        agents = [NamedAgent("random"), NamedAgent("expert")]
        console = Console(file=StringIO())
        assert evaluate(str(suite), agents, scope=Scope(limit=TASKS), out=out, console=console) == 0
    return out


@pytest.fixture
def run(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run."""
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    shutil.copytree(old, tmp_path / "run")
    return tmp_path / "run"


def stored(folder: Path) -> dict[EpisodeKey, Labels]:
    return read_labels(folder, load_run(folder).results.values())


def lines_of(folder: Path) -> list[bytes]:
    return (folder / FILE).read_bytes().splitlines(keepends=True)


def test_run_without_labels_is_reported_as_before(run: Path) -> None:
    assert not (run / FILE).exists() and stored(run) == {}
    summary = report([run])
    assert summary.decisions == [] and '<h2 id="why">' not in (run / "report.html").read_text()


@pytest.mark.parametrize("reply", ["up", "\ud800 up"])
@pytest.mark.parametrize("detail", [1.0, float("nan")])
@pytest.mark.parametrize("trials", [0, 2])
def test_replays_read_every_line_that_runs_write(reply: str, detail: float, trials: int) -> None:
    """Lone surrogates and NaN are no JSON for most decoders, but models and environments produce them."""
    turns = [Turn("a board", reply, "", [Move("Up", -1, True, False)], penalty=0.0)]
    trial = Episode("TextSokoban-v0", "t", 5, "a", turns=turns, final_observation="end")
    episode = Episode(
        "TextSokoban-v0", "t", 5, "a", True, details={"d": detail}, turns=turns, trials=[trial] * trials
    )
    line = encode_episode(EpisodeKey("a", "e", "t", 0), episode).line
    assert parse_recorded(line) == as_recorded(episode, trial_seed(5, trials))
    for damaged in (b"", line[:-9], b"[1]", line.replace(b'"seed"', b'"sede"')):
        with pytest.raises(ValueError, match=r"\w"):
            parse_recorded(damaged)


def test_stored_labels_are_those_of_the_episodes(run: Path) -> None:
    assert label_run(run) == Coverage(EPISODES, EPISODES)
    labels = stored(run)
    loaded = load_run(run)
    envs = {entry.name: entry.make() for entry in loaded.suite.entries}
    assert labels.keys() == loaded.results.keys() and len(labels) == EPISODES
    for key, result in loaded.results.items():
        assert labels[key] == label_episode(envs[key.entry], read_episode(run, result))
    before = (run / FILE).read_bytes()
    assert label_run(run) == Coverage(EPISODES, EPISODES)
    assert (run / FILE).read_bytes() == before


def test_damaged_incomplete_and_stale_lines_are_labelled_again(run: Path) -> None:
    label_run(run)
    whole = stored(run)
    lines = lines_of(run)
    damaged = [*lines]
    damaged[0] = damaged[0].replace(b'"marks":"', b'"marks":"o')  # its checksum tells
    damaged[1] = b"not JSON\n"
    damaged[2] = b"{}\n"
    damaged[3] = damaged[3].replace(b'"version":"', b'"version":"0')
    forged = re.sub(rb'"at":\[(\d+),\d+\]', rb'"at":[\1,%d]' % 10**30, damaged[4]).partition(b',"crc"')[0]
    damaged[4] = forged + b',"crc":"%08x"}\n' % zlib.crc32(forged)  # a position that no file has
    damaged[-1] = damaged[-1][: len(damaged[-1]) // 2]  # killed while writing
    (run / FILE).write_bytes(b"".join(damaged))
    assert len(stored(run)) == EPISODES - 6
    assert label_run(run) == Coverage(EPISODES, EPISODES)
    assert stored(run) == whole and len(lines_of(run)) == EPISODES
    # Another version of the labels, or other episodes.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arboretum.eval.decisions.file.VERSION", 999)
        assert stored(run) == {}
    episodes = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (run / "episodes.jsonl").write_bytes(b"".join(reversed(episodes)))
    assert len(stored(run)) < EPISODES / 4
    label_run(run)
    assert stored(run) == whole


def test_killed_labelling_keeps_what_is_labelled_and_goes_on(run: Path) -> None:
    class Killed(Exception):
        pass

    def kill(done: int, total: int) -> None:
        if done > total // 3:
            raise Killed

    with pytest.raises(Killed):
        label_run(run, on_progress=kill)
    kept = stored(run)
    assert EPISODES / 3 < len(kept) < EPISODES
    first = lines_of(run)
    assert label_run(run).labelled == EPISODES
    assert lines_of(run)[: len(first)] == first and kept.items() <= stored(run).items()


def test_labels_survive_the_kill_of_their_process(run: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from arboretum.eval.decisions.labelling import label_run;"
        " label_run(Path(sys.argv[1]), on_progress=lambda done, total: done > 9 and os.kill(os.getpid(), 9))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(run)], check=False).returncode == -9
    kept = stored(run)
    assert 9 < len(kept) < EPISODES
    assert label_run(run) == Coverage(EPISODES, EPISODES) and kept.items() <= stored(run).items()


def test_run_that_goes_on_while_it_is_labelled(run: Path) -> None:
    """Its further episodes made the number of missing labels negative, which no sentence can tell."""
    path = run / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: EPISODES // 2]))

    def go_on(done: int, total: int) -> None:
        assert done <= total
        path.write_bytes(b"".join(lines))
        open_index(run).close()

    coverage = label_run(run, on_progress=go_on)
    assert coverage.labelled == coverage.episodes > EPISODES // 2
    assert describe_coverage(coverage, run, None) == []


def test_second_labelling_of_a_run_waits_for_the_first(run: Path) -> None:
    """Each would otherwise label everything, and the one that begins last remove what the other has written."""
    second: list[Coverage] = []
    thread = Thread(target=lambda: second.append(label_run(run)))

    def begin_second(done: int, total: int) -> None:
        if not thread.ident:
            thread.start()
            thread.join(0.3)
            assert thread.is_alive() and second == []

    assert label_run(run, on_progress=begin_second) == Coverage(EPISODES, EPISODES)
    thread.join(60)
    assert second == [Coverage(EPISODES, EPISODES)]
    assert len(lines_of(run)) == len(stored(run)) == EPISODES


def test_labelling_waits_for_another_one_no_longer_than_its_time(run: Path) -> None:
    label_run(run, 1e-9)
    labelled = len(stored(run))
    with FileLock(run / ".decisions.lock", thread_local=False):
        begun = time.monotonic()
        coverage = label_run(run, 0.3)
        assert time.monotonic() - begun < 30
    assert coverage == Coverage(EPISODES, labelled, late=EPISODES - labelled) and coverage.late
    assert len(lines_of(run)) == labelled
    assert "because the time of 0.3 s is up" in describe_coverage(coverage, run, 0.3)[0]


def test_time_limit_leaves_a_random_sample_of_tasks_and_says_so(run: Path) -> None:
    coverage = label_run(run, 1e-9)
    assert coverage.labelled < EPISODES
    (sentence,) = describe_coverage(coverage, run, 1e-9)
    missing = EPISODES - coverage.labelled
    assert f"{missing} of {EPISODES} episodes have no labels, because the time of 1e-09 s is up" in sentence
    assert f"`arboretum decisions {run}` labels them" in sentence and coverage.late == missing
    assert describe_coverage(label_run(run), run, None) == []
    assert describe_coverage(Coverage(8, 7, late=1), Path("my run"), 2.0) == [
        "1 of 8 episodes has no labels, because the time of 2 s is up; `arboretum decisions 'my run'` labels it."
    ]


def test_all_agents_of_a_task_are_labelled_together(run: Path) -> None:
    seen: list[set[tuple[str, str]]] = []

    def note(done: int, total: int) -> None:
        keys = stored(run)
        tasks = {(key.entry, key.task) for key in keys}
        assert all(sum(k.task == t and k.entry == e for k in keys) >= 2 for e, t in tasks)
        seen.append(tasks)

    label_run(run, on_progress=note)
    assert [len(tasks) for tasks in seen] == list(range(1, 4 * TASKS + 1))
    order = [next(iter(after - before)) for before, after in pairwise(seen)]
    assert order != sorted(order)  # not the first tasks first


def test_episodes_of_other_data_have_no_labels_but_a_reason(run: Path) -> None:
    path = run / "run.json"
    manifest = json.loads(path.read_text())
    for entry in manifest["suite"]["entries"]:
        if entry["env"] == "TextSokoban-v0":
            entry["kwargs"] = {"size": 7}
        if entry["env"] == "TextWebShop-v0":
            entry["kwargs"] = {"data": "/nowhere"}
    path.write_text(json.dumps(manifest))
    coverage = label_run(run)
    assert coverage == Coverage(EPISODES, EPISODES - 2 * TASKS * 3, 2 * TASKS * 3)
    assert describe_coverage(coverage, run, None) == []  # no further call would label them
    found = [one for one in stored(run).values() if isinstance(one, Unlabelled)]
    assert len(found) == 2 * TASKS * 3
    assert {one.reason.split(":")[0] for one in found} == {
        "The replay differs from the record in the observation at action 1",
        "The environment cannot be made",
    }
    lines = report([run]).decisions
    by_cell = {(line.entry, line.agent): line for line in lines}
    sokoban = by_cell["Sokoban", "random"]
    assert sokoban.labelled == 0 and sum(sokoban.problems.values()) == 2 * TASKS
    assert by_cell["lake", "random"].labelled == TASKS and not by_cell["lake", "random"].problems
    assert any(
        "Sokoban, random: 12 of 12 episodes have no labels. The replay differs" in s
        for s in describe_basis(lines, 80)
    )
    # With the right data again, they are labelled.
    shutil.copy(run / ".run.json", path)
    assert label_run(run).labelled == EPISODES


def test_entries_whose_replay_searches_again_are_labelled_on_demand(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arboretum.envs.frozenlake import FrozenLake

    monkeypatch.setattr(FrozenLake, "replay_is_costly", True)
    coverage = label_run(run, 60.0, with_costly=False)
    assert coverage == Coverage(EPISODES, EPISODES - 2 * TASKS, costly=("lake",))
    (sentence,) = describe_coverage(coverage, run, 60.0)
    assert "12 of 60 episodes have no labels, because replays of lake search again" in sentence
    assert label_run(run).labelled == EPISODES


# ---------------------------------------------------------------------- statistics


def test_statistics_count_what_the_labels_say(run: Path) -> None:
    label_run(run)
    summary = report([run])
    labels, results = stored(run), load_run(run).results
    lines = {(line.entry, line.agent): line for line in summary.decisions}
    names = [entry.name for entry in load_run(run).suite.entries]
    assert list(lines) == [(entry, agent) for entry in names for agent in ("random", "expert")]
    for (entry, agent), line in lines.items():
        own = [one for key, one in labels.items() if key[:2] == (agent, entry)]
        episodes = [one for one in own if isinstance(one, EpisodeDecisions)]
        assert line.labelled == line.episodes == len(episodes)
        assert line.decisions == sum(r.steps for key, r in results.items() if key[:2] == (agent, entry))
        assert sum(line.outcomes.values()) == len(episodes)
        solved = sum(r.success for key, r in results.items() if key[:2] == (agent, entry))
        assert line.outcomes.get("solved", 0) == solved
        assert (
            line.optimal.value
            == pytest.approx(
                sum(d.optimal is True for one in episodes for d in one.decisions)
                / max(1, sum(d.optimal is not None for one in episodes for d in one.decisions)),
                nan_ok=not line.judged,
            )
            or not line.judged
        )
        assert not line.judged or line.optimal.low <= line.optimal.value <= line.optimal.high
        assert line.exact is (entry != names[2]) and line.measure == episodes[0].measure
    assert lines["Sokoban", "expert"].optimal.value == 1.0
    assert "unfinished" in lines["lake", "random"].outcomes  # six turns
    # Every level needs more than six steps.
    assert lines[names[3], "random"].outcomes == {"impossible": TASKS} and not lines[names[3], "random"].judged
    plain = json.loads((run / "summary.json").read_text())["decisions"]
    assert plain[0]["outcomes"] == lines["Sokoban", "random"].outcomes
    assert plain[0]["optimal"]["value"] == lines["Sokoban", "random"].optimal.value


def test_position_of_the_first_fatal_decision_is_a_median_over_episodes_that_have_one() -> None:
    fine = judge(Optimum(1.0, 3), Optimum(1.0, 2), True, False, False)
    fatal = judge(Optimum(1.0, 3), Optimum(0.0, None), True, False, False)
    results = load_results(4)
    episodes = [[fatal], [fine, fine, fatal], [fine] * 7 + [fatal], [fine]]
    labels: dict[EpisodeKey, Labels] = {
        key: EpisodeDecisions(tuple(d), "dead end" if fatal in d else "solved", True, "probability of success")
        for key, d in zip(results, episodes, strict=True)
    }
    (line,) = summarize_decisions({(key.entry, key.agent): len(results) for key in results}, labels)
    assert line.first_fatal == 3.0 and line.fatal.value == 0.75 and line.value_regret.value == 0.75
    assert line.optimal.value == 10 / 13 and line.outcomes == {"dead end": 3, "solved": 1}


def load_results(count: int) -> dict[EpisodeKey, Any]:
    done = evaluate_in_python("TextBandit-v0", ["random"], limit=count)
    return {key: done._results[key] for key in done._results}


# ---------------------------------------------------------------------- what a user sees


def text_of(renderable: Any, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_table_fits_the_terminal_and_says_why_tasks_were_not_solved(run: Path, width: int) -> None:
    label_run(run)
    lines = text_of(fit_decisions(report([run]).decisions, width), width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "over the shortest known" in text and "dead end" in text and "unfinished" in text
    assert "impossible 100 %" in text
    legend = describe_basis(report([run]).decisions, width)[0]
    assert ("fatal at" in text) == ("Repeated:" in legend) == (width < 80)


def test_command_labels_a_run_and_prints_the_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["decisions", str(run)])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "why not solved" in printed and "Optimal: of the actions" in " ".join(printed.split())
    assert len(stored(run)) == EPISODES
    with pytest.raises(SystemExit) as ended:
        main(["report", str(run)])
    assert "why not solved" in capsys.readouterr().out
    for wrong, sentence in ((["/nowhere"], "holds no run"), ([str(run), "--seconds", "0"], "seconds")):
        with pytest.raises(SystemExit) as ended:
            main(["decisions", *wrong])
        assert ended.value.code == 2 and sentence in capsys.readouterr().err


def test_evaluation_labels_at_its_end_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    arguments = ["eval", "TextSokoban-v0", "--limit", "4", "--out", str(tmp_path / "run"), "--workers", "1"]
    command = [sys.executable, "-m", "arboretum.cli", *arguments]
    done = subprocess.run([*command, "--label-seconds", "0"], capture_output=True, text=True, check=True)
    assert "why not solved" not in done.stdout and not (tmp_path / "run" / FILE).exists()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "why not solved" in done.stdout and len(stored(tmp_path / "run")) == 8


def test_decisions_of_an_evaluation_in_python_are_in_its_summary() -> None:
    done = evaluate_in_python("TextSokoban-v0", ["expert"], limit=3, label_seconds=10.0)
    (line,) = done.summary.decisions
    assert line.labelled == 3 and line.optimal.value == 1.0 and line.outcomes == {"solved": 3}
    assert evaluate_in_python("TextSokoban-v0", ["expert"], limit=1).summary.decisions == []


def test_reports_of_several_runs_show_the_decisions_of_each(run: Path, tmp_path: Path) -> None:
    label_run(run)
    shutil.copytree(run, tmp_path / "second")
    (tmp_path / "second" / FILE).unlink()
    summary = report([run, tmp_path / "second"], tmp_path / "both.html")
    assert {line.agent for line in summary.decisions} == {"random", "expert"}


def test_report_explains_decisions_and_marks_the_steps_of_episodes(run: Path) -> None:
    label_run(run)
    report([run])
    text = (run / "report.html").read_text(encoding="utf-8")
    assert 'id="decisions"' in text and "over the shortest known" in text
    assert 'aria-label="dead end' in text or 'aria-label="out of steps' in text


def test_marks_are_complete_for_the_viewer(run: Path) -> None:
    label_run(run)
    for labels in stored(run).values():
        assert isinstance(labels, EpisodeDecisions)
        plain = plain_labels(labels)
        assert len(plain["marks"]) == len(plain["visits"]) == len(labels.decisions)


@pytest.mark.heavy
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_browser_shows_the_marks_of_a_fatal_episode(run: Path, browser: Any, width: int, scheme: str) -> None:
    label_run(run)
    report([run])
    key, result = next(
        (key, result)
        for key, result in load_run(run).results.items()
        if key[:2] == ("random", "Sokoban") and getattr(stored(run)[key], "outcome", "") == "dead end"
    )
    set_width(browser, width, scheme)
    browser.get((run / "report.html").as_uri())
    wait = WebDriverWait(browser, 60)
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".turn"))
    Select(browser.find_element(By.ID, "outcome")).select_by_value("unsolved")
    find = browser.find_element(By.ID, "find")
    find.send_keys(key.task)
    name = f"{key.task} ({key.repeat + 1})" if key.repeat else key.task
    wait.until(
        lambda _: (
            browser.find_elements(By.LINK_TEXT, name) or browser.find_elements(By.CSS_SELECTOR, "#list .link")
        )
    )
    next(link for link in browser.find_elements(By.CSS_SELECTOR, "#list .link") if link.text == name).click()
    wait.until(lambda _: "why: dead end" in browser.find_element(By.ID, "verdict").text)
    browser.find_element(By.ID, "whole").click()
    moves = browser.find_elements(By.CSS_SELECTOR, ".moves li")
    labels = stored(run)[key]
    assert isinstance(labels, EpisodeDecisions) and len(moves) == result.steps and labels.first_fatal
    assert "fatal: gives away 100 % of success" in moves[labels.first_fatal - 1].text
    assert all("nothing left to lose" in move.text for move in moves[labels.first_fatal :])
    for move, decision in zip(moves, labels.decisions, strict=True):
        assert ("optimal" in move.text) is (decision.optimal is True)
        assert ("repeated" in move.text) is decision.repeated
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert low_contrasts(browser) == {}


def test_shipped_suites_declare_no_costly_entry_on_generated_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    assert not any(entry.make().replay_is_costly for entry in load_suite("quick").entries)


def test_records_of_episodes_survive_the_round_trip(run: Path) -> None:
    loaded = load_run(run)
    result = next(iter(loaded.results.values()))
    episode = read_episode(run, result)
    assert Episode.from_dict(episode.to_dict()) == episode


# ---------------------------------------------------------------------- labels of a part


def keep_labels(run: Path, agent: str, number: int) -> None:
    """Keep some labels of an agent only."""
    stored = (run / FILE).read_bytes().splitlines(keepends=True)
    (run / FILE).write_bytes(b"".join([line for line in stored if json.loads(line)["agent"] == agent][:number]))


def test_report_of_a_run_that_is_labelled_in_part_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label_run(run)
    run = run.rename(run.with_name("we ird"))
    keep_labels(run, "expert", 3)
    with pytest.raises(SystemExit):
        main(["report", str(run)])
    sentence = f"{EPISODES - 3} of {EPISODES} episodes have no labels, among them all of random"
    command = f"`arboretum decisions '{run}'` labels them."
    shown = capsys.readouterr().out
    assert sentence in shown and command in shown and shown.count("have no labels") == 1
    page = (run / "report.html").read_text(encoding="utf-8")
    code = f"<code>arboretum decisions &#39;{run}&#39;</code> labels them."
    assert sentence in page and code in page and "`arboretum" not in page
    assert json.loads((run / "summary.json").read_text())["unlabelled"] == [
        line for line in shown.splitlines() if sentence in line
    ]


def test_stale_labels_are_named(run: Path) -> None:
    label_run(run)
    text = (run / FILE).read_text()
    (run / FILE).write_text(text.replace('"version":"', '"version":"0.'))
    (sentence,) = report([run]).unlabelled
    assert (
        sentence == f"{EPISODES} of {EPISODES} episodes have no labels; `arboretum decisions {run}` labels them."
    )
    (run / FILE).unlink()
    assert report([run]).unlabelled == []  # Nobody has asked for labels.


# ---------------------------------------------------------------------- the command


def decide(capsys: pytest.CaptureFixture[str], *runs: Path) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["decisions", *map(str, runs)])
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out + shown.err


def test_training_run_has_no_decisions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text('{"recipe": {}}')
    status, text = decide(capsys, tmp_path)
    assert status == 2 and f"{tmp_path}: is a training run; `arboretum decisions` takes evaluation runs" in text


def test_run_without_episodes_has_no_decisions(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "episodes.jsonl").write_bytes(b"")
    status, text = decide(capsys, run)
    assert status == 1 and f"{run}: has no complete episodes, and so no decisions to label." in text


def test_interrupted_labelling_says_how_to_go_on(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any) -> Labels:
        raise KeyboardInterrupt

    monkeypatch.setattr(labelling, "_label", interrupt)
    status, text = decide(capsys, run)
    assert (status, text.lstrip()) == (130, "Interrupted; run the same command again to go on.\n")
