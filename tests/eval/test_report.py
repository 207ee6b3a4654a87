"""The evaluation report: self-contained, escaped, and replayable step by step in a browser."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.eval.agents import NamedAgent
from arboretum.eval.evaluate import evaluate
from arboretum.eval.planning import Scope
from support.pages import low_contrasts, set_width

HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report of a suite whose names and observations contain hostile markup."""
    from arboretum.envs.bandit import Bandit

    folder = tmp_path_factory.mktemp("report")
    suite = folder / "suite.yaml"
    suite.write_text(
        f"name: bandits\ndescription: >-\n  {HOSTILE}\nentries:\n"
        f"  - {{name: 'A {HOSTILE.replace(chr(39), chr(39) * 2)}', env: TextBandit-v0, split: test}}\n"
        "  - {name: B, env: TextBanditRev-v0, split: test}\n"
    )
    observe = Bandit._observe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bandit, "_observe", lambda self: f"{observe(self)} {HOSTILE} </script>")
        with Path(os.devnull).open("w") as sink:
            evaluate(str(suite), [NamedAgent("random")], out=folder / "run", console=Console(file=sink))
    return folder / "run" / "report.html"


def test_report_needs_no_network_and_escapes_markup(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "@import" not in text and "url(" not in text
    assert HOSTILE not in text
    assert "<script>document" not in text


def test_tables_have_captions_and_scopes_and_follow_the_picture(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tables = re.findall(r"<table.*?</table>", text, re.S)
    assert len(tables) == 3  # results, comparisons, index of episodes
    for table in tables:
        assert re.search(r"<caption[^>]*>[^<]+</caption>", table)
        assert not re.search(r"<th(?![^>]*scope=)", table.replace("<thead", ""))
    assert text.index('class="plot"') < text.index("<table")


def test_head_shows_settings_of_the_run_without_secrets(tmp_path: Path) -> None:
    from arboretum.agents.engines.base import Completion, Engine, Request, Usage
    from arboretum.eval.models import GivenModel
    from arboretum.eval.results import report

    class Up(Engine):
        """Engine that always replies with "Up"."""

        def __init__(self) -> None:
            self.name, self.usage, self.pending = "up:m", Usage(), list[Request]()

        def submit(self, request: Request) -> None:
            self.pending.append(request)

        def collect(self) -> list[tuple[str, Completion]]:
            done, self.pending = self.pending, []
            return [(request.conversation, Completion("Up", "stop")) for request in done]

    suite = tmp_path / "moves.yaml"
    entries = "".join(
        f"  - {{name: {name}, env: {env}, tasks: 2, max_steps: 3, max_turns: {turns}, split: test}}\n"
        for name, env, turns in (("A", "TextSokoban-v0", 2), ("B", "TextFrozenLake-v0", 7))
    )
    suite.write_text(f"name: moves\nsampling: {{temperature: 0.5, top_p: 0.9}}\nentries:\n{entries}")
    arguments = ["eval", "moves.yaml", "--engine-arg", "api_key=sk-12345", "--engine-arg=headers={A: sk-6}"]
    arguments += ["--engine-arg", "extra={top: {api_key: sk-8}}", "--engine-arg", "authorization=sk-9"]
    arguments += ["--engine-arg=token=sk-10", "--engine-arg", 'extra={"hf_token": "sk-11"}']
    arguments += ["--base-url", "https://me:pa@ss@host:8/v1?token=sk-7#x", "--max-tokens", "77"]
    agents = [
        NamedAgent(
            "direct", GivenModel(Up()), sampling={"max_tokens": 77}, dialogue={"history": "window", "window": 3}
        )
    ]
    run = tmp_path / "run"
    for _ in range(2):  # The second call has nothing to play, and adds no session.
        with Path(os.devnull).open("w") as sink:
            evaluate(str(suite), agents, out=run, arguments=arguments, console=Console(file=sink))
    stored = (run / "run.json").read_text()
    page = (run / "report.html").read_text()
    for text in (stored, page):
        assert "sk-" not in text and "pa@ss" not in text and "me:pa" not in text
        assert "https://host:8/v1" in text and "api_key=***" in text
    assert page.count("arboretum eval moves.yaml") == 1 and stored.count('"started"') == 1
    assert "model m, engine Up" in page
    assert "temperature 0.5, top-p 0.9, at most 77 tokens a reply" in page
    assert "plain, history window of 3, one action a turn" in page
    assert "tasks of the environment, split test" in page
    assert "3 steps and 2 turns (A)" in page and "3 steps and 7 turns (B)" in page
    assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", page) and "python 3" in page

    (line,) = (run / "episodes.jsonl").read_bytes().splitlines()[:1]
    (run / "episodes.jsonl").write_bytes(line + b"\n")
    with Path(os.devnull).open("w") as sink:
        evaluate(str(suite), agents, out=run, arguments=["eval", "again"], console=Console(file=sink))
    assert "arboretum eval again" in (run / "report.html").read_text()
    manifest = json.loads(stored)  # as an older version wrote it
    for key in ("sessions", "settings", "entries"):
        del manifest[key]
    (run / "run.json").write_text(json.dumps(manifest))
    assert report([run]).complete


def test_head_names_the_origin_of_tasks(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arboretum.eval.planning import plan_suite
    from arboretum.eval.provenance import describe_run
    from arboretum.eval.suite import Entry, Suite

    suite = Suite("s", "", (Entry("homes", "TextALFWorld-v0", split="valid_unseen", max_steps=50),))
    real = plan_suite(suite, 1).facts
    monkeypatch.delenv("ARBORETUM_DATA")
    generated = plan_suite(suite, 1).facts
    for facts, origin in ((real, "the benchmark's files"), (generated, "generated homes")):
        head = dict(describe_run({"entries": facts}))
        assert head == {"limits of an episode": ["50 steps"], "data": [f"{origin}, split valid_unseen"]}


def test_head_names_planbench_files_and_limits_by_task(planbench: Path) -> None:
    from arboretum.eval.planning import plan_suite
    from arboretum.eval.provenance import describe_run
    from arboretum.eval.suite import Entry, Suite

    folder = {"data": str(planbench)}
    for kwargs, limit, split, files in (
        (folder, None, "planbench", "the benchmark's files"),
        (folder, 7, "planbench", "the benchmark's files"),
        ({"blocks": 3}, None, "test", "tasks of the environment"),
    ):
        entry = Entry("B", "TextBlocksworld-v0", kwargs, split=split, max_steps=limit, tasks=2)
        head = dict(describe_run({"entries": plan_suite(Suite("s", "", (entry,))).facts}))
        steps = f"{limit} steps" if limit else "steps by task" if kwargs is folder else "16 steps"
        assert head == {"limits of an episode": [steps], "data": [f"{files}, split {split}"]}


def test_score_of_all_or_nothing_has_the_interval_of_a_success_rate() -> None:
    """Of 6 of 8, worked by hand: (0.75 + z²/16 ± z √(0.75·0.25/8 + z²/256)) / (1 + z²/8) with z = 1.96."""
    from arboretum.eval.statistics import wilson
    from arboretum.eval.store import EpisodeKey, Result
    from arboretum.eval.suite import Entry, Suite
    from arboretum.eval.summary import Line, summarize

    def score_of(scores: list[float]) -> Line:
        results = {}
        for number, score in enumerate(scores):
            key = EpisodeKey("a", "E", f"task {number}", 0)
            results[key] = Result(key, 0, score == 1.0, 0.0, 1, 1, 0, False, 0.1, None, {"f1": score}, 0)
        entry = Entry("E", "E", score="f1")
        (line,) = summarize(Suite("s", "", (entry,)), ["a"], results, {"expected": {"E": len(scores)}}).lines
        return line

    line = score_of([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    assert line.score == pytest.approx((75.0, 40.93, 92.85), abs=0.005)
    assert line.score == pytest.approx([100 * bound for bound in line.success])
    assert score_of([1.0, 1.0, 1.0]).score == pytest.approx((100.0, 43.85, 100.0), abs=0.005)
    # The mean of 0, 0.5 and 1 has the half-width 4.303 · 0.5 / √3 = 1.242 of Student: n = 0.25 · (1.96 / 1.242)².
    size = 0.25 * (1.959964 / (4.302653 * 0.5 / 3**0.5)) ** 2
    assert score_of([0.0, 0.5, 1.0]).score == pytest.approx(
        [100 * one for one in wilson(size / 2, size)], abs=1e-3
    )
    # Scores of other ranges have the normal interval: 2 ± 1.96 · 1 / √3.
    assert score_of([1.0, 2.0, 3.0]).score == pytest.approx((200.0, 86.84, 313.16), abs=0.005)


def test_asked_agents_precede_references_in_tables_and_comparisons() -> None:
    from arboretum.eval.store import EpisodeKey, Result
    from arboretum.eval.suite import Entry, Suite
    from arboretum.eval.summary import summarize
    from arboretum.eval.table import fit_results, results_table

    names = ["random", "expert", "react:m", "think:m"]
    results = {}
    for agent in names:
        for task in ("a", "b", "c"):
            key = EpisodeKey(agent, "E", task, 0)
            success = agent == "expert"
            results[key] = Result(key, 0, success, -1.0, 1, 1, 0, False, 0.1, None, {}, 0)
    summary = summarize(Suite("s", "", (Entry("E", "E"),)), names, results, {"expected": {"E": 3}})
    assert summary.agents == ["react:m", "think:m", "random", "expert"]
    assert [line.agent for line in summary.lines] == summary.agents
    assert [(c.a, c.b) for c in summary.comparisons] == [
        ("react:m", "random"),
        ("think:m", "random"),
        ("react:m", "expert"),
        ("think:m", "expert"),
        ("think:m", "react:m"),
        ("expert", "random"),
    ]
    console = Console(width=80, file=io.StringIO())
    console.print(results_table(summary))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "–" not in text and " 0.0 to  56.1" in text
    lines = [
        replace(one, entry="TextBlocksworld-v0", agent=f"direct:my-{one.agent}-model") for one in summary.lines
    ]
    console = Console(width=80, file=io.StringIO())
    console.print(fit_results(replace(summary, lines=lines), 80))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(f"{line.agent}: success" in text for line in lines) and "TextBlocksworld-v0\n" in text


def test_negative_bounds_of_intervals_are_legible() -> None:
    from arboretum.eval.report import interval, make_templates
    from arboretum.eval.statistics import Interval

    assert interval(Interval(-0.1, -0.17, -0.006)) == "-17.0 to -0.6"
    assert make_templates().from_string("{{ x | interval }}").render(x=Interval(-0.1, -0.17, -0.006)) == (
        "−17.0 to −0.6"
    )


def test_intervals_of_one_task_are_no_infinities(tmp_path: Path) -> None:
    """One labelled task has regrets without an interval, which was shown from −inf to inf."""
    agents, sink = [NamedAgent("random")], Console(file=io.StringIO())
    scope = Scope(limit=1)
    evaluate("TextSokoban-v0", agents, scope=scope, out=tmp_path / "run", label_seconds=60, console=sink)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert 'id="decisions"' in page and "inf to" not in page and "– to –" not in page


def test_head_names_the_class_of_an_agent_of_the_caller() -> None:
    from arboretum.eval.provenance import describe_run

    head = dict(describe_run({"identities": {"mine": {"class": "module.Mine", "state": {"depth": 3}}}}))
    assert head == {"mine": ["class module.Mine"]}


def test_tasks_whose_group_is_empty_are_in_none() -> None:
    from arboretum.eval.store import EpisodeKey, Result
    from arboretum.eval.suite import Entry, Suite
    from arboretum.eval.summary import summarize

    results = {}
    for task, kind in (("a", "pick"), ("b", ""), ("c", None)):
        key = EpisodeKey("a", "E", task, 0)
        results[key] = Result(key, 0, True, 0.0, 1, 1, 0, False, 0.1, None, {"kind": kind}, 0)
    summary = summarize(
        Suite("s", "", (Entry("E", "E", group_by="kind"),)), ["a"], results, {"expected": {"E": 3}}
    )
    assert [line.group for line in summary.lines] == [None, "pick"]


def test_numbers_that_round_to_zero_have_no_sign() -> None:
    """A mean regret of -0.02 steps was printed as -0.0."""
    from arboretum.eval.report import number

    assert number(-0.02, 1) == "0.0" and number(-0.06, 1) == "-0.1"
    assert number(None) == number(float("nan")) == "–"


def test_differences_have_signs_and_minus_signs_that_are_no_dashes() -> None:
    from arboretum.eval.report import signed, signed_interval

    assert signed_interval(-66.81, -15.4) == "−66.8 to −15.4" and signed_interval(-0.04, 3.0) == "0.0 to +3.0"
    assert signed(float("nan")) == "–" and signed_interval(float("-inf"), float("inf")) == "−∞ to +∞"


@pytest.mark.heavy
def test_episode_replays_step_by_step_in_browser(page: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select, WebDriverWait

    set_width(browser, 390)
    browser.get(page.as_uri())
    wait = WebDriverWait(browser, 60)

    def text(id: str) -> str:
        return str(browser.find_element(By.ID, id).text)

    wait.until(lambda _: "Which one do you choose?" in text("turns"))
    assert HOSTILE in text("turns")  # shown as text, not run
    assert browser.title == "bandits · Arboretum report"

    Select(browser.find_element(By.ID, "entry")).select_by_visible_text("B")
    Select(browser.find_element(By.ID, "agent")).select_by_visible_text("expert")
    wait.until(lambda _: "1 / 1" in text("position"))
    assert "→" in text("turns") and "solved" in text("verdict")
    browser.find_element(By.ID, "next").click()
    assert text("position") == "end" and "points" in text("turns")
    browser.find_element(By.ID, "previous").click()
    assert text("position") == "1 / 1"
    browser.find_element(By.ID, "whole").click()
    assert "Turn 1" in text("turns") and "End" in text("turns")
    Select(browser.find_element(By.ID, "outcome")).select_by_value("unsolved")
    wait.until(lambda _: text("count") == "No episode with this outcome and task.")
    assert len(browser.find_elements(By.CSS_SELECTOR, ".mark")) == 4  # two agents on two entries
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_report_is_legible_and_fits_the_window(page: Path, browser: Any, width: int, scheme: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    set_width(browser, width, scheme)
    browser.get(page.as_uri())
    WebDriverWait(browser, 60).until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".turn"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    for table in browser.find_elements(By.CSS_SELECTOR, "#results, #comparisons"):
        card = table.find_element(By.XPATH, "..")
        assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", card)
    plot = browser.find_element(By.CSS_SELECTOR, ".plot").rect["width"]
    assert plot > 0.9 * browser.find_element(By.CSS_SELECTOR, "figure.card").rect["width"]
    clipped = """const card = document.querySelector("figure.card").getBoundingClientRect();
      return [...document.querySelectorAll(".label, .axis span")].filter(e => {
        const box = e.getBoundingClientRect(), overflows = e.scrollWidth > e.clientWidth + 1;
        return e.className === "label" && overflows || box.left < card.left || box.right > card.right;
      }).map(e => e.textContent)"""
    assert browser.execute_script(clipped) == []
    assert low_contrasts(browser) == {}
