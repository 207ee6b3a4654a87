"""The expert that searches: solves generated homes, uses only what was shown, and recovers from other commands."""

from __future__ import annotations

import random
from typing import Any

import pytest

from arboretum.agents.play import Job, play
from arboretum.agents.reference import SearchingExpertAgent
from arboretum.envs.alfworld.searcher import next_command
from arboretum.envs.registry import make_env

INTRODUCTION = (
    "-= Welcome to TextWorld, ALFRED! =-\n\n"
    "You are in the middle of a room. Looking quickly around you, you see a drawer 2, a drawer 1, a fridge 1, and"
    " a sidetable 1.\n\nYour task is to: "
)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    return make_env("TextALFWorld-v0", split="valid_unseen")


def search(env: Any, task: str, noise: float = 0.0) -> tuple[list[str], list[str], bool]:
    """Return observations, commands and success of the expert, with random commands in between."""
    rng = random.Random(task)
    observation, info = env.reset(options={"task": task})
    observations, commands = [observation], []
    done = False
    while not done:
        command = (env.searching_actions(observations, commands) or ["look"])[0]
        if rng.random() < noise:
            command = env.random_action(rng)
        observation, _, terminated, truncated, info = env.step(command)
        observations.append(observation)
        commands.append(command)
        done = terminated or truncated
    return observations, commands, info["success"]


def test_searching_expert_solves_homes_of_every_type_within_the_step_limit(home: Any) -> None:
    home.max_steps = 100
    for index in range(40):
        observations, commands, success = search(home, f"valid_unseen/{index}")
        assert success, commands
        for place, command in enumerate(commands):
            for word in ("take ", "use "):
                if command.startswith(word):
                    thing = command.removeprefix(word).partition(" from ")[0]
                    assert f"a {thing}" in " ".join(observations[: place + 1])


def test_searching_expert_recovers_from_random_commands(home: Any) -> None:
    home.max_steps = 200
    assert all(search(home, f"valid_unseen/{index}", noise=0.3)[2] for index in range(20))


def test_agent_plays_the_searching_expert(home: Any) -> None:
    episodes = list(play(SearchingExpertAgent(), [home], [Job(f"valid_unseen/{n}", n) for n in range(6)]))
    for episode in episodes:
        _, commands, success = search(home, episode.task)
        assert [turn.moves[0].action for turn in episode.turns] == commands and episode.success == success


@pytest.mark.parametrize(
    ("sentence", "transcript", "expected"),
    [
        ("put some mug on sidetable.", [], "go to drawer 2"),
        (
            "put a mug in drawer.",
            [("go to drawer 2", "You arrive at drawer 2. The drawer 2 is closed.")],
            "open drawer 2",
        ),
        (
            "put some mug on sidetable.",
            [
                ("go to drawer 2", "You arrive at drawer 2. The drawer 2 is closed."),
                ("open drawer 2", "You open the drawer 2. The drawer 2 is open. In it, you see a mug 3."),
            ],
            "take mug 3 from drawer 2",
        ),
        (
            "put some mug on sidetable.",
            [
                ("go to drawer 2", "You arrive at drawer 2. On the drawer 2, you see nothing."),
                # Shares the location of drawer 2.
                ("go to drawer 1", "Nothing happens."),
            ],
            "examine drawer 1",
        ),
        (
            "cool some mug and put it in drawer.",
            [
                ("go to drawer 2", "You arrive at drawer 2. On the drawer 2, you see a mug 1."),
                ("take mug 1 from drawer 2", "You pick up the mug 1 from the drawer 2."),
                ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
            ],
            "cool mug 1 with fridge 1",
        ),
        (
            "find two mug and put them in drawer.",
            [
                ("go to drawer 2", "You arrive at drawer 2. On the drawer 2, you see a mug 1."),
                ("go to drawer 1", "You arrive at drawer 1. On the drawer 1, you see a mug 2."),
                ("take mug 2 from drawer 1", "You pick up the mug 2 from the drawer 1."),
            ],
            "go to drawer 2",
        ),
        (
            "look at mug under the desklamp.",
            [
                ("go to drawer 2", "You arrive at drawer 2. On the drawer 2, you see a desklamp 1, and a mug 1."),
                ("take mug 1 from drawer 2", "You pick up the mug 1 from the drawer 2."),
            ],
            "use desklamp 1",
        ),
        # Another agent took an object that the task does not ask for.
        (
            "put some mug on sidetable.",
            [
                ("go to drawer 2", "You arrive at drawer 2. On the drawer 2, you see a cup 1."),
                ("take cup 1 from drawer 2", "You pick up the cup 1 from the drawer 2."),
            ],
            "move cup 1 to drawer 2",
        ),
        ("win the game.", [], None),
    ],
)  # fmt: skip
def test_next_command_follows_from_the_transcript(
    sentence: str, transcript: list[tuple[str, str]], expected: str | None
) -> None:
    observations = [INTRODUCTION + sentence, *(reply for _, reply in transcript)]
    assert next_command(observations, [command for command, _ in transcript]) == expected
