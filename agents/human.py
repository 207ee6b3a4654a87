"""A person at the terminal: words or arrow keys in, the board in colour out, and any move can be undone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

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

    def __init__(self, console: Console | None = None, read: Callable[[bool], str] | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.read = read or read_entry

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


def read_entry(arrows: bool, stdin: TextIO | None = None) -> str:
    """The next entry from the keyboard.

    At a terminal, an arrow key counts at once where `arrows` is set; anything else is a line ended by Enter.
    From a pipe, a line. The end of input raises `Quit`.
    """
    stdin = stdin or sys.stdin
    if not stdin.isatty() or os.name != "posix":
        _echo("> ")
        line = stdin.readline()
        if not line:
            raise Quit
        return line
    return _read_keys(stdin, arrows)


def _read_keys(stdin: TextIO, arrows: bool) -> str:
    typed = ""
    with _raw(stdin.fileno()) as keys:
        _echo("> ")  # only now: a key pressed at the sight of the prompt must find the terminal ready for it
        for key in keys:
            if key in ("\x03", "\x04"):  # Ctrl-C, Ctrl-D
                _echo("\r\n")
                raise Quit
            if key in ("\r", "\n"):
                _echo("\r\n")
                return typed
            if arrows and not typed and key in ARROWS:
                _echo(ARROWS[key] + "\r\n")
                return ARROWS[key]
            if key in ("\x7f", "\b"):
                if typed:
                    typed = typed[:-1]
                    _echo("\b \b")
            elif key.isprintable():
                typed += key
                _echo(key)
    raise Quit


def _echo(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def _raw(descriptor: int) -> Iterator[Iterator[str]]:
    """Keys as they are pressed; an escape sequence, or a pasted text, arrives as one read."""
    import termios
    import tty

    def keys() -> Iterator[str]:
        while data := os.read(descriptor, 64).decode("utf-8", "ignore"):
            if data.startswith("\x1b"):
                yield data
            else:
                yield from data

    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # keys typed ahead are kept
    try:
        yield keys()
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
