"""Comparison with the original engine, command by command, on real and generated games.

These tests need the extra `peers` (alfworld and TextWorld). Each step of the original takes tens of milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arboretum.envs.alfworld import rules
from arboretum.envs.alfworld.gamefile import compile_game
from arboretum.envs.alfworld.generator import HomeTasks, generate_file
from arboretum.envs.alfworld.model import Game
from arboretum.envs.data import archive_members

pytestmark = pytest.mark.heavy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    textworld = pytest.importorskip("textworld", reason="the original engine is not installed (extra peers)")
    original = pytest.importorskip("alfworld.agents.environment.alfred_tw_env", reason="alfworld is not installed")

DATA = os.environ.get("ARBORETUM_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="ARBORETUM_DATA is not set")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Warnings of the original engine.
        yield


def real_games(archive: str) -> list[dict[str, Any]]:
    assert DATA is not None
    members = archive_members(Path(DATA) / "alfworld" / archive)
    return [json.loads(content) for name, content in members if name.endswith(".tw-pddl")]


def differences(
    content: dict[str, Any], folder: Path, walks: list[list[str] | None], rng: random.Random
) -> list[str]:
    """Run a game in both engines with each list of commands, which must win; None stands for random commands."""
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(content))
    infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
    wrappers = [original.AlfredDemangler(shuffle=False), original.AlfredInfos]
    theirs = textworld.start(str(path), infos, wrappers=wrappers)
    game = compile_game(content)
    found = [difference for commands in walks for difference in _walk(game, theirs, commands, rng)]
    theirs.close()
    return found


def _walk(game: Game, theirs: Any, commands: list[str] | None, rng: random.Random) -> Iterator[str]:
    """Yield the first difference in an episode with these commands; random ones are sometimes invalid."""
    state, text, reward = game.start, rules.introduction(game), 0
    shown = theirs.reset()
    command: str | None = None
    for step in range(len(commands) + 1 if commands is not None else 40):
        ours = (text, rules.admissible_commands(game, state), rules.is_won(game, state))
        if ours != (shown.feedback, sorted(shown.admissible_commands), bool(shown["won"])):
            yield f"{command!r}: {ours} instead of {(shown.feedback, shown.admissible_commands, shown['won'])}"
            return
        if int(ours[2]) != reward:
            yield f"{command!r}: reward {reward}"
        if commands is not None:
            if step == len(commands):
                if not ours[2]:
                    yield "the walkthrough does not win"
                return
            command = commands[step]
        else:
            command = _choose(ours[1], rng)
        state, text, _ = rules.step(game, state, command)
        shown, reward, _ = theirs.step(command)


def _choose(admissible: list[str], rng: random.Random) -> str:
    """Draw a verb (so that rare commands occur), then a command with it; make one in ten invalid."""
    verb = rng.choice(sorted({command.split()[0] for command in admissible} - {"help", "inventory"}))
    command = rng.choice([command for command in admissible if command.startswith(verb)])
    if rng.random() < 0.1:
        variants = (
            str.upper,
            lambda c: c + ".",
            lambda c: f"  {c} ",
            lambda c: c.replace(" ", "  "),
            lambda c: c[:-1],
        )
        command = rng.choice(variants)(command)
    return command


@needs_data
@pytest.mark.parametrize("seed", range(int(os.environ.get("ARBORETUM_PEER_GAMES", "8"))))
def test_real_games_match_the_original_on_random_walks(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    content = rng.choice(_train())
    assert differences(content, tmp_path, [None], rng) == []


_games: list[dict[str, Any]] = []


def _train() -> list[dict[str, Any]]:
    if not _games:
        _games.extend(real_games("train_subset600.tar.xz"))
    return _games


@pytest.mark.parametrize("own_texts", [True, False])
@pytest.mark.parametrize("index", range(int(os.environ.get("ARBORETUM_PEER_GAMES", "8")) // 2))
def test_generated_games_match_the_original_and_are_won(index: int, own_texts: bool, tmp_path: Path) -> None:
    """Covers the packaged domain and grammar, and those of a real file in their place."""
    content = dict(generate_file(f"{HomeTasks.SPLITS[index % 3]}/{index}"))
    if not own_texts:
        if not DATA:
            pytest.skip("ARBORETUM_DATA is not set")
        real = _train()[0]
        sentence = compile_game(content).task_line
        content["pddl_domain"] = real["pddl_domain"]
        content["grammar"] = real["grammar"].replace(compile_game(real).task_line, sentence)
    assert differences(content, tmp_path, [content["walkthrough"], None], random.Random(index)) == []
