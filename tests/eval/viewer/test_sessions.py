"""Play in the viewer: sessions, their number and their end, and whoever plays on."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.base import Reply, Seat
from arboretum.agents.reference import RandomAgent
from arboretum.agents.registry import make_agent
from arboretum.envs.bandit import Bandit
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.open_episode import own_class
from arboretum.envs.registry import ENVS, make_env
from arboretum.eval.store import read_results
from arboretum.eval.suite import Entry, Suite
from support.environments import break_bandit

SOLVED = '✓<span class="word"> solved</span>'
UNSOLVED = '✗<span class="word"> not solved</span>'

pytest.importorskip("flask")

from arboretum.eval.viewer.app import Site, create_app
from arboretum.eval.viewer.library import Library
from arboretum.eval.viewer.sessions import MAX_TURNS, Scenario, Sessions

ENTRY = Entry("TextSokoban-v0", "TextSokoban-v0", split="test")
SCENARIO = Scenario(ENTRY, Suite("s", "", (ENTRY,)))


@pytest.fixture(scope="module")
def site(run: Path) -> Site:
    return Site(Library(run.parent), {"dice": lambda suite, entry: make_agent("random")})


@pytest.fixture(scope="module")
def client(site: Site) -> Any:
    return create_app(site).test_client()


def post(client: Any, site: Site, address: str, **values: str) -> str:
    """Post to an address, and return the address to which it leads."""
    response = client.post(address, data={"token": site.token, **values})
    assert response.status_code == 303, response.get_data(as_text=True)
    return str(response.headers["Location"])


def page(client: Any, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    return str(response.get_data(as_text=True))


def test_action_with_control_characters_is_shown_with_symbols_and_posted_as_it_is(
    client: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bandit, "admissible_actions", lambda self: ("left\u200e\x1b arm",))
    address = post(client, site, "/play", env="TextBandit-v0", seed="3")
    assert 'value="left\u200e\x1b arm">left\ufffd\u241b arm</button>' in page(client, address)
    assert 'value="left\u200e\x1b arm"' in page(client, f"{address}/whatif")


def test_environment_that_fails_is_a_sentence_on_the_page(
    client: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: Any, task: str) -> Any:
        raise RuntimeError("the level file is damaged")

    monkeypatch.setattr(Bandit, "_open", lose)
    response = client.post("/play", data={"token": site.token, "env": "TextBandit-v0", "seed": "3"})
    text = response.get_data(as_text=True)
    assert (
        response.status_code == 400 and "opening the task failed: RuntimeError: the level file is damaged" in text
    )
    monkeypatch.setattr(Bandit, "__init__", lose)
    response = client.post("/play", data={"token": site.token, "env": "TextBandit-v0", "seed": "3"})
    assert response.status_code == 400 and "TextBandit-v0 cannot be made" in response.get_data(as_text=True)


@pytest.mark.parametrize("id", [spec.id for spec in ENVS])
def test_every_environment_can_be_played_from_the_start_to_success_by_the_expert(
    id: str, client: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    address = post(client, site, "/play", env=id, seed="3", split="test" if "ALF" not in id else "valid_seen") \
        if id != "TextSearchQA-v0" else post(client, site, "/play", env=id, seed="3")  # fmt: skip
    text = page(client, address)
    choices = re.findall(r'name="action" value="([^"]*)"', text)
    assert bool(choices) is (id != "TextSearchQA-v0") and 'name="action"' in text
    for _ in range(3):  # The lake is slippery.
        post(client, site, address, do="play", actor="expert", turns="all")
        text = page(client, address)
        if SOLVED in text:
            break
        address = post(client, site, f"{address}/again")
    assert SOLVED in text or id in ("TextFrozenLake-v0",)


def test_person_acts_is_refused_and_takes_actions_back(client: Any, site: Site) -> None:
    address = post(client, site, "/play", env="TextSokoban-v0", task="test/3", seed="1", options="max_steps=9")
    before = page(client, address)
    assert "step 0 of 9" in before
    post(client, site, address, do="act", action="Fly <b>away</b>")
    refused = page(client, address)
    assert "Refused" in refused and "Fly &lt;b&gt;away&lt;/b&gt;" in refused and "step 1 of 9" in refused
    post(client, site, address, do="undo")
    assert page(client, address) == before
    for _ in range(9):
        post(client, site, address, do="act", action="Up")
    assert UNSOLVED in page(client, address)


def test_play_goes_on_from_a_state_of_an_episode(client: Any, site: Site, run: Path) -> None:
    result = next(
        r for r in read_results(run).latest.values() if r.key[:2] == ("expert", "Sokoban") and r.steps >= 3
    )
    address = post(client, site, f"/continue/{result.offset}/small", at="2")
    text = page(client, address)
    assert "step 2 of 30" in text and f"/episode/{result.offset}/small?at=2" in text
    post(client, site, address, do="play", actor="expert", turns="all")
    assert SOLVED in page(client, address) and f"step {result.steps} of 30" in page(client, address)
    picture = client.get(f"{address}/0.png").data
    assert picture == client.get(f"/picture/{result.offset}/2/small").data


def test_agents_play_turn_by_turn(client: Any, site: Site) -> None:
    address = post(client, site, "/play", env="TextSokoban-v0", task="test/3", seed="1")
    for _ in range(2):
        post(client, site, address, do="play", actor="dice", turns="1")
    text = page(client, address)
    assert "step 2 of 100" in text and text.count('<span class="soft">dice</span>') == 2
    post(client, site, address, do="play", actor="nobody", turns="1")
    assert "there is no agent" in page(client, address)


def test_agent_plays_on_after_the_environment_has_failed_once(
    client: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a search that finds no server: the episode that broke off was never left."""
    address = post(client, site, "/play", env="TextBandit-v0", task="Teacher/Trader", seed="1")
    with monkeypatch.context() as patch:
        break_bandit(patch)
        post(client, site, address, do="play", actor="dice", turns="1")
        assert "dice stopped: the environment failed: ConnectionError" in page(client, address)
    post(client, site, address, do="play", actor="dice", turns="1")
    text = page(client, address)
    assert "stopped" not in text and "step 1" in text


