"""The built distributions: the wheel runs alone in an empty environment, the source can be tested."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the wheel, the source distribution and the clone that both are built from."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    folder = tmp_path_factory.mktemp("built")
    run("git", "clone", "--quiet", ROOT, folder / "clone", cwd=folder)  # It has the tracked files only.
    output = run(sys.executable, "-m", "build", "--outdir", folder, folder / "clone", cwd=folder)
    # A clean clone has no file that MANIFEST.in excludes, which setuptools mentions.
    warnings = [line for line in output.splitlines() if "warning: " in line.lower() and "*.py[cod]" not in line]
    assert [line for line in warnings if "byte-compiling is disabled" not in line] == []
    return folder


@pytest.mark.heavy
def test_source_distribution_has_every_tracked_file(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = set(run("git", "ls-files", cwd=built / "clone").split("\n")) - {""}
    assert tracked - names == set()
    assert not {name for name in names if name.endswith(".pyc")}


@pytest.mark.heavy
def test_wheel_has_every_module_and_asset_and_nothing_else(built: Path) -> None:
    """The wheel is built from the source distribution, so this tests that one as well."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name.removeprefix("arboretum/") for name in archive.namelist() if name.startswith("arboretum/")}
    rooms = ("envs/", "agents/", "eval/", "trainers/", "assets/")
    tracked = run("git", "ls-files", cwd=built / "clone").split("\n")
    packaged = {name for name in tracked if name.startswith(rooms)}
    assert names == packaged | {"__init__.py", "__main__.py", "cli.py", "py.typed"}


USER_PROGRAM = """
import gymnasium as gym

import arboretum
from arboretum.agents import Agent, Reply, Seat
from arboretum.envs import TextEnv, make_env
from arboretum.trainers import Recipe, get_recipe


class First(Agent):
    name = "first"

    def act(self, seats: list[Seat]) -> list[Reply]:  # type: ignore[override]
        return [Reply((seat.env.admissible_actions() or ("none",))[:1]) for seat in seats]


env: TextEnv[object] = make_env("TextSokoban-v0")
reveal_type(env.expert_actions())
reveal_type(arboretum.evaluate)
recipe: Recipe = get_recipe("grpo")
wrong: int = recipe.name
"""


@pytest.mark.heavy
def test_type_checker_reads_the_annotations_of_the_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    run(*install, wheel, "mypy", cwd=tmp_path)
    (tmp_path / "program.py").write_text(USER_PROGRAM)
    done = subprocess.run(
        [str(python), "-m", "mypy", "--strict", "program.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and 'expression has type "str", variable has type "int"' in errors[0], done.stdout
    assert 'Revealed type is "list[str] | None"' in done.stdout.replace("builtins.", "")


@pytest.mark.heavy
def test_wheel_alone_lists_and_evaluates_environments(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
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
