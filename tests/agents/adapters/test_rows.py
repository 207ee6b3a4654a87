"""Tasks, seeds and replies as all adapters take them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from arboretum.agents.adapters.rows import end_reply, open_tasks
from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env
from arboretum.eval.planning import plan_suite
from arboretum.eval.suite import suite_of


@pytest.mark.parametrize("env", ["TextSokoban-v0", "TextBoxoban-v0"])
def test_tasks_and_seeds_are_those_of_an_evaluation(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)  # TextBoxoban-v0 has generated data.
    plan = plan_suite(suite_of(env).with_settings(seed=3), limit=4)
    (entry,) = plan.suite.entries
    rows = open_tasks(env, 4, make_dialogue("think"), seed=3, **entry.kwargs, split=entry.split)
    expected = [(task, plan.suite.episode_seed(entry, task, 0)) for task in plan.tasks[entry.name]]
    assert [(row.task, row.seed) for row in rows] == expected and len(rows) == 4
    chat = EpisodeChat(make_env(env, split=entry.split), make_dialogue("think"))
    opening = chat.open(rows[1].task, rows[1].seed)
    assert rows[1].messages == [message._asdict() for message in opening]


def test_fewer_tasks_than_asked_for_are_all_returned() -> None:
    assert 0 < len(open_tasks("TextBandit-v0", 5000, make_dialogue("plain"))) < 5000


def test_tasks_of_a_truncated_history_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match='set history="full"'):
        open_tasks("TextBandit-v0", 1, make_dialogue("plain", {"history": "single"}))


@pytest.mark.parametrize(
    ("text", "cut", "reply"),
    [
        ("<think>a</think><answer>Up</answer> Done.", False, "<think>a</think><answer>Up</answer>"),
        ("<think>a</think><answer>Up", False, "<think>a</think><answer>Up</answer>"),
        ("<think>a</think><answer>Up", True, "<think>a</think><answer>Up"),
        ("no format", False, "no format"),
    ],
)
def test_reply_ends_with_its_stop_text(text: str, cut: bool, reply: str) -> None:
    assert end_reply(text, make_dialogue("think"), cut=cut) == reply


def test_import_is_light() -> None:
    code = "import arboretum.agents.adapters.rows, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "transformers", "aiohttp", "openai", "flask"} & set(loaded.split())
