"""Remote sessions: episodes requested as plain data are those of the environment, and states restore them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from arboretum.agents.adapters.remote import MAX_LISTED, Session, SessionTasks
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.envs.registry import make_env
from support.environments import embedded_data  # noqa: F401

pytestmark = pytest.mark.usefixtures("embedded_data")


@pytest.mark.parametrize("id", ["TextSokoban-v0", "TextFrozenLake-v0", "TextWebShop-v0"])
def test_session_plays_the_episode_of_the_environment(id: str) -> None:
    session, env = Session(id, {}), make_env(id)
    opened = session.open({"seed": 4, "task": None})
    assert (opened.observation, opened.info) == env.reset(seed=4)
    assert opened.reward is None and session.state()["task"] == env.task
    for action in [*(env.expert_actions() or ())[:3], "nonsense"]:
        assert tuple(session.step(action)) == env.step(action)


class Measured(FrozenLake):
    """Lake whose `info` has NumPy's values."""

    def _details(self) -> dict[str, Any]:
        return {"depth": np.float32(0.5), "board": np.arange(3)}


def test_values_of_numpy_are_plain_in_replies() -> None:
    session = Session(f"{__name__}:Measured", {})
    for result in (session.open({"seed": 1}), session.step("Right")):
        assert json.loads(json.dumps(result.info))["board"] == [0, 1, 2] and result.info["depth"] == 0.5


def test_injected_state_continues_identically_with_chance() -> None:
    session, other = Session("TextFrozenLake-v0", {}), Session("TextFrozenLake-v0", {})
    session.open({"seed": 11})
    results = [session.step(action) for action in ("Right", "Down", "Left", "Left")]
    state = json.loads(json.dumps(session.state()))
    restored = other.open({"injected_state": state})
    assert restored == results[-1] and other.state() == state
    assert [other.step("Left") for _ in range(3)] == [session.step("Left") for _ in range(3)]


def test_steps_after_the_end_are_not_part_of_the_state() -> None:
    session = Session("TextBandit-v0", {})
    session.open({"task": "Teacher/Trader", "seed": 1})
    for action in ("Trader", "Trader", "Teacher"):
        session.step(action)
    assert session.state()["actions"] == ["Trader"]


def test_tasks_are_listed_and_opened_by_index() -> None:
    tasks = SessionTasks()
    tasks.session = Session("TextSokoban-v0", {"split": "test"})
    assert tasks.list_splits() == ["test"] and tasks.num_tasks("test") == 2**31
    assert tasks.get_task("test", 7) == {"id": "test/7", "index": 7}
    assert tasks.get_task_range("test", 3, 5) == [{"id": "test/3", "index": 3}, {"id": "test/4", "index": 4}]
    assert len(tasks.list_tasks("test")) == MAX_LISTED
    assert tasks.session.open({"split": "test", "index": 7, "seed": 0}).info["task"] == "test/7"
    with pytest.raises(IndexError):
        tasks.get_task("test", 2**31)
    with pytest.raises(ConfigurationError, match="unknown split 'train'"):
        tasks.num_tasks("train")


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"tsak": "any/1"}, "unknown field `tsak`"),
        ({"seed": -1}, "expected a whole number >= 0, at `seed`"),
        ({"seed": "one"}, "at `seed`"),
        ({"task": "nowhere"}, "unknown task 'nowhere'"),
        ({"index": 10**12}, "task index 1000000000000 is outside"),
        ({"split": "train"}, "unknown split 'train'"),
        ({"injected_state": {"task": "any/1"}}, "lacks the field `seed`"),
        ({"injected_state": {"task": "any/1", "seed": 1, "env": "TextBandit-v0"}}, "is of TextBandit-v0"),
        ({"injected_state": {"task": "any/1", "seed": 1, "actions": ["x"] * 101}}, "ended after 100"),
    ],
)
def test_bad_request_is_refused_and_the_session_goes_on(request_: dict[str, Any], problem: str) -> None:
    session = Session("TextSokoban-v0", {})
    with pytest.raises(ConfigurationError, match=problem):
        session.open(request_)
    assert session.open({"seed": 1}).info["task"]
