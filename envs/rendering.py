"""Forms in which an environment shows its current state: terminal text, pictures, pages and parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gymnasium.error import ResetNeeded

from .display import terminal_text
from .errors import ConfigurationError, unknown_name

if TYPE_CHECKING:
    from .pictures.canvas import Picture

RENDER_MODES = ("ansi", "human")
PICTURE_MODE = "rgb_array"

PICTURED: dict[str, Any] = {"render_modes": [*RENDER_MODES, PICTURE_MODE], "render_fps": 4}
"""Gymnasium's `metadata` of environments that define `picture`."""


class Part(NamedTuple):
    """Part of the state of an environment, such as a receptacle of a household.

    Attributes:
        name: Name of the part.
        items: Contents of the part.
        note: Condition of the part, such as "closed"; empty without one.
        is_here: True if the agent is at this part.
    """

    name: str
    items: tuple[str, ...] = ()
    note: str = ""
    is_here: bool = False


class Rendering:
    """Base of environments that show their state in other forms than the observation."""

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 1}  # noqa: RUF012 (as in gymnasium.Env)

    palette: ClassVar[Mapping[str, str]] = {}
    """Terminal colors: from a symbol of the board to a `rich` style name."""

    render_mode: str | None
    _task: str | None

    def render(self) -> Any:
        """Return the state in the form of the render mode.

        Returns:
            "ansi": the current observation as terminal text. "rgb_array": the picture, an array of bytes
            [height, width, 3]. "human" and None: None.

        Raises:
            gymnasium.error.ResetNeeded: There is a render mode, and `reset` was not called before.
        """
        if self.render_mode is None:
            return None
        if self._task is None:
            raise ResetNeeded("Call reset() before render().")
        if self.render_mode == PICTURE_MODE:
            return self.picture()
        return terminal_text(self._observe(), self.palette) if self.render_mode == "ansi" else None

    def picture(self) -> Picture | None:
        """Return a picture of the current state, [height, width, 3]; None if the environment has none.

        The size is the same in all states of a task.
        """
        return None

    def page_html(self, base: str = "") -> str | None:
        """Return the HTML page that shows the current state; None if the environment has none.

        Args:
            base: Prefix of the addresses of its style sheet.
        """
        return None

    def parts(self) -> tuple[Part, ...]:
        """Return the current state as named parts, what no observation has shown included; empty without any."""
        return ()

    def _observe(self) -> str:
        raise NotImplementedError

    def _check_render_mode(self, mode: str | None) -> str | None:
        """Return a render mode, or raise a ConfigurationError if the environment does not have it."""
        modes = self.metadata["render_modes"]
        if mode == PICTURE_MODE and mode not in modes:
            raise ConfigurationError(
                f"{type(self).__name__} has no pictures; choose another render_mode: {', '.join(modes)}."
            )
        if mode not in (None, *modes):
            raise unknown_name("render_mode", mode, modes)
        return mode
