"""The built wheel runs alone in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import arboretum

ROOT = Path(arboretum.__file__).parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.heavy
def test_wheel_alone_lists_and_evaluates_environments(tmp_path: Path) -> None:
    clone = tmp_path / "clone"  # It has the tracked files only.
    run("git", "clone", "--quiet", ROOT, clone, cwd=tmp_path)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, clone, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    run(*install, wheel, cwd=tmp_path)
    command = tmp_path / "venv" / "bin" / "arboretum"
    assert "TextSokoban-v0" in run(command, "envs", cwd=tmp_path)
    assert run(command, "docs", "--write", "reference", cwd=tmp_path)
    table = run(command, "eval", "quick", "--workers", "1", cwd=tmp_path)
    assert "expert" in table and (tmp_path / "runs" / "quick-random-expert" / "report.html").is_file()
    location = run(python, "-c", "import arboretum; print(arboretum.__file__)", cwd=tmp_path).strip()
    assert location.startswith(str(tmp_path / "venv"))
    assert (Path(location).parent / "py.typed").is_file()
    assert not (Path(location).parent / "tests").exists()
    # Inspect AI and verifiers find their adapters by these.
    points = "import importlib.metadata as m; print(*(p.value for p in m.entry_points(group='inspect_ai')))"
    assert run(python, "-c", points, cwd=tmp_path).split() == ["arboretum.agents.adapters.inspect_task"]
    assert (Path(location).parents[1] / "arboretum_verifiers" / "__init__.py").is_file()
    licenses = f"{next(tmp_path.glob('venv/lib/*/site-packages'))}/arboretum_rl-*.dist-info/licenses"
    assert {path.name for path in Path("/").glob(f"{licenses.lstrip('/')}/*")} == {
        "LICENSE",
        "THIRD_PARTY_NOTICES",
    }
    missing = subprocess.run(
        [str(command), "bench", "rollout"], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT
    )
    assert missing.returncode == 2 and 'install "arboretum-rl[lm]"' in missing.stderr
    # The name is that of the installed distribution, so pip finds it without an index.
    run(python, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "arboretum-rl[lm]", cwd=tmp_path)
