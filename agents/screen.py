"""Display of an episode: the board with its colors, and a frame that a terminal redraws in place."""

from __future__ import annotations

from rich.console import Console, Group
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from ..envs.core import TextEnv
from ..envs.display import visible
from .base import Seat


def board(env: TextEnv[object], observation: str) -> Text:
    """Return the observation with the symbols of board lines in the environment's colors."""
    text = Text()
    symbols = set(env.palette)
    for line in visible(observation).splitlines(keepends=True):
        is_board = bool(symbols) and set(line.strip()) <= symbols
        for char in line:
            text.append(char, env.palette.get(char, "") if is_board else "")
    return text


def status(seat: Seat) -> Text:
    """Return the steps, the step limit and the return of an episode in progress."""
    limit = "" if seat.env.max_steps is None else f" of {seat.env.max_steps}"
    return Text(f"step {seat.env.steps}{limit} · return {seat.episode.total_reward:.2f}", "dim")


def verdict(seat: Seat) -> Text:
    """Return the result of an episode that has ended."""
    episode = seat.episode
    text = Text("Solved", "bold green") if episode.success else Text("Not solved", "bold red")
    return text.append(f" in {episode.steps} moves; return {episode.total_reward:.2f}", "not bold default")


class Screen:
    """Frame at the end of the terminal's output.

    Args:
        console: Console for output. What is no terminal gets every frame below the last one.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._height = 0

    def show(self, *parts: Text, extra: int = 0) -> None:
        """Replace the last frame.

        Args:
            parts: Lines of the frame.
            extra: Number of lines printed below the last frame since, which are erased with it.
        """
        if not self.console.is_terminal:
            for part in parts:
                self.console.print(part)
            return
        rows = self._height + extra
        if self._height and rows < self.console.height:  # A taller frame has left the screen.
            up = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * rows
            self.console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up))
        self._height = len(self.console.render_lines(Group(*parts)))
        self.console.print(Group(*parts))
