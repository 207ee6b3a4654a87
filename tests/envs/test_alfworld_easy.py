"""Easy homes: little furniture, two types of task, and results under a name of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env


def test_easy_homes_have_little_furniture_and_two_types_of_task() -> None:
    env = make_env("TextALFWorld-v0", homes="easy", split="valid_unseen")
    types, sizes = set(), []
    for index in range(40):
        observation, info = env.reset(options={"task": f"valid_unseen/{index}"})
        types.add(info["task_type"])
        listed = observation.partition("you see ")[2].partition(".\n")[0]
        pieces = [name.removeprefix("and ").removeprefix("a ") for name in listed.split(", ")]
        sizes.append(len(pieces))
        assert all(piece.endswith((" 1", " 2")) for piece in pieces)
        for action in env.expert_actions() or ():
            *_, info = env.step(action)
        assert info["success"]
    assert types == {"Pick", "Look"} and min(sizes) >= 3 and max(sizes) == 8


def test_full_homes_are_the_default_and_differ_from_easy_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    first = [
        make_env("TextALFWorld-v0", homes=homes).reset(options={"task": "train/3"})[0]
        for homes in (None, "full", "easy")
    ]
    assert first[0] == first[1] != first[2]


def test_easy_homes_name_their_results_and_their_snapshots() -> None:
    easy, full = (make_env("TextALFWorld-v0", homes=homes) for homes in ("easy", "full"))
    assert (easy.generated_data, full.generated_data) == ("easy generated homes", "generated homes")
    easy.reset(seed=1)
    with pytest.raises(ConfigurationError):
        full.restore(easy.snapshot())


def test_homes_are_refused_beside_game_files_and_under_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="omit one"):
        make_env("TextALFWorld-v0", homes="easy", data=tmp_path)
    with pytest.raises(ConfigurationError, match="easy"):
        make_env("TextALFWorld-v0", homes="esay")
