"""Tests of play in a terminal: redrawing, keys, line editing, watching, and text that a terminal must not obey."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

import arboretum
from arboretum.agents.base import Seat
from arboretum.agents.human import HumanAgent
from arboretum.agents.keyboard import Keyboard, Line, active_keys
from arboretum.agents.play import Job
from arboretum.agents.play import play as run_episodes
from arboretum.agents.reference import RandomAgent
from arboretum.agents.terminal import DisplayedAgent
from arboretum.cli import main
from arboretum.envs.display import visible
from arboretum.envs.open_episode import own_class
from arboretum.envs.registry import make_env
from arboretum.envs.terminal import Terminal, VisibleFormatter, literal

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold]click[/bold] \u202eabc\x9b31m\x7f \ud800 [/nothing]"
SHOWN = "␛]0;owned␇␛[2J[bold]click[/bold] \ufffdabc\ufffd31m␡ \ufffd [/nothing]"


class Session:
    """A command in a pseudo-terminal of 80 × 24 characters."""

    def __init__(self, *arguments: str) -> None:
        import fcntl
        import pty
        import termios

        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            os.environ.update(TERM="xterm-256color")
            os.environ.pop("COLUMNS", None)
            os.execv(sys.executable, [sys.executable, *arguments])
        self.output = ""

    def read_until(self, text: str) -> str:
        """Return the output up to a text, and drop it."""
        deadline = time.monotonic() + 60
        while text not in self.output:
            ready, _, _ = select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} is not in {self.output!r}"
            try:
                self.output += os.read(self.terminal, 4096).decode("utf-8", "replace")
            except OSError:  # the process has ended
                pytest.fail(f"{text!r} is not in {self.output!r}")
        head, _, self.output = self.output.partition(text)
        return head + text

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def close(self) -> int:
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.terminal)
        return status


def play(*arguments: str) -> Session:
    return Session("-m", "arboretum.cli", "play", *arguments)


posix = pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")


@posix
def test_board_is_redrawn_in_place_with_steps_budget_and_return() -> None:
    session = play("TextSokoban-v0", "--task", "test/3", "--seed", "1")
    first = session.read_until("\x1b[K> ")
    assert "step 0 of 100 · return 0.00" in first
    assert "arrows move · z undo · h hint · q quit · ? help" in first
    session.type("\x1b[D")
    second = session.read_until("step 1 of 100 · return -0.10")
    assert second.count("\x1b[1A") == 9  # six rows of the board, two lines below it, and the line of input
    session.read_until("\x1b[K> ")
    session.type("h")
    session.read_until("The expert would: ")
    session.read_until("\x1b[K> ")
    session.type("z")
    session.read_until("step 0 of 100 · return 0.00")
    session.read_until("\x1b[K> ")
    session.type("?")
    session.read_until("Tab completes lines.")  # Up is an action here
    session.read_until("\x1b[K> ")
    session.type("q")
    session.read_until("You left the game.")
    assert session.close() == 0


@posix
def test_tab_completes_actions_and_up_recalls_lines() -> None:
    session = play("TextBlocksworld-v0", "--task", "test/0", "--seed", "1")
    session.read_until("\x1b[K> ")
    session.type("dance\r")
    session.read_until("Refused: dance")
    session.read_until("\x1b[K> ")
    session.type("\x1b[A")
    session.read_until("> dance")
    session.type("\x15:help\r")
    session.read_until("Tab completes lines, Up recalls earlier ones.")
    session.read_until("\x1b[K> ")
    session.type(":h\t\r")
    session.read_until("> :hint")
    action = re.search(r"The expert would: ([^\r\x1b]+)", session.read_until("\x1b[K> "))
    assert action is not None
    session.type(action[1][:-3] + "\t\r")
    session.read_until("step 2 of")
    session.read_until("\x1b[K> ")
    session.type("\x04")
    session.read_until("You left the game.")
    assert session.close() == 0


@posix
def test_expert_is_watched_at_a_pace_in_one_frame() -> None:
    start = time.monotonic()
    session = play("TextSokoban-v0", "--task", "test/3", "--seed", "1", "--agent", "expert", "--pace", "0.2")
    output = session.read_until("Solved")
    moves = output.count("\x1b[1m> ")
    assert moves >= 3 and output.count("\x1b[1A") >= moves
    assert time.monotonic() - start >= 0.2 * moves
    session.read_until("--seed 1")
    assert session.close() == 0


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "arboretum.cli", "play", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
    )


def test_hint_in_the_shop_names_the_whole_action() -> None:
    done = run("TextWebShop-v0", "--seed", "1", "--env-arg", "num_products=60", stdin=":hint\n:actions\n:quit\n")
    assert done.returncode == 0
    assert re.search(r"The expert would: search\[.+\]", done.stdout)
    assert "\x1b" not in done.stdout


def test_argument_of_the_environment_is_used_and_checked() -> None:
    done = run("TextFrozenLake-v0", "--seed", "1", "--env-arg", "size=7", "--agent", "expert")
    assert done.returncode == 0 and "Board: 7 rows" in done.stdout
    done = run("TextFrozenLake-v0", "--env-arg", "depth=7")
    assert done.returncode == 2 and "depth" in done.stderr
    done = run("TextFrozenLake-v0", "--agent", "expert", "--pace", "-1")
    assert done.returncode == 2 and "--pace" in done.stderr


def test_agent_of_ones_own_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "from arboretum.agents.reference import RandomAgent\n"
        "class Licensed(RandomAgent):\n    def __init__(self): raise RuntimeError('no license')\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["play", "TextBandit-v0", "--agent", "mine:Licensed"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert error.startswith("arboretum: agent mine:Licensed cannot be made: RuntimeError: no license")


def test_retrieval_server_that_is_down_is_noticed_before_the_first_move() -> None:
    pytest.importorskip("aiohttp", reason="needs the extra openai")
    address = "retriever=http://127.0.0.1:9"
    done = run("TextSearchQA-v0", "--seed", "1", "--agent", "expert", "--env-arg", address)
    assert done.returncode == 2 and not done.stdout
    assert "cannot be reached (Connection refused); start it (arboretum serve retrieval)" in done.stderr


PROGRAM = """
import sys
import gymnasium
from arboretum.agents.terminal import play_in_terminal
from arboretum.envs.bandit import Bandit
from arboretum.envs.terminal import Terminal

