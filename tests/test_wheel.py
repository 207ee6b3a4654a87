"""The built wheel, installed alone in an empty environment, has everything that it needs."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

import arboretum

ROOT = Path(arboretum.__file__).parent


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.heavy
def test_the_wheel_alone_runs_the_demo(tmp_path: Path) -> None:
    clone = tmp_path / "clone"  # what git tracks, not what lies about in this folder
    run("git", "clone", "--quiet", ROOT, clone, cwd=tmp_path)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, clone, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    run(*install, wheel, cwd=tmp_path)
    arboretum_command = tmp_path / "venv" / "bin" / "arboretum"
    assert "TextSokoban-v0" in run(arboretum_command, "envs", cwd=tmp_path)
    out = run(arboretum_command, "eval", "quick", "--workers", "1", cwd=tmp_path)
    assert "expert" in out and (tmp_path / "runs" / "quick-random-expert" / "report.html").is_file()
    listed = run(python, "-c", "import arboretum; print(arboretum.__file__)", cwd=tmp_path).strip()
    assert listed.startswith(str(tmp_path / "venv"))
    assert (Path(listed).parent / "py.typed").is_file()
    assert not (Path(listed).parent / "tests").exists()
