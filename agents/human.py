"""A person at the terminal: words or arrow keys in, the board in colour out, and any move can be undone."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from ..envs.core import Snapshot, TextEnv
from .base import Agent, Reply, Seat

ARROWS = {"\x1b[A": "Up", "\x1b[B": "Down", "\x1b[C": "Right", "\x1b[D": "Left"}
ARROWS |= {sequence.replace("[", "O"): name for sequence, name in ARROWS.items()}

COMMANDS = ":undo takes a move back, :hint asks the expert, :actions lists what is possible, :quit leaves"


class Quit(KeyboardInterrupt):
    """The person has left: like Ctrl-C, no failure of the episode, and it ends the loop that plays."""


class HumanAgent(Agent):
    """Shows the world and asks for an action.

    Args:
        console: where to show; default: the terminal.
        read: returns the next entry, an action or a `:command`; default: the keyboard, where an arrow key is an
            entry of its own in worlds that know directions.
    """

    name = "human"
    one_process = True
    at_once = 1

    def __init__(self, console: Console | None = None, read: Callable[[bool], str] | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.read = read or Keyboard()

    def begin(self, seat: Seat) -> None:
        seat.memory = []  # a snapshot before every move so far
        self.console.print(Text(seat.env.instructions, style="dim"))
        self.console.print(Text(COMMANDS, style="dim"))

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: list[Reply | None] = [None] * len(seats)
        replies[0] = self._ask(seats[0])  # one board at a time
        return replies

    def end(self, seat: Seat) -> None:
        self.console.print()
        self.console.print(board(seat.env, seat.observation))
        if isinstance(self.read, Keyboard):
            self.read.restore()
        verdict = Text("Solved", "bold green") if seat.episode.success else Text("Not solved", "bold red")
        self.console.print(verdict, f"in {seat.episode.steps} moves; return {seat.episode.total_reward:.2f}")

    def _ask(self, seat: Seat) -> Reply:
        past: list[tuple[Snapshot, str]] = seat.memory
        while True:
            self.console.print()
            self.console.print(board(seat.env, seat.observation))
            actions = seat.env.admissible_actions()
            entry = self.read(actions is not None and "Up" in actions).strip()
            if entry in (":q", ":quit"):
                raise Quit
            if entry in (":u", ":undo"):
                self._undo(seat, past)
            elif entry in (":h", ":hint"):
                plan = seat.env.expert_actions()
                self.console.print(f"The expert would: {plan[0]}" if plan else "The expert sees no way from here.")
            elif entry in (":a", ":actions"):
                self.console.print(Text(", ".join(actions) if actions is not None else "any text"))
            elif entry.startswith(":"):
                self.console.print(COMMANDS)
            elif entry:
                past.append((seat.env.snapshot(), seat.observation))
                return Reply((entry,))

    def _undo(self, seat: Seat, past: list[tuple[Snapshot, str]]) -> None:
        if not past:
            self.console.print("Nothing to undo.")
            return
        snapshot, seat.observation = past.pop()
        seat.env.restore(snapshot)
        del seat.episode.turns[-1]


def board(env: TextEnv[object], observation: str) -> Text:
    """The observation, with the symbols of a board in the world's colours."""
    text = Text()
    symbols = set(env.palette)
    for line in observation.splitlines(keepends=True):
        is_board = bool(symbols) and set(line.strip()) <= symbols
        for char in line:
            text.append(char, env.palette.get(char, "") if is_board else "")
    return text


class Keyboard:
    """Entries from a terminal or a pipe. What is typed or pasted ahead is kept for the entries that follow.

    From the first entry on, a terminal hands over keys as they are pressed and does not echo them by itself, until
    `restore` (at the latest when the process ends).
    """

    def __init__(self, stdin: TextIO | None = None) -> None:
        self._stdin = stdin or sys.stdin
        self._ahead: list[str] = []
        self._before: Any = None

    def __call__(self, arrows: bool) -> str:
        """The next entry.

        At a terminal, an arrow key counts at once where `arrows` is set; anything else is a line ended by Enter.
        From a pipe, a line. The end of input raises `Quit`.
        """
        if self._stdin.isatty() and os.name == "posix":
            self._take_over()
            _echo("> ")
            return self._read_keys(arrows)
        _echo("> ")
        line = self._stdin.readline()
        if not line:
            raise Quit
        return line

    def restore(self) -> None:
        """Give the terminal back as it was."""
        if self._before is not None:
            import termios

            termios.tcsetattr(self._stdin.fileno(), termios.TCSADRAIN, self._before)
            self._before = None

    def _take_over(self) -> None:
        import termios
        import tty

        if self._before is None:
            self._before = termios.tcgetattr(self._stdin.fileno())
            tty.setcbreak(self._stdin.fileno(), termios.TCSADRAIN)  # what was typed ahead is kept
            atexit.register(self.restore)

    def _read_keys(self, arrows: bool) -> str:
        typed = ""
        while True:
            key = self._next_key()
            if key in ("", "\x04"):  # the end of input, Ctrl-D
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
        """One character, or one escape sequence."""
        if not self._ahead:
            data = os.read(self._stdin.fileno(), 1024).decode("utf-8", "ignore")
            self._ahead = _KEYS.findall(data)[::-1]
        return self._ahead.pop() if self._ahead else ""


_KEYS = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


def _echo(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