TEXT = {text!r}

class Hostile(Bandit):
    instructions = TEXT
    def _observe(self):
        return TEXT
    def expert_actions(self):
        return [TEXT]

gymnasium.register("Hostile-v0", Hostile)
console = Terminal(highlight=False, width=200)
sys.exit(play_in_terminal("Hostile-v0", {agent!r}, task=None, seed=1, options={{"max_steps": 2}}, console=console))
"""


@posix
@pytest.mark.parametrize("agent", ["human", "expert"])
def test_escape_sequences_of_an_environment_do_not_reach_the_terminal(agent: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(text=HOSTILE, agent=agent))
    session = Session(str(program))
    output = session.read_until(SHOWN)
    if agent == "human":
        output += session.read_until("\x1b[K> ")
        session.type("h")
        output += session.read_until(f"The expert would: {SHOWN}")
        output += session.read_until("\x1b[K> ")
        session.type("q")
        output += session.read_until("You left the game.")
    else:
        output += session.read_until("Not solved")
    session.close()
    assert "\x1b]" not in output and "\x1b[2J" not in output and "\x9b" not in output and "\u202e" not in output


def printed(*parts: object, markup: bool = False) -> str:
    file = io.StringIO()
    Terminal(file=file, width=200, highlight=False).print(*parts, markup=markup)
    return file.getvalue()


def test_console_prints_every_text_visibly() -> None:
    table = Table(title=literal(HOSTILE))
    table.add_column(literal(HOSTILE))
    table.add_row(literal(HOSTILE))
    text = printed(HOSTILE) + printed(literal(HOSTILE)) + printed(table)
    assert text.count(SHOWN) == 5
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)


def test_every_console_of_the_package_is_a_terminal() -> None:
    root = Path(arboretum.__file__).parent
    rooms = [
        root / "cli.py",
        *(path for room in ("envs", "agents", "eval", "trainers") for path in (root / room).rglob("*.py")),
    ]
    made = [
        path for path in rooms if re.search(r"(?<![\w.(])Console\((?!Console)", path.read_text(encoding="utf-8"))
    ]
    assert not made, "use envs.terminal.Terminal, which prints foreign text visibly"


def test_log_messages_are_visible() -> None:
    record = logging.LogRecord("name", logging.WARNING, "path", 1, "skipped %s", ("a\x1b[2J",), None)
    assert VisibleFormatter().format(record) == "skipped a␛[2J"


def test_codes_of_emojis_in_a_text_are_printed_as_they_are() -> None:
    file = io.StringIO()
    Terminal(file=file, width=200).print("--env TextSokoban-v0:x: no number", markup=False)
    assert file.getvalue() == "--env TextSokoban-v0:x: no number\n"


def test_plain_rich_console_would_print_the_escape_sequence() -> None:
    """The danger is real: rich itself passes escape sequences on."""
    file = io.StringIO()
    Console(file=file, width=200).print("\x1b]0;owned", markup=False)
    assert "\x1b]0;owned" in file.getvalue()


@pytest.mark.parametrize("text", ["", "plain\ttext\nπ 中 👨‍👩‍👧 é", "#_√XP"])
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert visible(text) == text


def test_keys_that_begin_an_action_are_typed() -> None:
    assert set(active_keys(["Up", "Down"])) == {"z", "h", "q", "?"}
    assert "h" not in active_keys(["go to bed 1", "Heat mug 1 with microwave 1"])
    assert set(active_keys(None)) == {"z", "h", "q", "?"}


def typed(history: list[str], candidates: list[str], *keys: str) -> tuple[str, int]:
    line = Line(history, candidates)
    for key in keys:
        line.edit(key[1:]) if key.startswith("^") else line.type(key)
    return line.text, line.cursor


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (("ab", "^Left", "x"), "axb"),
        (("ab", "^home", "^delete", "^end", "c"), "bc"),
        (("go to bed", "^kill word"), "go to "),
        (("abc", "^Left", "^kill"), "c"),
        (("^Up",), "two"),
        (("^Up", "^Up", "^Up"), "one"),
        (("^Up", "^Down"), ""),
        (("o", "^complete"), "open "),
        (("op", "^complete", "^complete"), "open door 1"),
        (("op", "^complete", "^complete", "^complete"), "open safe 1"),
        (("op", "^complete", "^complete", "^complete", "^complete"), "open door 1"),
        (("TAKE", "^complete"), "take mug 1"),
        (("x", "^complete"), "x"),
    ],
)
def test_line_is_edited(keys: tuple[str, ...], text: str) -> None:
    assert typed(["one", "two"], ["open door 1", "open safe 1", "take mug 1"], *keys)[0] == text


@posix
def test_line_is_typed_in_a_terminal_of_three_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "3")
    assert read_keys("no", "rth\r") == "north"


@posix
def test_escape_sequence_that_arrives_in_parts_is_one_key() -> None:
    assert read_keys("ac\x1b", "[", "Db\r") == "abc"


@posix
def test_escape_key_types_nothing() -> None:
    assert read_keys("a\x1b", *[""] * 10, "b\r") == "ab"


def read_keys(*parts: str) -> str:
    """Return the line that a keyboard reads from a terminal, to which parts are sent 10 ms apart."""
    import pty
    import threading

    terminal, keyboard = pty.openpty()

    def send() -> None:
        for part in parts:
            os.write(terminal, part.encode())
            time.sleep(0.01)

    with os.fdopen(keyboard) as stdin:
        reader = Keyboard(stdin)
        sender = threading.Thread(target=send)
        sender.start()
        try:
            return reader(None)
        finally:
            sender.join()
            reader.restore()
            os.close(terminal)


def test_agent_on_display_ends_its_episode_itself() -> None:
    class Once(RandomAgent):
        def settle(self, seat: Seat) -> str | None:
            return "one move is enough"

    agent = DisplayedAgent(Once(), Terminal(file=io.StringIO()), 0.0)
    (episode,) = run_episodes(agent, [make_env("TextSokoban-v0")], [Job(None, 1)])
    assert len(episode.turns) == 1 and episode.details["ended"] == "one move is enough"


def test_environment_without_snapshots_is_played_without_going_back(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env("TextSokoban-v0", max_steps=2)
    monkeypatch.setattr(own_class(type(env)), "snapshot", None)
    monkeypatch.setattr(own_class(type(env)), "deterministic", True)
    lines, shown = iter(["Left", ":undo", "Up"]), io.StringIO()
    agent = HumanAgent(Terminal(file=shown), lambda _: next(lines))
    (episode,) = run_episodes(agent, [env], [Job(None, 1)])
    assert [turn.reply for turn in episode.turns] == ["Left", "Up"]
    assert "This environment has no snapshots to go back to." in shown.getvalue()


def test_long_line_is_shown_around_the_cursor() -> None:
    line = Line([], [])
    line.type("中" * 60)
    text, column = line.shown(76)
    assert (len(text), column) == (38, 76)
