"""Input of a person: a line editor with history and completion, and keys that act at once."""

from __future__ import annotations

import atexit
import codecs
import os
import re
import shutil
import sys
from collections.abc import Sequence
from select import select
from typing import Any, TextIO

from rich.cells import cell_len

from ..envs.display import visible

ARROWS = {"\x1b[A": "Up", "\x1b[B": "Down", "\x1b[C": "Right", "\x1b[D": "Left"}
ARROWS |= {sequence.replace("[", "O"): name for sequence, name in ARROWS.items()}
KEYS = {"z": ":undo", "h": ":hint", "q": ":quit", "?": ":help"}
"""Keys that give a command at once on an empty line."""
COMMANDS = (":undo", ":hint", ":actions", ":help", ":quit")

_EDITING = {
    "\x01": "home", "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x05": "end", "\x1b[F": "end",
    "\x1bOF": "end", "\x1b[4~": "end", "\x7f": "backspace", "\b": "backspace", "\x1b[3~": "delete", "\x15": "kill",
    "\x17": "kill word", "\t": "complete",
}  # fmt: skip
_UNFINISHED = re.compile(rb"\x1b(?:[\[O][0-9;]*)?\Z")
_ESCAPE_SECONDS = 0.05
"""Longest delay within an escape sequence, which a slow connection may deliver in parts."""
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


class Quit(KeyboardInterrupt):
    """The person has quit; like Ctrl-C, it ends the rollout loop and is no error of the episode."""


def active_keys(actions: Sequence[str] | None) -> dict[str, str]:
    """Return the keys of `KEYS` with which no action begins."""
    initials = {action[:1].lower() for action in actions or ()}
    return {key: command for key, command in KEYS.items() if key not in initials}


class Line:
    """Text that is being typed, with a cursor, a history and completions.

    Args:
        history: Earlier lines, oldest first.
        candidates: Texts that Tab completes to.
    """

    def __init__(self, history: Sequence[str], candidates: Sequence[str]) -> None:
        self.text = ""
        self.cursor = 0
        self._history = history
        self._place = len(history)
        self._candidates = candidates
        self._offered: list[str] = []

    def type(self, text: str) -> None:
        """Insert text at the cursor."""
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)
        self._offered = []

    def edit(self, command: str) -> None:
        """Apply an editing command: a direction, or a value of `_EDITING`."""
        if command == "complete":
            self._complete()
            return
        self._offered = []
        before, after = self.text[: self.cursor], self.text[self.cursor :]
        match command:
            case "Left":
                self.cursor = max(0, self.cursor - 1)
            case "Right":
                self.cursor = min(len(self.text), self.cursor + 1)
            case "home":
                self.cursor = 0
            case "end":
                self.cursor = len(self.text)
            case "backspace":
                self._replace(before[:-1], after)
            case "delete":
                self._replace(before, after[1:])
            case "kill":
                self._replace("", after)
            case "kill word":
                self._replace(re.sub(r"\S*\s*\Z", "", before), after)
            case "Up" | "Down":
                self._recall(-1 if command == "Up" else 1)

    def _replace(self, before: str, after: str) -> None:
        self.text, self.cursor = before + after, len(before)

    def _recall(self, step: int) -> None:
        """Replace the line by an earlier or later one of the history; after the last one it is empty."""
        self._place = min(max(self._place + step, 0), len(self._history))
        self._replace(self._history[self._place] if self._place < len(self._history) else "", "")

    def _complete(self) -> None:
        """Extend the line to the common beginning of its completions, then cycle through them."""
        if not self._offered:
            start = self.text.lower()
            found = [text for text in self._candidates if text.lower().startswith(start)]
            common = os.path.commonprefix(found)  # noqa: RUF071 (character by character, as wanted here)
            if len(common) > len(self.text) or len(found) == 1:
                self._replace(common, "")
                return
            self._offered = found[::-1]
        if self._offered:
            text = self._offered.pop()
            self._offered.insert(0, text)
            self._replace(text, "")

    def shown(self, width: int) -> tuple[str, int]:
        """Return the part of the line around the cursor that fits a width in columns, and the cursor's column."""
        start = 0
        while cell_len(self.text[start : self.cursor]) > width:
            start += 1
        end = len(self.text)
        while cell_len(self.text[start:end]) > width:
            end -= 1
        return visible(self.text[start:end]), cell_len(self.text[start : self.cursor])


class Keyboard:
    """Reader of inputs from a terminal or a pipe; keys typed or pasted in advance are kept for later inputs.

    The first read puts a terminal into cbreak mode without echo, until `restore` is called or the process ends.

    Args:
        stdin: Stream to read; None uses `sys.stdin`.
    """

    def __init__(self, stdin: TextIO | None = None) -> None:
        self._stdin = stdin or sys.stdin
        self._unread: list[str] = []
        self._history: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._saved_mode: Any = None

    @property
    def is_terminal(self) -> bool:
        """True if single keys can be read."""
        return os.name == "posix" and self._stdin.isatty()

    def __call__(self, actions: Sequence[str] | None) -> str:
        """Return the next input: a line, the action of an arrow key, or the command of a single key.

        In a terminal, Up and Down recall earlier lines, Tab completes the line to an action or a command, and the
        keys of `active_keys` act at once on an empty line; so do the arrow keys if they are actions.

        Args:
            actions: The admissible actions, or None if they cannot be listed.

        Raises:
            Quit: The input has ended.
        """
        if self.is_terminal:
            self._set_cbreak()
            line = self._read_keys(actions)
            _echo("\n")
            if line.strip() and line not in self._history[-1:]:
                self._history.append(line)
            return line
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

    def _read_keys(self, actions: Sequence[str] | None) -> str:
        line = Line(self._history, [*(actions or ()), *COMMANDS])
        commands = active_keys(actions)
        while True:
            _draw(line)
            key = self._next_key()
            if key in ("", "\x04"):  # end of input, Ctrl-D
                _echo("\n")
                raise Quit
            if key in ("\r", "\n"):
                return line.text
            arrow = ARROWS.get(key)
            at_once = arrow if arrow in (actions or ()) else commands.get(key)
            if at_once is not None and not line.text:
                line.type(at_once)
                _draw(line)
                return at_once
            command = arrow or _EDITING.get(key)
            if command is not None:
                line.edit(command)
            elif key.isprintable():
                line.type(key)

    def _next_key(self) -> str:
        """Return one character or one escape sequence; "" at the end of input."""
        while not self._unread:
            descriptor = self._stdin.fileno()
            data = os.read(descriptor, 1024)
            if not data:
                return ""
            while _UNFINISHED.search(data) and select([descriptor], [], [], _ESCAPE_SECONDS)[0]:
                rest = os.read(descriptor, 1024)
                if not rest:
                    break
                data += rest
            self._unread = _KEY.findall(self._decoder.decode(data))[::-1]
        return self._unread.pop()


def _draw(line: Line) -> None:
    """Draw the prompt and the line in place of the terminal's current line."""
    text, column = line.shown(max(1, shutil.get_terminal_size().columns - 4))
    back = cell_len(text) - column
    _echo(f"\r\x1b[K> {text}" + (f"\x1b[{back}D" if back else ""))


def _echo(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
