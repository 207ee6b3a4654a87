"""Comparison of the engine with recordings of the original, and of plans with those in real game files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from arboretum.envs.alfworld import rules
from arboretum.envs.alfworld.gamefile import read_game
from arboretum.envs.alfworld.library import open_library
from arboretum.envs.alfworld.model import TASK_TYPES, Game
from arboretum.envs.alfworld.planner import plan
from arboretum.envs.data import archive_members


@pytest.fixture(scope="module")
def recordings(golden: Path) -> list[dict[str, Any]]:
    with gzip.open(golden / "alfworld" / "valid_unseen.jsonl.gz") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def games(data: Path) -> dict[str, Game]:
    library = open_library(data / "alfworld" / "valid_unseen.tar.xz", None)
    return {task: library.game(task) for task in library.tasks}


def test_engine_reproduces_every_recorded_state(recordings: list[dict[str, Any]], games: dict[str, Game]) -> None:
    """Compares text, sorted admissible commands and win after every command, including commands after the win."""
    states = 0
    wrong: list[str] = []
    assert [recording["game"] for recording in recordings] == list(games)
    for recording in recordings:
        game = games[recording["game"]]
        assert list(game.walkthrough) == recording["walkthrough"]
        for run, rows in recording["runs"].items():
            state, text = game.start, rules.introduction(game)
            for row in rows:
                if row["cmd"] is not None:
                    state, text, _ = rules.step(game, state, row["cmd"])
                won = rules.is_won(game, state)
                expected = (row["obs"], row["adm"], row["won"], row["score"], row["done"])
                if (text, rules.admissible_commands(game, state), won, int(won), won) != expected:
                    wrong.append(f"{recording['game']}, {run}, {row['cmd']!r}: {text!r} instead of {row['obs']!r}")
                states += 1
    assert wrong == []
    assert states == 27_900


def test_environment_reproduces_recordings_up_to_the_win(recordings: list[dict[str, Any]], data: Path) -> None:
    env = gym.make("TextALFWorld-v0", data=data, split="valid_unseen", max_steps=None, admissible=True)
    for recording in recordings:
        for rows in recording["runs"].values():
            text, info = env.reset(options={"task": recording["game"]})
            reward, done = 0.0, False
            before: set[str] = set()
            for row in rows:
                if row["cmd"] is not None:
                    text, reward, done, truncated, info = env.step(row["cmd"])
                    assert not truncated
                    assert info["valid"] == (row["cmd"].strip() in before)
                assert (text, reward, done, info["success"]) == (row["obs"], row["score"], row["done"], row["won"])
                if done:
                    break
                assert list(info["admissible_actions"]) == row["adm"]
                before = set(row["adm"])


def test_valid_unseen_has_the_published_task_type_counts(games: dict[str, Game]) -> None:
    counts = dict.fromkeys(("Pick", "Look", "Clean", "Heat", "Cool", "Pick2"), 0)
    for task, game in games.items():
        counts[game.task_type] += 1
        assert TASK_TYPES[task.split("/")[2].partition("-")[0]] == game.task_type
    assert counts == {"Pick": 24, "Look": 18, "Clean": 31, "Heat": 23, "Cool": 21, "Pick2": 17}


def walk(game: Game) -> str:
    """Return the fault of a game's stored walkthrough or of our plan, or an empty text."""
    state = game.start
    for command in game.walkthrough:
        if rules.is_won(game, state):
            return "is won too early"
        if command not in rules.admissible_commands(game, state):
            return f"{command} is not admissible"
        state, _, action = rules.step(game, state, command)
        if action is None:
            return f"{command} is refused"
    if not rules.is_won(game, state):
        return "is not won"
    ours = plan(game, game.start)
    if ours is None or len(ours) > len(game.walkthrough):
        return f"our plan is {ours}"
    state = game.start
    for step in ours:
        state, _, action = rules.step(game, state, rules.format_command(game, *step))
        if action is None:
            return f"our {step} is refused"
    return "" if rules.is_won(game, state) else "our plan does not win"


def stored(archive: Path) -> Iterator[tuple[str, Game]]:
    return ((name, read_game(content)) for name, content in archive_members(archive) if name.endswith(".tw-pddl"))


def test_stored_walkthroughs_win_at_their_last_step(games: dict[str, Game], data: Path) -> None:
    assert [(task, walk(game)) for task, game in games.items() if walk(game)] == []
    subset = list(stored(data / "alfworld" / "train_subset600.tar.xz"))
    assert len(subset) == 600
    assert [(name, walk(game)) for name, game in subset if walk(game)] == []


@pytest.mark.heavy
def test_all_training_walkthroughs_win_at_their_last_step(data: Path) -> None:
    count = 0
    for name, game in stored(data / "alfworld" / "train.tar.xz"):
        assert walk(game) == "", name
        count += 1
    assert count == 3553


def test_plan_wins_at_its_last_step_from_states_of_random_walks(
    recordings: list[dict[str, Any]], games: dict[str, Game]
) -> None:
    """Every step of the plan is accepted, and no earlier state is won."""
    for recording in recordings[::3]:
        game = games[recording["game"]]
        state = game.start
        for number, row in enumerate(recording["runs"]["tour"][1:]):
            state, _, _ = rules.step(game, state, row["cmd"])
            if number % 12 == 0:
                steps = plan(game, state)
                assert steps is not None
                there = state
                for step in steps:
                    assert not rules.is_won(game, there)
                    there, _, action = rules.step(game, there, rules.format_command(game, *step))
                    assert action is not None
                assert rules.is_won(game, there)
