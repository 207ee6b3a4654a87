"""An agent controlled by a person at the terminal: typed actions or arrow keys, a colored board, and undo."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from ..envs.core import TextEnv
from ..envs.snapshots import Snapshot
from .base import Agent, Reply, Seat

ARROWS = {"\x1b[A": "Up", "\x1b[B": "Down", "\x1b[C": "Right", "\x1b[D": "Left"}
ARROWS |= {sequence.replace("[", "O"): name for sequence, name in ARROWS.items()}

COMMANDS = ":undo reverts a move, :hint asks the expert, :actions lists the admissible actions, :quit exits"


class Quit(KeyboardInterrupt):
    """The person has quit; like Ctrl-C, it ends the rollout loop and is no error of the episode."""


class HumanAgent(Agent):
    """Agent that shows observations to a person and asks for actions.

    Args:
        console: Console for output; None uses the terminal.
        read: Function that returns the next input, an action or a `:command`; its argument is True if arrow keys
            are actions. None reads the keyboard.
    """

    name = "human"
    one_process = True
    at_once = 1

    def __init__(self, console: Console | None = None, read: Callable[[bool], str] | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.read = read or Keyboard()

    def begin(self, seat: Seat) -> None:
        seat.memory = []  # the snapshot and observation before every move so far
        self.console.print(Text(seat.env.instructions, style="dim"))
        self.console.print(Text(COMMANDS, style="dim"))

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: list[Reply | None] = [None] * len(seats)
        replies[0] = self._ask(seats[0])  # one episode at a time
        return replies

    def end(self, seat: Seat) -> None:
        self.console.print()
        self.console.print(board(seat.env, seat.observation))
        if isinstance(self.read, Keyboard):
            self.read.restore()
        verdict = Text("Solved", "bold green") if seat.episode.success else Text("Not solved", "bold red")
        self.console.print(verdict, f"in {seat.episode.steps} moves; return {seat.episode.total_reward:.2f}")

    def _ask(self, seat: Seat) -> Reply:
        history: list[tuple[Snapshot, str]] = seat.memory
        while True:
            self.console.print()
            self.console.print(board(seat.env, seat.observation))
            actions = seat.env.admissible_actions()
            entry = self.read(actions is not None and "Up" in actions).strip()
            if entry in (":q", ":quit"):
                raise Quit
            if entry in (":u", ":undo"):
                self._undo(seat, history)
            elif entry in (":h", ":hint"):
                plan = seat.env.expert_actions()
                self.console.print(f"The expert would: {plan[0]}" if plan else "The expert has no plan from here.")
            elif entry in (":a", ":actions"):
                self.console.print(Text(", ".join(actions) if actions is not None else "any text"))
            elif entry.startswith(":"):
                self.console.print(COMMANDS)
            elif entry:
                history.append((seat.env.snapshot(), seat.observation))
                return Reply((entry,))

    def _undo(self, seat: Seat, history: list[tuple[Snapshot, str]]) -> None:
        if not history:
            self.console.print("Nothing to undo.")
            return
        snapshot, seat.observation = history.pop()
        seat.env.restore(snapshot)
        del seat.episode.turns[-1]


def board(env: TextEnv[object], observation: str) -> Text:
    """Return the observation with the symbols of board lines in the environment's colors."""
    text = Text()
    symbols = set(env.palette)
    for line in observation.splitlines(keepends=True):
        is_board = bool(symbols) and set(line.strip()) <= symbols
        for char in line:
            text.append(char, env.palette.get(char, "") if is_board else "")
    return text


class Keyboard:
    """Reader of inputs from a terminal or a pipe; keys typed or pasted in advance are kept for later inputs.

    The first read puts a terminal into cbreak mode without echo, until `restore` is called or the process ends.

    Args:
        stdin: Stream to read; None uses `sys.stdin`.
    """

    def __init__(self, stdin: TextIO | None = None) -> None:
        self._stdin = stdin or sys.stdin
        self._unread: list[str] = []
        self._saved_mode: Any = None

    def __call__(self, arrows: bool) -> str:
        """Return the next input: a line, or the action of an arrow key.

        Args:
            arrows: Return an arrow key at once, without Enter (terminals only).

        Raises:
            Quit: The input has ended.
        """
        if self._stdin.isatty() and os.name == "posix":
            self._set_cbreak()
            _echo("> ")
            return self._read_keys(arrows)
        _echo("> ")
        line = self._stdin.readline()
        if not line:
            raise Quit
        return line

    def restore(self) -> None:
        """Restore the terminal's original mode."""
        if self._saved_mode is not None:
            import termios

            termios.tcsetattr(self._stdin.fileno(), termios.TCSADRAIN, self._saved_mode)
            self._saved_mode = None

    def _set_cbreak(self) -> None:
        import termios
        import tty

        if self._saved_mode is None:
            self._saved_mode = termios.tcgetattr(self._stdin.fileno())
            tty.setcbreak(self._stdin.fileno(), termios.TCSADRAIN)  # unlike the default, keeps unread input
            atexit.register(self.restore)

    def _read_keys(self, arrows: bool) -> str:
        typed = ""
        while True:
            key = self._next_key()
            if key in ("", "\x04"):  # end of input, Ctrl-D
                _echo("\n")
                raise Quit
            if key in ("\r", "\n"):
                _echo("\n")
                return typed
            if arrows and not typed and key in ARROWS:
                _echo(ARROWS[key] + "\n")
                return ARROWS[key]
            if key in ("\x7f", "\b"):
                if typed:
                    typed = typed[:-1]
                    _echo("\b \b")
            elif key.isprintable():
                typed += key
                _echo(key)

    def _next_key(self) -> str:
        """Return one character or one escape sequence; "" at the end of input."""
        if not self._unread:
            data = os.read(self._stdin.fileno(), 1024).decode("utf-8", "ignore")
            self._unread = _KEYS.findall(data)[::-1]
        return self._unread.pop() if self._unread else ""


_KEYS = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


def _echo(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
