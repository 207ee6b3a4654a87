"""Look of a state: a picture, a page, parts, or the observation only."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...envs.core import TextEnv
from ...envs.rendering import PICTURE_MODE, Part


class Look(NamedTuple):
    """Forms in which the current state of an environment can be shown beside its observation.

    Attributes:
        has_picture: True if it has a picture.
        has_page: True if it has an HTML page.
        parts: Its parts; empty without any.
    """

    has_picture: bool
    has_page: bool
    parts: tuple[Part, ...]


TEXT_ONLY = Look(False, False, ())
"""Look of a state that cannot be repeated."""


def look_of(env: TextEnv[Any]) -> Look:
    """Return the look of an environment's current state."""
    has_picture = PICTURE_MODE in env.metadata["render_modes"]
    return Look(has_picture, not has_picture and env.page_html() is not None, env.parts())
