"""The page on plug-ins, run as it stands: by path, and as an installed package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import arboretum

PAGE = Path(arboretum.__file__).parent / "docs" / "plugins.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like site-packages that holds the page's module and its distribution's metadata."""
    folder = tmp_path_factory.mktemp("site")
    text = PAGE.read_text(encoding="utf-8")
    (folder / "my_parts.py").write_text("\n\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    points = [line.replace('"', "") for line in toml.splitlines()[1:]]
    info = folder / "my_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[arboretum.plugins]\n" + "\n".join(points) + "\n")
    (folder / "my_suite.yaml").write_text("name: mine\nentries:\n  - {env: Countdown-v0}\n")
    return folder


def arboretum_command(*arguments: str, cwd: Path, site: Path | None) -> str:
    env = {**os.environ, "COLUMNS": "80"}
    if site is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "arboretum.cli", *arguments], capture_output=True, text=True, cwd=cwd, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rate(table: str, agent: str) -> float:
    (line,) = [line for line in table.splitlines() if re.search(rf"\s{re.escape(agent)}\s", line)]
    return float(re.findall(r"\d+\.\d", line)[0])


def test_the_world_is_listed_and_played(installed: Path, tmp_path: Path) -> None:
    assert re.search(r"Countdown-v0\s+count down to zero", arboretum_command("envs", cwd=tmp_path, site=installed))
    shown = arboretum_command(
        "play", "Countdown-v0", "--agent", "expert", "--seed", "1", cwd=tmp_path, site=installed
    )
    assert "The number is 0." in shown and "solved in" in shown
    by_path = arboretum_command("play", "my_parts:Countdown", "--agent", "expert", cwd=installed, site=None)
    assert "The number is 0." in by_path


def test_the_world_keeps_gymnasiums_contract(installed: Path) -> None:
    code = (
        "import gymnasium, arboretum; from arboretum.envs.registry import make_env;"
        "from gymnasium.utils.env_checker import check_env; check_env(make_env('Countdown-v0'))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=env)


def test_the_agent_plays_by_name_and_by_path(installed: Path, tmp_path: Path) -> None:
    suite = str(installed / "my_suite.yaml")
    table = arboretum_command("eval", suite, "--agent", "stubborn", cwd=tmp_path, site=installed)
    assert rate(table, "stubborn") == 100.0  # by ones, the number always comes down to zero
    by_path = ["eval", suite, "--agent", "my_parts:Stubborn", "--out", str(tmp_path / "path"), "--workers", "2"]
    assert rate(arboretum_command(*by_path, cwd=installed, site=installed), "stubborn") == 100.0


def test_engine_and_dialogue_play_together(installed: Path, tmp_path: Path) -> None:
    command = ["eval", str(installed / "my_suite.yaml"), "--agent", "direct", "--dialogue", "terse"]
    table = arboretum_command(*command, "--engine", "echo", "--model", "echo", cwd=tmp_path, site=installed)
    assert rate(table, "direct:echo") == 100.0
