"""Pictures of boards, lakes and blocks: what they show, Gymnasium's wrappers on them, and PNG files."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RenderCollection

from arboretum.envs.errors import ConfigurationError
from arboretum.envs.pictures.canvas import Canvas, ink_on
from arboretum.envs.pictures.png import encode_png
from arboretum.envs.pictures.tiles import TILE
from arboretum.envs.registry import ENVS, make_env
from support.png import decode_png

PICTURED = [spec.id for spec in ENVS if "rgb_array" in make_env(spec.id).metadata["render_modes"]]


def cells(picture: Any) -> list[list[bytes]]:
    """Return the tiles of a board's picture as bytes, row by row."""
    rows, columns = picture.shape[0] // TILE, picture.shape[1] // TILE
    return [
        [picture[r * TILE : (r + 1) * TILE, c * TILE : (c + 1) * TILE].tobytes() for c in range(columns)]
        for r in range(rows)
    ]


def test_boards_lakes_and_blocks_have_pictures_and_others_refuse_in_a_sentence() -> None:
    assert {name.removeprefix("Text").removesuffix("-v0") for name in PICTURED} == {
        "Sokoban", "SokobanNewVocab", "LargeSokoban", "SokobanEasy", "SokobanMedium", "SokobanHard", "Boxoban",
        "FrozenLake", "Blocksworld",
    }  # fmt: skip
    sentence = "WebShop has no pictures; choose another render_mode: ansi, human"
    with pytest.warns(UserWarning, match="render_mode"), pytest.raises(ConfigurationError, match=sentence):
        make_env("TextWebShop-v0", render_mode="rgb_array")


@pytest.mark.parametrize("id", PICTURED)
def test_pictures_keep_their_size_and_pass_the_checker_and_the_collector(id: str) -> None:
    env = make_env(id, render_mode="rgb_array")
    check_env(env, skip_render_check=True)
    collector = RenderCollection(env)  # type: ignore[var-annotated]
    collector.reset(seed=3)
    plan = env.expert_actions()
    assert plan
    for action in plan[:4]:
        collector.step(action)
    frames = collector.render()
    assert frames is not None and len(frames) == 1 + len(plan[:4])
    assert {(frame.shape, frame.dtype) for frame in frames} == {(frames[0].shape, np.dtype(np.uint8))}
    assert not np.array_equal(frames[0], frames[1])


def test_rendering_before_the_first_reset_raises() -> None:
    with pytest.raises(gym.error.ResetNeeded):
        make_env("TextSokoban-v0", render_mode="rgb_array").render()


@pytest.mark.parametrize("vocabulary", ["standard", "new"])
def test_equal_symbols_of_a_board_have_equal_tiles_and_other_symbols_others(vocabulary: str) -> None:
    env = make_env("TextLargeSokoban-v0", render_mode="rgb_array", vocabulary=vocabulary)
    observation, _ = env.reset(seed=1)
    tiles: dict[str, set[bytes]] = {}
    for _ in range(12):
        for symbols, row in zip(observation.split("\n"), cells(env.render()), strict=True):
            for symbol, tile in zip(symbols, row, strict=True):
                tiles.setdefault(symbol, set()).add(tile)
        plan = env.expert_actions()
        if not plan:
            break
        observation, *_ = env.step(plan[0])
    assert len(tiles) >= 6
    assert all(len(found) == 1 for found in tiles.values())
    assert len(set.union(*tiles.values())) == len(tiles)


def test_vocabularies_have_the_same_pictures() -> None:
    pictures = []
    for id in ("TextSokoban-v0", "TextSokobanNewVocab-v0"):
        env = make_env(id, render_mode="rgb_array")
        env.reset(seed=5)
        pictures.append(env.render())
    assert np.array_equal(*pictures)


def test_picture_of_a_lake_tells_goal_hole_start_and_agent_apart() -> None:
    env = make_env("TextFrozenLake-v0", map=["SFH", "FFG"], success_rate=1.0, render_mode="rgb_array")
    env.reset(seed=0)
    first = cells(env.render())
    assert len({first[0][0], first[0][1], first[0][2], first[1][2]}) == 4  # agent, ice, hole, goal
    assert first[0][1] == first[1][0] == first[1][1]
    env.step("Down")
    moved = cells(env.render())
    assert moved[0][0] not in (first[0][0], first[0][1]), "the start stays visible"
    assert moved[1][0] != first[1][0]
    for action in ("Right", "Right"):
        env.step(action)
    assert cells(env.render())[1][2] not in (first[1][2], moved[1][0])


def test_block_in_the_hand_leaves_its_tower_and_the_goal_stays() -> None:
    env = make_env("TextBlocksworld-v0", render_mode="rgb_array")
    env.reset(seed=2)
    before = env.render()
    env.step((env.expert_actions() or [])[0])
    after = env.render()
    changed = np.flatnonzero((before != after).any(axis=(1, 2)))
    assert changed.min() < 70, "the hand at the top"
    goal = before.shape[0] - 100
    assert np.array_equal(before[goal:], after[goal:])


def luminance(color: tuple[int, int, int]) -> float:
    """Return the relative luminance of a color, by WCAG 2.2."""
    scaled = np.array(color) / 255
    linear = np.where(scaled <= 0.03928, scaled / 12.92, ((scaled + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("value", range(0, 256, 15))
def test_ink_has_the_higher_contrast_on_a_color(value: int) -> None:
    paper = (value, 255 - value, value // 2)

    def contrast(ink: tuple[int, int, int]) -> float:
        low, high = sorted((luminance(paper) + 0.05, luminance(ink) + 0.05))
        return high / low

    chosen = ink_on(paper)
    other = (24, 28, 26) if chosen == (255, 255, 255) else (255, 255, 255)
    assert contrast(chosen) >= max(contrast(other), 4.0)


# ---------------------------------------------------------------------- PNG files


@pytest.mark.parametrize("colors", [1, 256, 300])
def test_png_file_holds_the_pixels(colors: int) -> None:
    numbers = np.arange(30 * 20) % colors
    picture = np.stack([numbers % 256, numbers // 256 * 80, 255 - numbers % 256], axis=1)
    picture = picture.astype(np.uint8).reshape(20, 30, 3)
    assert np.array_equal(decode_png(encode_png(picture)), picture)


def test_shape_with_edges_between_pixels_covers_them_in_part() -> None:
    canvas = Canvas(4, 6, (0, 0, 0))
    canvas.box(1.5, 1, 3, 2, (100, 100, 100))
    assert canvas.picture[1, :, 0].tolist() == [0, 50, 100, 100, 50, 0]
    assert canvas.picture[0].max() == canvas.picture[3].max() == 0
