"""The tables of docs/suites.md come out of the commands that stand above them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import arboretum

PAGE = Path(arboretum.__file__).parent / "docs" / "suites.md"

pytestmark = pytest.mark.heavy


def tables() -> list[tuple[str, str, str]]:
    """Return heading, command and output of every evaluation without a model."""
    found = []
    for section in re.split(r"^#+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        for command, output in re.findall(r"```console\n\$ (.*?)\n```\n+```text\n(.*?)```", section, re.DOTALL):
            if "--model" not in command:
                found.append((section.partition("\n")[0], command, output))
    return found


def normalized(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.parametrize(("heading", "command", "output"), tables(), ids=lambda value: value[:24])
def test_table_is_the_output_of_its_command(heading: str, command: str, output: str, tmp_path: Path) -> None:
    env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    data = env.pop("ARBORETUM_DATA", None)
    if "real data" in heading:
        if data is None:
            pytest.skip("needs benchmark data: set ARBORETUM_DATA")
        env["ARBORETUM_DATA"] = data
    program, *arguments = shlex.split(command)
    assert program == "arboretum"
    done = subprocess.run(
        [sys.executable, "-m", "arboretum", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert normalized(output) in normalized(done.stdout)


def test_every_suite_of_a_paper_has_a_table() -> None:
    assert {command.split()[2] for _, command, _ in tables()} == {"tstar", "ragen", "tree_grpo"}
    assert len(tables()) == 4
