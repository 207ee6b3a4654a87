"""Tools of other projects in virtual environments of their own, which run the checkout as if it was installed."""

from __future__ import annotations

import os
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Neighbour:
    """Virtual environment of another project, in which commands run.

    Attributes:
        bin: Folder of its programs.
        site: Folder like site-packages, with the checkout as an installed package.
    """

    bin: Path
    site: Path

    def run(
        self, program: str, *arguments: object, cwd: Path, status: int = 0, timeout: float = 240, **variables: str
    ) -> str:
        """Run a program that must end with a status, and return its output.

        Args:
            program: Name of the program.
            arguments: Its arguments.
            cwd: Working directory.
            status: Expected exit status.
            timeout: Time limit in seconds.
            variables: Further environment variables.
        """
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(self.site), "COLUMNS": "120"}
        command = [str(self.bin / program), *map(str, arguments)]
        environment = {**os.environ, **own, **variables}
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=timeout)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout


def neighbour(name: str, folder: Path) -> Neighbour:
    """Return the virtual environment `.venv-NAME` of the checkout; the test is skipped if there is none.

    Args:
        name: Name of the environment; the variable ARBORETUM_VENV_NAME, in capitals, names another folder.
        folder: Empty folder for the package.
    """
    own = os.environ.get(f"ARBORETUM_VENV_{name.upper()}")
    programs = (Path(own) if own else ROOT / f".venv-{name}") / "bin"
    if not (programs / "python").exists():
        pytest.skip(f"needs the environment of requirements-{name}.txt: make .venv-{name}/.installed")
    return Neighbour(programs, install(folder / "site-packages"))


def install(site: Path) -> Path:
    """Write the checkout's packages and entry points to a folder like site-packages, as links and metadata."""
    site.mkdir(parents=True)
    (site / "arboretum").symlink_to(ROOT)
    (site / "arboretum_verifiers").symlink_to(ROOT / "arboretum_verifiers")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / "arboretum_rl-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: arboretum-rl\nVersion: 0\n", encoding="utf-8")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return site
