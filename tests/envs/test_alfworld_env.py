"""Tests of the environment on generated homes, and on the real games if available."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import arboretum
from arboretum.envs.alfworld import ALFWorld, rules
from arboretum.envs.alfworld.gamefile import compile_game
from arboretum.envs.alfworld.generator import HomeTasks, generate_file, generate_game
from arboretum.envs.errors import ConfigurationError

assert arboretum


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)


def make(**options: Any) -> ALFWorld:
    env = gym.make("TextALFWorld-v0", **options).unwrapped
    assert isinstance(env, ALFWorld)
    return env


def test_environment_passes_the_gymnasium_checker() -> None:
    check_env(make(render_mode="ansi"), skip_render_check=True)


def test_expert_actions_solve_the_task_at_the_last_step() -> None:
    env = make(admissible=True)
    text, info = env.reset(seed=4)
    assert text.startswith("-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room.")
    assert "\n\nYour task is to: " in text
    assert info["task_type"] in ("Pick", "Look", "Clean", "Heat", "Cool", "Pick2")
    assert not info["success"]
    steps = env.expert_actions()
    assert steps
    for number, step in enumerate(steps, 1):
        assert step in info["admissible_actions"]
        text, reward, terminated, truncated, info = env.step(step)
        assert (reward, terminated, info["success"]) == (
            (1.0, True, True) if number == len(steps) else (0, False, False)
        )
        assert not truncated
    assert env.expert_actions() is None
    assert env.admissible_actions() == ()
    again = env.step("look")
    assert again[:4] == (text, 0.0, True, False)
    assert not again[4]["valid"]
    assert not again[4]["modifies"]


def test_changed_and_modifies_differ_for_walking_and_repeated_cleaning() -> None:
    """Walking changes the state without modifying the household; cleaning a clean object does the opposite."""
    env = make(split="train", max_steps=None)
    index = next(i for i in range(100) if generate_game(f"train/{i}").task_type == "Clean")
    env.reset(options={"task": f"train/{index}"})
    seen: dict[str, tuple[bool, bool]] = {}
    plan = env.expert_actions()
    assert plan is not None
    for step in [*plan[:-1], "look", "inventory", "help", "fly"]:
        key = env.state_key()
        info = env.step(step)[4]
        assert info["changed"] == (env.state_key() != key)
        seen[step.split()[0]] = (info["changed"], info["modifies"])
        if step.startswith("clean"):
            info = env.step(step)[4]
            assert (info["changed"], info["modifies"], info["valid"]) == (False, True, True)
    assert seen["go"] == (True, False)
    assert seen["take"] == seen["clean"] == (True, True)
    assert seen["look"] == seen["inventory"] == seen["help"] == seen["fly"] == (False, False)


@pytest.mark.parametrize(
    "command", ["LOOK", "look.", "go  to X", "take", "", "   ", "\n", "x" * 10_000, "go to moon 1"]
)
def test_invalid_command_uses_a_step_and_leaves_the_state_unchanged(command: str) -> None:
    env = make(max_steps=2)
    env.reset(seed=1)
    key = env.state_key()
    text, reward, _, truncated, info = env.step(command)
    assert (text, reward, truncated) == ("Nothing happens.", 0.0, False)
    assert (info["valid"], info["changed"], info["modifies"]) == (False, False, False)
    assert env.state_key() == key
    assert env.step(command)[3]


def test_surrounding_white_space_is_ignored() -> None:
    env = make()
    env.reset(seed=1)
    assert env.step("  inventory \n")[0] == "You are not carrying anything."


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_text_is_executed_only_if_it_is_admissible(text: str) -> None:
    game = generate_game("train/1")
    _, reply, action = rules.step(game, game.start, text)
    assert (action is not None) == (text.strip() in rules.admissible_commands(game, game.start))
    assert action is not None or reply == "Nothing happens."


@pytest.mark.parametrize("task", ["train/3", "valid_unseen/5", "valid_seen/8"])
def test_admissible_commands_are_exactly_the_executable_ones(task: str) -> None:
    """Tries every command of a game in the states of a random walk."""
    game = generate_game(task)
    verbs = game.dialect.wording.templates
    everything = {
        rules.format_command(game, verb, thing, other)
        for verb in verbs
        for thing in range(len(game.objects))
        for other in range(len(game.objects) if verb == "sliceobject" else len(game.receptacles))
    }
    rng = random.Random(task)
    state = game.start
    for number in range(60):
        admissible = rules.admissible_commands(game, state)
        assert admissible == sorted(set(admissible))
        if number % 10 == 0:
            assert {c for c in everything if rules.step(game, state, c).action is not None} == set(admissible)
        verb = rng.choice(sorted({command.split()[0] for command in admissible} - {"help", "look", "inventory"}))
        state = rules.step(game, state, rng.choice([c for c in admissible if c.startswith(verb)])).state


def test_snapshot_continues_identically_in_another_process() -> None:
    env = make(admissible=True)
    env.reset(seed=9)
    rng = random.Random(0)
    for _ in range(8):
        env.step(rng.choice(env.admissible_actions()))
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    assert len(pickle.dumps(snapshot)) < 4000
    actions = []
    first = []
    for _ in range(10):
        actions.append(rng.choice(env.admissible_actions() or ("look",)))
        first.append(env.step(actions[-1]))
    code = (
        "import pickle, sys, gymnasium, arboretum\n"
        "env = gymnasium.make('TextALFWorld-v0', admissible=True).unwrapped\n"
        "snapshot, actions, first = pickle.load(sys.stdin.buffer)\n"
        "env.restore(snapshot)\n"
        "assert [env.step(action) for action in actions] == first\n"
    )
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps((snapshot, actions, first)), check=True)
    env.restore(snapshot)
    assert [env.step(action) for action in actions] == first


def test_snapshot_restores_the_step_count() -> None:
    env = make(max_steps=3)
    env.reset(seed=2)
    env.step("look")
    snapshot = env.snapshot()
    assert not env.step("look")[3]
    assert env.step("look")[3]
    env.restore(snapshot)
    assert not env.step("look")[3]
    assert env.step("look")[3]


def test_instructions_list_the_command_forms() -> None:
    env = make()
    assert "go to (receptacle)" in env.instructions
    env.reset(seed=0)
    for form in ("take (object) from (receptacle)", "move (object) to (receptacle)", "use (object)"):
        assert form in env.instructions


# ---------------------------------------------------------------------- generated homes


def test_generated_games_are_distinct_and_solved_by_their_walkthroughs() -> None:
    counts: Counter[str] = Counter()
    problems = set()
    for index in range(90):
        content = generate_file(f"train/{index}")
        game = compile_game(content)
        state = game.start
        for command in content["walkthrough"]:
            assert not rules.is_won(game, state)
            assert command in rules.admissible_commands(game, state)
            state = rules.step(game, state, command).state
        assert rules.is_won(game, state)
        assert len(content["walkthrough"]) >= 3
        counts[game.task_type] += 1
        problems.add(content["pddl_problem"])
    assert len(problems) == 90
    assert min(counts.values()) >= 5
    assert len(counts) == 6


def test_only_valid_unseen_has_floor_plans_of_its_own() -> None:
    plans: dict[str, set[str]] = {}
    trials: dict[str, set[str]] = {}
    for split in ("train", "valid_seen", "valid_unseen"):
        names = [generate_file(f"{split}/{i}")["pddl_problem"].split()[2].rstrip(")") for i in range(60)]
        plans[split] = {name.split("_")[1] for name in names}
        trials[split] = set(names)
    assert not plans["valid_unseen"] & (plans["train"] | plans["valid_seen"])
    assert not trials["train"] & trials["valid_seen"]
    assert len(plans["train"]) > 30


def test_task_id_gives_the_same_home_in_every_process() -> None:
    code = (
        "from arboretum.envs.alfworld.generator import generate_file\n"
        "import hashlib, json\n"
        "files = [generate_file(f'valid_seen/{i}') for i in range(5)]\n"
        "print(hashlib.sha256(json.dumps(files).encode()).hexdigest())"
    )
    digests = set()
    for salt in ("1", "2"):
        environment = {"PYTHONHASHSEED": salt, "PATH": ""}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        digests.add(run.stdout)
    assert len(digests) == 1


def test_task_ids_of_other_splits_and_malformed_ids_are_rejected() -> None:
    every, unseen = HomeTasks(None), HomeTasks("valid_unseen")
    assert every[:2] == ["any/0", "any/1"]
    assert unseen[7] == "valid_unseen/7"
    assert all(f"{split}/0" in every for split in ("any", "train", "valid_seen", "valid_unseen"))
    assert "valid/0" not in every and "test/0" not in every
    assert "valid_seen/3" not in unseen
    for name in ("train/01", "train/-1", "train/x", "test/1", "train", "train/99999999999", "train/٣", 3, None):
        assert name not in HomeTasks("train")
    env = make(split="valid_unseen")
    with pytest.raises(ConfigurationError, match="unknown task"):
        env.reset(options={"task": "train/1"})
    with pytest.raises(ConfigurationError, match="unknown split"):
        make(split="test")


# ---------------------------------------------------------------------- real games


def test_environments_with_the_same_task_share_the_compiled_game(data: Path) -> None:
    envs = [make(data=data, split="valid_unseen", admissible=True) for _ in range(1000)]
    for number, env in enumerate(envs):
        env.reset(seed=number, options={"task": number % 134})
        env.step(env.admissible_actions()[0])
    assert len({id(env.game) for env in envs}) == 134
    first = envs[0].snapshot()
    envs[500].restore(first)
    assert envs[500].step("look")[0] == envs[0].step("look")[0]


def test_snapshot_of_another_split_is_rejected(data: Path) -> None:
    env = make(data=data / "alfworld" / "train_subset600.tar.xz")
    env.reset(seed=0)
    other = make(data=data, split="valid_unseen")
    with pytest.raises(ConfigurationError, match="not in"):
        other.restore(env.snapshot())


def test_async_vector_environment_steps_real_games(data: Path) -> None:
    venv = gym.make_vec(
        "TextALFWorld-v0", num_envs=2, vectorization_mode="async", data=str(data), split="valid_unseen"
    )
    try:
        texts, _ = venv.reset(seed=3)
        assert all(text.startswith("-= Welcome") for text in texts)
        texts, *_ = venv.step(("look", "nonsense"))
        assert texts[0].endswith("you see nothing.")
        assert texts[1] == "Nothing happens."
    finally:
        venv.close()
