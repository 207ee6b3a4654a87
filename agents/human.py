"""An agent controlled by a person at the terminal: typed actions or single keys, a colored board, and undo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ..envs.core import TextEnv
from ..envs.snapshots import Snapshot
from ..envs.terminal import Terminal, literal
from .base import Agent, Reply, Seat
from .forks import CannotFork, take_snapshot
from .keyboard import KEYS, Keyboard, Quit, active_keys
from .screen import Screen, board, status, verdict

HELP = ":undo reverts a move, :hint asks the expert, :actions lists the admissible actions, :quit exits"
_WORDS = {":u": ":undo", ":h": ":hint", ":a": ":actions", ":q": ":quit"}


class HumanAgent(Agent):
    """Agent that shows observations to a person and asks for actions.

    In a terminal the observation is redrawn in place, with the number of steps, the return and the keys below it.

    Args:
        console: Console for output; None uses the terminal.
        read: Function that returns the next input, an action or a `:command`; its argument is the admissible
            actions, or None if they cannot be listed. None reads the keyboard.
    """

    name = "human"
    one_process = True
    at_once = 1

    def __init__(
        self, console: Console | None = None, read: Callable[[Sequence[str] | None], str] | None = None
    ) -> None:
        self.console = console or Terminal(highlight=False)
        self.read = read or Keyboard()
        self.screen = Screen(self.console)
        self._redraws = self.console.is_terminal and isinstance(self.read, Keyboard) and self.read.is_terminal

    def begin(self, seat: Seat) -> None:
        seat.memory = []  # the snapshot and observation before every move so far
        self.console.print(literal(seat.env.instructions, "dim"))
        self.console.print(Text(HELP, "dim"))
        if self._redraws:
            self.console.print()

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: list[Reply | None] = [None] * len(seats)
        replies[0] = self._ask(seats[0])  # one episode at a time
        return replies

    def end(self, seat: Seat) -> None:
        self._show(seat, verdict(seat))
        if isinstance(self.read, Keyboard):
            self.read.restore()

    def _show(self, seat: Seat, *below: Text) -> None:
        """Show the observation, with further lines below it."""
        if self._redraws:
            self.screen.show(board(seat.env, seat.observation), *below, extra=1)  # the line of the input
            return
        self.console.print()
        for part in (board(seat.env, seat.observation), *below):
            self.console.print(part)

    def _ask(self, seat: Seat) -> Reply:
        history: list[tuple[Snapshot | None, str]] = seat.memory
        message = Text()
        while True:
            actions = seat.env.admissible_actions()
            if self._redraws:
                message = message or _refusal(seat)
                self._show(seat, status(seat), *([message] if message else []), _keys(actions))
            else:
                self._show(seat)
            message = Text()
            entry = self.read(actions).strip()
            match _WORDS.get(entry, entry):
                case ":quit":
                    raise Quit
                case ":undo":
                    message = self._undo(seat, history)
                case ":hint":
                    plan = seat.env.expert_actions()
                    hint = f"The expert would: {plan[0]}" if plan else "The expert has no plan from here."
                    message = literal(hint)
                case ":actions":
                    message = literal(", ".join(actions) if actions is not None else "any text")
                case ":help" if self._redraws:
                    recalls = "" if "Up" in (actions or ()) else ", Up recalls earlier ones"
                    message = literal(f"{seat.env.instructions}\n{HELP}. Tab completes lines{recalls}.")
                case command if command.startswith(":"):
                    message = Text(HELP)
                case action if action:
                    history.append((self._snapshot(seat.env), seat.observation))
                    return Reply((action,))
            if message and not self._redraws:
                self.console.print(message)

    @staticmethod
    def _snapshot(env: TextEnv[Any]) -> Snapshot | None:
        """Return a snapshot to go back to; None of an environment that has none."""
        try:
            return take_snapshot(env)
        except CannotFork:
            return None

    def _undo(self, seat: Seat, history: list[tuple[Snapshot | None, str]]) -> Text:
        if not history:
            return Text("Nothing to undo.")
        snapshot, observation = history[-1]
        if snapshot is None:
            return Text("This environment has no snapshots to go back to.")
        history.pop()
        seat.observation = observation
        seat.env.restore(snapshot)
        del seat.episode.turns[-1]
        return Text()


def _refusal(seat: Seat) -> Text:
    """Return a note that the last action was refused, if it was."""
    turns = seat.episode.turns
    if not turns or all(move.valid for move in turns[-1].moves):
        return Text()
    return literal(f"Refused: {turns[-1].moves[-1].action[:200]}", "yellow")


def _keys(actions: Sequence[str] | None) -> Text:
    """Return the line that names the keys."""
    active = active_keys(actions)
    arrows = ["arrows move"] if "Up" in (actions or ()) else ["Tab completes"] if actions else []
    names = [f"{key if key in active else command} {command[1:]}" for key, command in KEYS.items()]
    return Text(" · ".join([*arrows, *names]), "dim")