class Unreliable(RandomAgent):
    """Agent that fails in its first turn, like a server that is being restarted, and counts its episodes."""

    name = "unreliable"

    def __init__(self) -> None:
        self.begun = self.ended = self.turns = 0

    def begin(self, seat: Seat) -> None:
        self.begun += 1
        seat.memory = []

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        self.turns += 1
        for seat in seats:
            assert not seat.memory, "the request of a turn that failed is part of the conversation"
            seat.memory.append("request")
        if self.turns == 1:
            raise ConnectionError("the server does not answer")
        for seat in seats:
            seat.memory.clear()
        return super().act(seats)

    def end(self, seat: Seat) -> None:
        self.ended += 1


def test_failure_of_the_environment_is_a_remark_and_the_state_stays(
    client: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = post(client, site, "/play", env="TextBandit-v0", task="Teacher/Trader", seed="1")
    with monkeypatch.context() as patch:
        break_bandit(patch)
        for form in ({"do": "act", "action": "Teacher"}, {"do": "play", "actor": "expert", "turns": "all"}):
            post(client, site, address, **form)
            text = page(client, address)
            assert "the environment failed: ConnectionError" in text and "step 0" in text
    post(client, site, address, do="act", action="Teacher")
    assert "failed" not in page(client, address) and "step 1" in page(client, address)


def test_agent_that_failed_begins_anew_and_every_episode_of_an_agent_is_ended() -> None:
    agent = Unreliable()
    sessions = Sessions({"unreliable": lambda suite, entry: agent})
    session = sessions.start(SCENARIO, "test/3", 0)
    sessions.play(session, "unreliable", 1)
    assert session.message.startswith(
        "unreliable failed: ConnectionError: the server does not answer (test_sessions.py"
    )
    sessions.play(session, "unreliable", 2)
    assert session.message == "" and len(session.frames) == 3
    session.act("Up")
    sessions.play(session, "unreliable", 1)
    session.undo()
    sessions.play(session, "unreliable", 1)
    assert (agent.begun, agent.ended) == (4, 3)


def test_shipped_model_plays_on_from_a_state_of_another_agent_s_episode(run: Path) -> None:
    pytest.importorskip("torch")
    from arboretum.eval.agents import open_agents
    from arboretum.eval.model_options import ModelOptions
    from arboretum.eval.viewer.command import agent_makers

    with open_agents(("no_think",), **vars(ModelOptions(model="sapling", device="cpu"))) as factories:
        site = Site(Library(run.parent), agent_makers(factories))
        client = create_app(site).test_client()
        result = next(r for r in read_results(run).latest.values() if r.key[:2] == ("random", "Sokoban"))
        address = post(client, site, f"/continue/{result.offset}/small", at="1")
        post(client, site, address, do="play", actor="no_think:sapling", turns="1")
        text = page(client, address)
        assert "&lt;answer&gt;" in text and '<span class="soft">no_think:sapling</span>' in text
        post(client, site, address, do="act", action="Up")
        post(client, site, address, do="play", actor="no_think:sapling", turns="all")
        assert "failed" not in page(client, address)


def test_start_with_what_does_not_exist_is_refused_in_a_sentence(client: Any, site: Site) -> None:
    for values, sentence in (
        ({"env": "os:system"}, "there is no environment"),
        ({"env": "TextSokoban-v0", "task": "none"}, "task"),
        ({"env": "TextSokoban-v0", "seed": "-1"}, "seed must be a non-negative integer"),
        ({"env": "TextSokoban-v0", "options": "size"}, "options takes key=value"),
        ({"env": "TextSokoban-v0", "options": "size=900"}, "size must be an integer from 5 to 24"),
        ({"env": "TextSokoban-v0", "split": "nope"}, "split"),
    ):
        response = client.post("/play", data={"token": site.token, **values})
        assert response.status_code == 400 and sentence in response.get_data(as_text=True)


def test_environment_without_snapshots_is_refused_in_a_sentence(
    client: Any, site: Site, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env("TextSokoban-v0")
    monkeypatch.setattr(own_class(type(env)), "snapshot", None)
    sentence = "Sokoban has no snapshots, so the viewer can neither go to its states nor play it"
    response = client.post("/play", data={"token": site.token, "env": "TextSokoban-v0"})
    assert response.status_code == 400 and sentence in response.get_data(as_text=True)
    offset = next(iter(read_results(run).latest.values())).offset
    assert sentence in page(create_app(Site(site.library, {})).test_client(), f"/episode/{offset}/{run.name}")
    env.reset(seed=0)
    with pytest.raises(ConfigurationError, match=r"cannot be copied or pickled; copy it before reset\(\)"):
        copy.deepcopy(env)


def test_number_of_sessions_is_bounded_and_the_least_recent_ends() -> None:
    sessions = Sessions({}, limit=3)
    keys = [sessions.start(SCENARIO, f"test/{n}", 0).key for n in range(3)]
    assert sessions.get(keys[0]) is not None  # used now
    sessions.start(SCENARIO, "test/3", 0)
    assert len(sessions) == 3
    assert sessions.get(keys[1]) is None and sessions.get(keys[0]) is not None


def test_idle_sessions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions({}, idle_seconds=60.0)
    session = sessions.start(SCENARIO, "test/0", 0)
    session.last_used -= 59
    assert sessions.get(session.key) is session
    session.last_used -= 61
    assert sessions.get(session.key) is None and len(sessions) == 0


def test_session_takes_a_bounded_number_of_turns() -> None:
    entry = Entry("s", "TextSokoban-v0", split="test", kwargs={"max_steps": None})
    session = Sessions({}).start(Scenario(entry, SCENARIO.suite), "test/0", 0)
    for _ in range(MAX_TURNS + 5):
        session.act("Up")
    assert len(session.frames) == MAX_TURNS + 1
