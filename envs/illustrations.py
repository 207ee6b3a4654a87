"""Pictures on the pages of the environments: the expert's episode of `reset(seed=0)`, on generated data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .core import TextEnv
from .pictures.canvas import Picture, paste
from .pictures.png import encode_png
from .pictures.transcript import Role, transcript_svg
from .registry import make_env

FRAMES = 4
"""Pictures of a board that stand side by side."""
GAP = 12
"""Pixels between them."""
OBSERVATION_LINES = 9
"""Lines of an observation that a transcript shows."""

_PAPER = (128, 128, 128)
"""Color between pictures, which is neither lost on a light page nor on a dark one."""


class Scene(NamedTuple):
    """Illustration of an environment.

    Attributes:
        is_board: True for pictures of the board, False for a transcript.
        kwargs: Arguments of the environment that select its generated data.
    """

    is_board: bool
    kwargs: Mapping[str, Any] = {}

    def file_name(self, module: str) -> str:
        """Return the name of the picture's file."""
        return f"{module}.{'png' if self.is_board else 'svg'}"

    def describe(self, id: str) -> str:
        """Return the description of the picture for those who do not see it."""
        shown = "Four states" if self.is_board else "Transcript"
        return f"{shown} of the expert's episode of {id}"


SCENES: Mapping[str, Scene] = {
    "bandit": Scene(False),
    "sokoban": Scene(True),
    "boxoban": Scene(True, {"generated": True}),
    "frozenlake": Scene(True),
    "blocksworld": Scene(True),
    "alfworld": Scene(False, {"homes": "full"}),
    "webshop": Scene(False, {"generated": True, "tagger": "letters"}),
    "searchqa": Scene(False, {"dataset": "encyclopedia"}),
}
"""Illustrations by the module of the environment."""


def draw(id: str, scene: Scene) -> bytes:
    """Return the file with the picture of an environment."""
    if scene.is_board:
        env = make_env(id, **scene.kwargs, render_mode="rgb_array")
        frames = [env.render() for _ in _play(env)]
        chosen = np.linspace(0, len(frames) - 1, FRAMES).round().astype(int).tolist()
        return encode_png(_side_by_side([frames[place] for place in chosen]))
    parts: list[tuple[Role, str]] = []
    for action, observation in _play(make_env(id, **scene.kwargs)):
        parts += [("action", action)] if action else []
        parts.append(("observation", observation))
    return transcript_svg(parts, OBSERVATION_LINES).encode()


def _play(env: TextEnv[Any]) -> Iterator[tuple[str, str]]:
    """Play the expert's episode of seed 0; yield each action, empty at first, and the observation after it."""
    observation, _ = env.reset(seed=0)
    yield "", observation
    ended = False
    while not ended:
        # A new plan before every action, since chance can overtake the last one.
        action = (env.expert_actions() or [])[0]
        observation, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
        yield action, observation


def _side_by_side(frames: list[Picture]) -> Picture:
    height, width, _ = frames[0].shape
    strip = np.empty((height, len(frames) * (width + GAP) - GAP, 3), np.uint8)
    strip[:] = _PAPER
    for place, frame in enumerate(frames):
        paste(strip, frame, 0, place * (width + GAP))
    return strip
