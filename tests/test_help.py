"""The help of every command, compared with the stored text, so that a change is visible in a diff.

After an intended change, run `ARBORETUM_UPDATE_HELP=1 pytest tests/test_help.py`
and review the diff of `tests/help/`.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from arboretum.cli import main

FOLDER = Path(__file__).parent / "help"
COMMANDS = [
    "",
    "envs",
    "docs",
    "play",
    "eval",
    "decisions",
    "report",
    "export",
    "compare",
    "view",
    "bench",
    "scaling",
    "scaling plan",
    "scaling measure",
    "serve",
    "serve envs",
    "serve webshop",
    "serve retrieval",
    "index",
    "index build",
    "index verify",
    "index recall",
    "data",
    "verify",
    "train",
    "sft",
    "study",
    "sapling",
]


@cache
def print_help(command: str) -> str:
    """Return the help of a command at 80 columns."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # whose encoding allows the characters of boxes
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        patch.setenv("COLUMNS", "80")
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    printed.seek(0)
    return printed.read()


def test_help_of_a_process_is_the_same() -> None:
    command = [sys.executable, "-m", "arboretum.cli", "serve", "--help"]
    env = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == print_help("serve")


def test_every_command_has_a_stored_help() -> None:
    verbs = re.findall(r"^│   • (\w+)", print_help(""), re.MULTILINE)
    assert verbs == [command for command in COMMANDS if command and " " not in command]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_as_stored_and_fits_80_columns(command: str) -> None:
    text = print_help(command)
    path = FOLDER / f"{command.replace(' ', '-') or 'arboretum'}.txt"
    if os.environ.get("ARBORETUM_UPDATE_HELP"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        "the help has changed; if that is intended, update it as this file's docstring says"
    )
    body = "\n".join(line for line in text.splitlines() if not line.startswith("usage:"))
    assert max(map(len, body.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_description_of_its_own(command: str) -> None:
    lines = print_help(command).splitlines()
    (column,) = {line.index("show this help message") for line in lines if "show this help message" in line}
    descriptions: dict[str, str] = {}
    option = ""
    for line in lines:
        if line.startswith("│ --"):
            option = line.split()[1].rstrip(",")
            assert option not in descriptions, f"{option} is listed twice"
            # A long name stands on a line of its own.
            descriptions[option] = line[column:-1] if line[column - 2 : column] == "  " else ""
        elif option and line.startswith("│" + " " * (column - 1)):
            descriptions[option] += line[column:-1]
        elif not line.startswith("│ "):  # not the rest of a long list of choices
            option = ""
    texts = [" ".join(text.partition("(default:")[0].split()) for text in descriptions.values()]
    assert all(re.match(r"[A-Z\"].*[.)]", text) for text in texts), descriptions
    assert len(set(texts)) == len(texts)
