"""Pages of the viewer, by requests to the application: contents, escaping, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import arboretum
from arboretum.agents.base import Agent, Reply, Seat
from arboretum.envs.frozenlake import FrozenLake
from arboretum.eval.results import report
from arboretum.eval.store import Result, read_episode, read_results
from support.viewer import HOSTILE, make_run

SOLVED = '✓<span class="word"> solved</span>'
UNSOLVED = '✗<span class="word"> not solved</span>'

pytest.importorskip("flask")

from arboretum.eval.viewer import leaderboard
from arboretum.eval.viewer.app import Site, create_app
from arboretum.eval.viewer.leaderboard import boards
from arboretum.eval.viewer.library import EvaluationRun, Library


@pytest.fixture(scope="module")
def site(run: Path) -> Site:
    return Site(Library(run.parent), {})


@pytest.fixture(scope="module")
def client(site: Site) -> Any:
    return create_app(site).test_client()


def results(run: Path) -> dict[tuple[str, str, str], Result]:
    return {(r.key.agent, r.key.entry, r.key.task): r for r in read_results(run).latest.values()}


def first(run: Path, agent: str, entry: str) -> Result:
    return next(r for (a, e, _), r in results(run).items() if (a, e) == (agent, entry))


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.get_data(as_text=True)
    return str(response.get_data(as_text=True))


def test_leaderboard_names_agents_with_their_rates_the_best_first(client: Any) -> None:
    page = text_of(client.get("/"))
    order = re.findall(r'<a href="/run/small\?agent=(\w+)">', page)
    assert order[0] in ("expert", "hostile") and order[-1] == "random" and len(order) == 3
    assert page.count("100.0") >= 2


def test_runs_on_other_tasks_have_a_leaderboard_of_their_own(tmp_path: Path) -> None:
    suite = "name: small\nentries: [{name: Lake, env: TextFrozenLake-v0, tasks: %d, kwargs: {size: %d}}]\n"
    for name, (tasks, size) in {"a": (2, 3), "b": (2, 5), "c": (1, 3), "d": (2, 3)}.items():
        make_run(tmp_path / name, suite % (tasks, size))
    page = text_of(create_app(Site(Library(tmp_path), {})).test_client().get("/"))
    first, second = (re.findall(r'"/run/(\w)/', board) for board in page.split("<section")[1:])
    assert (set(first), set(second)) == ({"a", "c", "d"}, {"b"})
    assert page.count("Other tasks: Lake: kwargs.size was 3 and is 5") == 1


@pytest.mark.parametrize("name", ["model", "checkpoints/100"])
def test_run_is_found_in_a_folder_of_any_name(run: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(run, tmp_path / name)
    assert list(Library(tmp_path).found()) == [name]


class _SecondTry(Agent):
    """Agent that gives up in its first trial, and solves the task in the second one."""

    name = "second"
    one_process = True

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [
            Reply((seat.env.expert_actions()[0],)) if seat.episode.trials else Reply(("Left",), quit="gave up")
            for seat in seats
        ]

    def again(self, seat: Seat) -> bool:
        return not seat.episode.success


def test_every_trial_has_its_own_outcome(tmp_path: Path) -> None:
    arboretum.evaluate("TextSokobanEasy-v0", _SecondTry(), limit=1, out=tmp_path / "second")
    client = create_app(Site(Library(tmp_path), {})).test_client()
    (result,) = (r for r in read_results(tmp_path / "second").latest.values() if r.key.agent == "second")
    first, last = (text_of(client.get(f"/episode/{result.offset}/second?trial={k}&at=999")) for k in (0, 1))
    assert first.count(UNSOLVED) == 2 and SOLVED not in first and "1 steps" in first
    assert last.count(SOLVED) == 2 and UNSOLVED not in last and f"{result.steps} steps" in last


def test_results_of_a_finished_run_with_repeats_are_those_of_its_summary(tmp_path: Path) -> None:
    """They may be too many to be computed for a page, so the page must not depend on the episodes."""
    suite = "name: small\nentries: [{name: Lake, env: TextFrozenLake-v0, split: test, tasks: 2, repeats: 2}]\n"
    run = make_run(tmp_path, suite)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert all(line["repeats"] for line in summary["lines"])
    summary["lines"][0]["success"]["value"] = 0.123
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert "12.3" in text_of(create_app(Site(Library(run), {})).test_client().get("/"))


def test_summary_that_is_written_after_the_last_episode_appears(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page between the two left a large run without returns and steps until the viewer was started again."""
    monkeypatch.setattr(leaderboard, "LARGE", 1)
    copy = Path(shutil.copytree(run, tmp_path / "small"))
    summary = (copy / "summary.json").read_bytes()
    (copy / "summary.json").unlink()
    client = create_app(Site(Library(copy), {})).test_client()
    assert '<td class="wide">–</td>' in text_of(client.get("/run/small"))
    (copy / "summary.json").write_bytes(summary)
    assert '<td class="wide">–</td>' not in text_of(client.get("/run/small"))


