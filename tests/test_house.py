"""The shape of the house: rooms depend downward, importing is light, and the checkers find nothing."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import arboretum

ROOT = Path(arboretum.__file__).parent
ROOMS = ["envs", "agents", "eval", "trainers", "cli"]


def sources() -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] in (*ROOMS, "assets", "cli.py", "__init__.py")
    )


def imported(path: Path) -> set[str]:
    """The parts of this package that a module imports, as dotted names below the package."""
    package = list(path.relative_to(ROOT).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = [*base, *(node.module.split(".") if node.module else [])]
            found |= {".".join([*module, alias.name]) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "arboretum":
            pytest.fail(f"{path}: imports its own package by absolute name; use a relative import")
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_depend_downward_only(path: Path) -> None:
    top = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if top not in ROOMS:
        return
    allowed = ROOMS[: ROOMS.index(top) + 1]
    for name in imported(path):
        room = name.split(".")[0]
        assert room not in ROOMS or room in allowed, f"{top} must not import {name}"


HEAVY = {"torch", "transformers", "faiss", "flask", "bm25s", "openai", "vllm", "ray"} | {
    "rich",
    "yaml",
    "jinja2",
    "tyro",
}


def fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return done.stdout


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, json, arboretum; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    assert not HEAVY & set(json.loads(fresh(code)))


def test_importing_costs_little_beside_gymnasium() -> None:
    """At most 1.5 times `import gymnasium`, each in fresh interpreters, in CPU time, the best of several."""
    code = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
    ours, theirs = [], []
    for _ in range(5):
        theirs.append(float(fresh(code.format("gymnasium"))))
        ours.append(float(fresh(code.format("arboretum"))))
    assert min(ours) <= 1.5 * min(theirs)


def test_importing_leaves_the_callers_generators_alone() -> None:
    code = (
        "import random, numpy; random.seed(1); numpy.random.seed(1); a = random.getstate()[1][:3], "
        "numpy.random.get_state()[1][:3].tolist(); import arboretum; "
        "print(a == (random.getstate()[1][:3], numpy.random.get_state()[1][:3].tolist()))"
    )
    assert fresh(code).strip() == "True"


def tool(name: str, *arguments: str, cwd: Path, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing() -> None:
    tool("ruff", "check", ".", cwd=ROOT)
    tool("ruff", "format", "--check", ".", cwd=ROOT)


def test_mypy_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "arboretum").symlink_to(ROOT)  # the root is the package, whatever its folder is called
    rooms = [room for room in ROOMS if (ROOT / room).exists() or (ROOT / f"{room}.py").exists()]
    packages = [part for room in rooms for part in ("-p", f"arboretum.{room}")]
    config = str(ROOT / "pyproject.toml")
    tool("mypy", "--config-file", config, *packages, cwd=ROOT, MYPYPATH=str(tmp_path))


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_fit_on_a_few_screens(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500
    assert path.stem not in ("utils", "helpers", "misc")


def test_the_worlds_pages_are_those_of_the_docstrings() -> None:
    from arboretum.envs.pages import pages
    from arboretum.envs.registry import ENVS

    for name, text in pages(ENVS):
        written = (ROOT / "docs" / "environments" / name).read_text(encoding="utf-8")
        assert written == text, f"docs/environments/{name} is out of date: run `make docs`"
