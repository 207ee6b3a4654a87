"""The examples of docs/plugins.md, executed unchanged: by path, and as an installed package."""

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
    """Folder like site-packages with the module of the page and the metadata of its distribution."""
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


def run_arboretum(*arguments: str, cwd: Path, site: Path | None) -> str:
    env = {**os.environ, "COLUMNS": "80"}
    if site is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "arboretum.cli", *arguments], capture_output=True, text=True, cwd=cwd, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def success_rate(table: str, agent: str) -> float:
    (line,) = [line for line in table.splitlines() if re.search(rf"\s{re.escape(agent)}\s", line)]
    return float(re.findall(r"\d+\.\d", line)[0])


def test_plugin_environment_is_listed_and_played_by_name_and_by_path(installed: Path, tmp_path: Path) -> None:
    assert re.search(r"Countdown-v0\s+count down to zero", run_arboretum("envs", cwd=tmp_path, site=installed))
    shown = run_arboretum("play", "Countdown-v0", "--agent", "expert", "--seed", "1", cwd=tmp_path, site=installed)
    assert "The number is 0." in shown and "solved in" in shown
    by_path = run_arboretum("play", "my_parts:Countdown", "--agent", "expert", cwd=installed, site=None)
    assert "The number is 0." in by_path


def test_plugin_environment_passes_gymnasium_env_checker(installed: Path) -> None:
    code = (
        "import gymnasium, arboretum; from arboretum.envs.registry import make_env;"
        "from gymnasium.utils.env_checker import check_env; check_env(make_env('Countdown-v0'))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=env)


def test_plugin_agent_is_evaluated_by_name_and_by_path(installed: Path, tmp_path: Path) -> None:
    suite = str(installed / "my_suite.yaml")
    table = run_arboretum("eval", suite, "--agent", "stubborn", cwd=tmp_path, site=installed)
    assert success_rate(table, "stubborn") == 100.0  # subtracting one always reaches zero
    by_path = ["eval", suite, "--agent", "my_parts:Stubborn", "--out", str(tmp_path / "path"), "--workers", "2"]
    assert success_rate(run_arboretum(*by_path, cwd=installed, site=installed), "stubborn") == 100.0


def test_plugin_engine_and_dialogue_are_evaluated_together(installed: Path, tmp_path: Path) -> None:
    command = ["eval", str(installed / "my_suite.yaml"), "--agent", "direct", "--dialogue", "terse"]
    table = run_arboretum(*command, "--engine", "echo", "--model", "echo", cwd=tmp_path, site=installed)
    assert success_rate(table, "direct:echo") == 100.0