def test_run_that_was_kept_without_its_episodes_has_the_results_of_its_summary(run: Path, tmp_path: Path) -> None:
    copy = Path(
        shutil.copytree(run, tmp_path / "kept", ignore=shutil.ignore_patterns("episodes.jsonl*", "index*"))
    )
    lines = json.loads((copy / "summary.json").read_text(encoding="utf-8"))["lines"]
    (found,) = boards([EvaluationRun("kept", copy)])
    assert {row.agent for row in found.rows} == {line["agent"] for line in lines}
    rates = [row.mean for row in found.rows]
    assert rates == sorted(rates, reverse=True) and rates[0] == 1.0


def test_many_runs_are_listed_without_an_open_file_for_each(run: Path, tmp_path: Path) -> None:
    """Systems allow a process 256 or 1024 open files."""
    resource = pytest.importorskip("resource", reason="needs limits of open files, which Windows has not")
    names = [f"run-{number}" for number in range(48)]
    for name in names:
        shutil.copytree(run, tmp_path / name)
    client = create_app(Site(Library(tmp_path), {})).test_client()
    client.get(f"/run/{names[0]}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 24, hard))
    try:
        page = text_of(client.get("/"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(name in page for name in names)


@pytest.mark.parametrize("name", ["実験　一", "a\u00a0b", "q\u200dz"])
def test_runs_are_listed_whatever_spaces_their_names_have(name: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / name)
    assert list(Library(tmp_path).found()) == [name] == list(Library(tmp_path / name).found())
    client = create_app(Site(Library(tmp_path), {})).test_client()
    assert name in text_of(client.get("/")) and client.get(f"/run/{quote(name)}").status_code == 200


def test_summary_of_fewer_episodes_is_not_shown_in_a_copy_whose_times_say_nothing(
    run: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "small"))
    lines = (copy / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    complete = (copy / "summary.json").read_bytes()
    (copy / "episodes.jsonl").write_bytes(b"".join(lines[:5]))
    report([copy])
    assert (copy / "summary.json").read_bytes() != complete
    (copy / "episodes.jsonl").write_bytes(b"".join(lines))
    os.utime(copy / "summary.json")
    shown = [text_of(create_app(Site(Library(one), {})).test_client().get("/run/small")) for one in (run, copy)]
    assert shown[0] == shown[1]


def test_list_filters_sorts_and_pages(client: Any, run: Path) -> None:
    every = text_of(client.get("/run/small"))
    assert every.count("data-row") == 18
    experts = text_of(client.get("/run/small?agent=expert&entry=Sokoban"))
    assert experts.count("data-row") == 3 and "3 episodes" in experts
    found = text_of(client.get("/run/small?agent=expert&entry=Sokoban&task=TEST/1"))
    assert found.count("data-row") == 1 and ">test/1</a>" in found
    steps = [r.steps for r in results(run).values()]
    page = text_of(client.get("/run/small?sort=-steps"))
    shown = [int(cells[1]) for cells in re.findall(r"<td>([^<]*)</td><td>(\d+)</td>", page)]
    assert shown == sorted(steps, reverse=True)
    assert text_of(client.get("/run/small?outcome=error")).count("data-row") == 0
    for values in ("page=99999999999999999999", "page=-3", "sort=nonsense", "outcome=x&page=x", "agent=%00%ff"):
        assert client.get(f"/run/small?{values}").status_code == 200


def test_episode_can_be_stepped_through_to_its_recorded_end(client: Any, run: Path) -> None:
    result = first(run, "expert", "Sokoban")
    address = f"/episode/{result.offset}/small"
    for at in range(result.steps + 1):
        page = text_of(client.get(f"{address}?at={at}"))
        assert f"/picture/{result.offset}/{at}/small" in page
        picture = client.get(f"/picture/{result.offset}/{at}/small")
        assert picture.data.startswith(b"\x89PNG") and picture.mimetype == "image/png"
    assert "<h2>End</h2>" in page and SOLVED in page
    assert client.get(f"/picture/{result.offset}/{result.steps + 1}/small").status_code == 404


def test_expert_takes_optimal_decisions_only_and_the_random_agent_does_not(client: Any, run: Path) -> None:
    expert, random = first(run, "expert", "Sokoban"), first(run, "random", "Sokoban")
    found = client.get(f"/marks/{expert.offset}/small").json
    assert found == {"marks": [["optimal", ""]] * expert.steps, "reason": ""}
    found = client.get(f"/marks/{random.offset}/small").json
    kinds = [quality for quality, _ in found["marks"]]
    assert len(kinds) == random.steps and "costly" in kinds and found["reason"]
    lost = kinds.index("fatal") if "fatal" in kinds else None
    assert lost is None or set(kinds[lost + 1 :]) <= {None}, "after a fatal decision there is nothing left to lose"


def test_what_if_lists_every_action_with_the_expert_s_first(client: Any, run: Path) -> None:
    result = first(run, "expert", "Sokoban")
    page = text_of(client.get(f"/whatif/{result.offset}/small?at=0"))
    kinds = re.findall(r'<li class="(\w+)( taken)?">', page)
    assert len(kinds) == 4 and kinds[0][0] == "optimal"
    assert sum(bool(taken) for _, taken in kinds) == 1
    assert f"Optimal play succeeds in {result.steps} step" in page


def test_slippery_steps_are_judged_by_all_outcomes(client: Any, run: Path) -> None:
    """The optimum after an action of the lake is an expectation, so that its best action has no regret."""
    for agent in ("expert", "random"):
        result = first(run, agent, "Lake")
        found = client.get(f"/marks/{result.offset}/small").json["marks"]
        if agent == "expert":
            assert found == [["optimal", ""]] * result.steps
        page = text_of(client.get(f"/whatif/{result.offset}/small?at=0"))
        assert page.count("on average") >= 3 and '<li class="optimal' in page


def test_two_agents_stand_side_by_side(client: Any, run: Path) -> None:
    a, b = first(run, "expert", "Sokoban"), first(run, "random", "Sokoban")
    page = text_of(client.get(f"/pair/small?a={a.offset}&b={b.offset}&at=1"))
    assert f"/picture/{a.offset}/1/small" in page and f"/picture/{b.offset}/1/small" in page


def test_agents_of_another_run_of_the_same_suite_are_offered_for_comparison(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "first")
    shutil.copytree(run, tmp_path / "later" / "second")
    client = create_app(Site(Library(tmp_path), {})).test_client()
    result = first(run, "expert", "Lake")
    page = text_of(client.get(f"/episode/{result.offset}/first"))
    assert page.count("side by side") == 5  # two other agents in one run, and three in the other
    address = f"/pair/first?a={result.offset}&amp;b={result.offset}&amp;other=later%2Fsecond"
    assert address in page or address.replace("%2F", "/") in page
    page = text_of(client.get(f"/pair/first?a={result.offset}&b={result.offset}&other=later/second"))
    assert f"/picture/{result.offset}/0/first" in page and f"/picture/{result.offset}/0/later/second" in page


def test_environment_that_cannot_be_made_leaves_the_texts(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "small")
    for name in ("run.json", ".run.json"):
        manifest = json.loads((tmp_path / "small" / name).read_text())
        manifest["suite"]["entries"][0]["env"] = "TextGone-v0"
        (tmp_path / "small" / name).write_text(json.dumps(manifest))
    client = create_app(Site(Library(tmp_path), {})).test_client()
    result = first(tmp_path / "small", "expert", "Sokoban")
    page = text_of(client.get(f"/episode/{result.offset}/small?at=1"))
    assert "TextGone-v0" in page and "######" in page
    assert client.get(f"/marks/{result.offset}/small").json["marks"] == [[None, ""]] * result.steps


def test_environment_that_draws_its_levels_leaves_the_texts_and_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level that is opened again, after that of another page, is another one."""
    open_level = FrozenLake._open

    def draw(self: FrozenLake, task: str) -> int:
        vars(self)["drawn"] = self.np_random.random()
        return open_level(self, task)

    monkeypatch.setattr(FrozenLake, "_open", draw)
    monkeypatch.setattr(FrozenLake, "_level_content", lambda self: vars(self)["drawn"])
    site = Site(Library(run.parent), {})
    client = create_app(site).test_client()
    one, other, _ = (r for (agent, entry, _), r in results(run).items() if (agent, entry) == ("expert", "Lake"))
    for result in (one, other):
        assert 'id="fault"' not in text_of(client.get(f"/episode/{result.offset}/{run.name}"))
    sentence = "FrozenLake does not restore its own states; its _open must not draw random numbers"
    refused = client.get(f"/whatif/{other.offset}/{run.name}")
    assert refused.status_code == 400 and sentence in refused.get_data(as_text=True)
    page = text_of(client.get(f"/episode/{one.offset}/{run.name}?at=1"))
    assert f"States cannot be shown beyond step 0: {sentence}" in page
    assert read_episode(run, one).turns[1].observation in page and "/picture/" not in page
    assert 'id="fault"' in text_of(client.get(f"/episode/{other.offset}/{run.name}"))


def test_another_site_s_name_for_this_machine_is_refused(site: Site) -> None:
    """DNS rebinding: a page of another site whose name leads to loopback must not read the runs."""
    import http.client

    from arboretum.envs.web_server import WebServer

    pytest.importorskip("waitress")
    server = WebServer(create_app(site), "The viewer", "127.0.0.1", 0, threads=1)
    server.start()
    try:
        for host, status in (("evil.example", 403), (f"localhost:{server.port}", 200)):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            connection.request("GET", "/", headers={"Host": host})
            assert connection.getresponse().status == status
            connection.close()
    finally:
        server.stop()


def test_hostile_texts_are_shown_as_text(client: Any, run: Path) -> None:
    for entry in ("Sokoban", "Lake"):
        result = first(run, "hostile", entry)
        for at in (0, 1, result.steps):
            page = text_of(client.get(f"/episode/{result.offset}/small?at={at}"))
            assert HOSTILE not in page and "<script>document" not in page and "<img src=x" not in page
            assert "\x1b" not in page and "\u202e" not in page
            assert ("{{ 7 * 7 }}" in page) is (at < result.steps)
    page = text_of(client.get(f"/episode/{result.offset}/small?at=0"))
    assert "&lt;script&gt;" in page and "␛[31m" in page and "refused" in page


def test_pages_have_no_inline_script_or_style_and_a_strict_policy(client: Any, run: Path) -> None:
    result = first(run, "hostile", "Sokoban")
    for address in (
        "/",
        "/play",
        "/run/small",
        f"/episode/{result.offset}/small",
        f"/whatif/{result.offset}/small",
    ):
        response = client.get(address)
        page = text_of(response)
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert not re.search(r"<script(?! src=\"/static/)|<style|\sstyle=|\son\w+=\"|javascript:", page)
        assert not re.search(r"""(src|href|action)=["'](https?:)?//""", page)
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_requests_that_change_something_need_the_token(client: Any, site: Site) -> None:
    values = {"env": "TextSokoban-v0"}
    for token in ({}, {"token": ""}, {"token": "wrong"}, {"token": "é"}):
        assert client.post("/play", data={**values, **token}).status_code == 403
    assert client.post("/play", data={**values, "token": site.token}).status_code == 303
    for method in (client.put, client.delete, client.patch):
        assert method("/run/small", data={"token": site.token}).status_code == 405


@pytest.mark.parametrize(
    "address",
    [f"/episode/{10**22}/small", f"/marks/{10**22}/small",
     "/nonsense", "/run/none", "/run/../small", "/run/..%2f..%2fetc", "/episode/1/small", "/episode/0/none",
     "/episode/99999999999/small", "/picture/0/99/small", "/play/none", "/static/..%2fsite.css",
     "/static/base.html", "/static/none.css", "/episode/0/small?trial=7"],
)  # fmt: skip
def test_unknown_addresses_are_answered_with_404(client: Any, address: str) -> None:
    assert client.get(address).status_code == 404


def test_folder_without_runs_says_so(tmp_path: Path) -> None:
    page = text_of(create_app(Site(Library(tmp_path), {})).test_client().get("/"))
    assert "There are no runs in this folder yet" in page


def test_run_itself_can_be_opened(run: Path) -> None:
    client = create_app(Site(Library(run), {})).test_client()
    assert "/run/small" in text_of(client.get("/")) and client.get("/run/small").status_code == 200


def test_damaged_runs_are_named_and_others_remain(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "whole")
    shutil.copytree(run, tmp_path / "lines")
    shutil.copytree(run, tmp_path / "settings")
    shutil.copytree(run, tmp_path / "values")
    (tmp_path / "settings" / "run.json").write_text("{")
    (tmp_path / "settings" / ".run.json").unlink()
    lines = (tmp_path / "lines" / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "lines" / "episodes.jsonl").write_bytes(b"".join([b'{"broken\n', *lines[1:], lines[0][:40]]))
    manifest = json.loads((tmp_path / "values" / "run.json").read_text())
    manifest["suite"]["entries"] = [{"env": 7}]
    for name in ("run.json", ".run.json"):
        (tmp_path / "values" / name).write_text(json.dumps(manifest))
    client = create_app(Site(Library(tmp_path), {})).test_client()
    page = text_of(client.get("/"))
    assert "Cannot be read" in page and "/run/whole" in page and "/run/lines" in page
    assert re.search(r"<strong>settings</strong>", page) and re.search(r"<strong>values</strong>", page)
    page = text_of(client.get("/run/lines"))
    assert "line 1" in page and page.count("data-row") == 17
    assert client.get("/run/settings").status_code == 500


def test_index_of_another_program_is_named_and_other_runs_remain(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "whole")
    shutil.copytree(run, tmp_path / "foreign", ignore=shutil.ignore_patterns("index.sqlite", "summary.json"))
    with sqlite3.connect(tmp_path / "foreign" / "index.sqlite") as connection:
        connection.execute("CREATE TABLE mine (text TEXT)")
    connection.close()
    page = text_of(create_app(Site(Library(tmp_path), {})).test_client().get("/"))
    assert "/run/whole" in page and "is a database of another program" in page


def test_lost_and_damaged_indexes_of_an_open_run_are_made_anew(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "small")
    client = create_app(Site(Library(tmp_path), {})).test_client()
    lines = (folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    for damage in (None, b"", b"damage" * 2000):
        assert text_of(client.get("/run/small")).count("data-row") == 18
        (folder / "index.sqlite").unlink()
        if damage is not None:
            (folder / "index.sqlite").write_bytes(damage)
        (folder / "episodes.jsonl").write_bytes(b"".join(lines[:7]))
        assert text_of(client.get("/run/small")).count("data-row") == 7
        (folder / "episodes.jsonl").write_bytes(b"".join(lines))


def test_other_data_than_in_the_run_end_the_replay_with_a_sentence(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "small")
    for name in ("run.json", ".run.json"):
        manifest = json.loads((tmp_path / "small" / name).read_text())
        manifest["suite"]["entries"][0]["kwargs"] = {"vocabulary": "new"}
        (tmp_path / "small" / name).write_text(json.dumps(manifest))
    client = create_app(Site(Library(tmp_path), {})).test_client()
    result = first(tmp_path / "small", "expert", "Sokoban")
    page = text_of(client.get(f"/episode/{result.offset}/small"))
    assert "answers differently than it did in the run" in page and "Play on from here" not in page
    assert client.get(f"/picture/{result.offset}/0/small").status_code == 404
    assert client.get(f"/marks/{result.offset}/small").json["marks"] == [[None, ""]] * result.steps


def test_episodes_that_are_appended_appear(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "small")
    path = tmp_path / "small" / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))
    client = create_app(Site(Library(tmp_path), {})).test_client()
    page = text_of(client.get("/run/small"))
    assert page.count("data-row") == 5 and "data-live" in page
    with path.open("ab") as file:
        file.write(lines[5] + lines[6][:30])
    assert text_of(client.get("/run/small")).count("data-row") == 6
    with path.open("ab") as file:
        file.write(lines[6][30:] + b"".join(lines[7:]))
    page = text_of(client.get("/run/small"))
    assert page.count("data-row") == 18 and "data-live" not in page
