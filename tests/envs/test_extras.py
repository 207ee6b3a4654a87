"""The commands in messages about missing extras, and the distribution that they name."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import arboretum
from arboretum.envs import extras
from arboretum.envs.errors import ConfigurationError

ROOT = Path(arboretum.__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FUNCTIONS = {"missing_extra": 1, "optional_module": 1, "install_command": 0, "not_measured": 1}
"""Functions that take the name of an extra, with the position of that argument."""


def sources() -> list[Path]:
    rooms = [path for room in ("envs", "agents", "eval", "trainers") for path in (ROOT / room).rglob("*.py")]
    return sorted([*rooms, ROOT / "cli.py"])


def test_distribution_has_its_own_name_and_refers_to_itself_by_it() -> None:
    assert PROJECT["name"] == extras.DISTRIBUTION == "arboretum-rl"
    requirements = [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
    itself = [one for one in requirements if one.startswith("arboretum")]
    assert itself and all(one.startswith("arboretum-rl[") for one in itself)


def test_every_extra_in_the_code_is_defined() -> None:
    named = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
                argument = node.args[FUNCTIONS[node.func.id]]
                if isinstance(argument, ast.Constant):
                    named.add(argument.value)
    assert named >= {"lm", "openai", "vllm", "web", "search", "dense", "lucene", "ray", "tensorboard", "peers"}
    assert named <= set(PROJECT["optional-dependencies"])


def test_only_one_function_composes_commands_for_extras() -> None:
    for path in [*sources(), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install.{0,20}arboretum(?!-rl)", text), path
        if path.suffix == ".py" and path.name != "extras.py":
            assert not re.search(r"arboretum(-rl)?\[", text), f"{path}: use install_command"


def test_checkout_is_installed_from_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: str(Path(sys.executable).parent / name))
    monkeypatch.chdir(tmp_path)
    assert extras.install_command("lm") == f'pip install --editable "{ROOT}[lm]"'
    monkeypatch.chdir(ROOT)
    assert extras.install_command("lm") == 'pip install --editable ".[lm]"'


def test_package_from_an_index_is_installed_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: str(Path(sys.executable).parent / name))
    monkeypatch.setattr(extras, "_ROOT", tmp_path)
    assert extras.install_command("lm") == 'pip install "arboretum-rl[lm]"'


def test_pip_of_another_environment_is_not_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, "_ROOT", tmp_path)
    for found in (None, "/usr/bin/elsewhere/pip"):
        monkeypatch.setattr(shutil, "which", lambda _, found=found: found)
        assert extras.install_command("lm") == f'{sys.executable} -m pip install "arboretum-rl[lm]"'


def test_missing_module_is_named_with_the_command_of_its_extra() -> None:
    with pytest.raises(ConfigurationError) as caught:
        extras.optional_module("surely_not_installed", "web", "the server")
    with pytest.raises(ConfigurationError, match=r"in a virtual environment of its own: see docs/openenv.md\.$"):
        extras.optional_module("surely_not_installed", "openenv", "the server")
    command = extras.install_command("web")
    assert str(caught.value) == f'the server needs the extra "web" (surely_not_installed is missing): {command}'


def test_command_for_a_checkout_is_accepted_by_pip(tmp_path: Path) -> None:
    """pip resolves the folder with its extra; without dependencies nothing is downloaded."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "envs").mkdir()
    (folder / "arboretum_verifiers").mkdir()
    flags = ["--dry-run", "--no-deps", "--no-build-isolation", "--no-index", "--report", "-", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *flags, "--editable", f"{folder}[web]"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert '"name": "arboretum-rl"' in done.stdout and '"requested_extras"' in done.stdout
