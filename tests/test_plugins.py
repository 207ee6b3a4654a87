"""The examples of docs/plugins.md, executed unchanged: by path, and as an installed package."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import arboretum
from arboretum.trainers.data.rollouts import Rollouts
from support.rollouts import chain_rollouts

PAGE = Path(arboretum.__file__).parent / "docs" / "plugins.md"


def write_parts(folder: Path) -> str:
    """Write the module of the page into a folder; return the page's part of its `pyproject.toml`."""
    text = PAGE.read_text(encoding="utf-8")
    (folder / "my_parts.py").write_text("\n\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    return str(toml)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder like site-packages with the module of the page and the metadata of its distribution."""
    folder = tmp_path_factory.mktemp("site")
    points = [line.replace('"', "") for line in write_parts(folder).partition('plugins"]\n')[2].splitlines()]
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


@pytest.mark.heavy
def test_package_of_the_page_is_installed_by_pip_beside_the_runs_of_the_page(tmp_path: Path) -> None:
    """setuptools takes a folder beside the module for the package unless the module is named."""
    pytest.importorskip("setuptools", reason="needs setuptools: pip install setuptools")
    project, site = tmp_path / "project", tmp_path / "site"
    (project / "runs").mkdir(parents=True)
    (project / "other").mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "my-parts"\nversion = "1.0"\n' + write_parts(project)
    )
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(site), str(project)], check=True, cwd=tmp_path)
    shown = run_arboretum("play", "Countdown-v0", "--agent", "expert", cwd=tmp_path, site=site)
    assert "The number is 0." in shown


def test_mistyped_name_is_compared_with_those_of_plugins(installed: Path) -> None:
    code = (
        "import arboretum\n"
        "from arboretum.agents.dialogue import make_dialogue\n"
        "from arboretum.agents.registry import make_agent\n"
        "from arboretum.trainers.algorithms.recipes import get_recipe\n"
        "for make in (lambda: make_agent('stubbrn'), lambda: make_dialogue('ters'),\n"
        "             lambda: get_recipe('grpo').with_settings({'selector.name': 'sometimes_solvd'})):\n"
        "    try:\n"
        "        make()\n"
        "    except arboretum.envs.ConfigurationError as error:\n"
        "        print(error)\n"
    )
    done = run_python(code, installed)
    assert "did you mean stubborn?" in done.stdout and "did you mean terse?" in done.stdout, done.stderr
    assert "did you mean sometimes_solved?" in done.stdout


def success_rate(table: str, agent: str) -> float:
    line = next(line for line in table.splitlines() if re.search(rf"\s{re.escape(agent)}\s", line))
    return float(re.findall(r"\d+\.\d", line)[0])


def test_plugin_environment_is_listed_and_played_by_name_and_by_path(installed: Path, tmp_path: Path) -> None:
    assert re.search(r"Countdown-v0\s+count down to zero", run_arboretum("envs", cwd=tmp_path, site=installed))
    shown = run_arboretum("play", "Countdown-v0", "--agent", "expert", "--seed", "1", cwd=tmp_path, site=installed)
    assert "The number is 0." in shown and "Solved in" in shown
    by_path = run_arboretum("play", "my_parts:Countdown", "--agent", "expert", cwd=installed, site=None)
    assert "The number is 0." in by_path


def test_plugin_environment_passes_gymnasium_env_checker(installed: Path) -> None:
    code = (
        "import gymnasium, arboretum; from arboretum.envs.registry import make_env;"
        "from gymnasium.utils.env_checker import check_env; check_env(make_env('Countdown-v0'))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=env)


def run_python(code: str, site: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=env)


def test_plugin_environment_is_made_by_gymnasium_after_import_arboretum(installed: Path) -> None:
    code = (
        "import pickle, sys, gymnasium as gym, arboretum\n"
        "assert 'my_parts' not in sys.modules\n"
        "env = gym.make('Countdown-v0', max_steps=7)\n"
        "first, info = env.reset(seed=1)\n"
        "assert first.startswith('The number is ') and env.unwrapped.max_steps == 7\n"
        "assert pickle.loads(pickle.dumps(env)).step('one') == env.step('one')\n"
        "envs = gym.make_vec('Countdown-v0', num_envs=2, vectorization_mode='async')\n"
        "assert list(envs.reset(seed=1)[0])[0] == first\n"
        "envs.close()\n"
        "from arboretum.envs.registry import all_envs, make_env\n"
        "assert make_env('Countdown-v0', max_steps=7).reset(seed=1)[0] == first\n"
        "assert [spec.id for spec in all_envs()].count('Countdown-v0') == 1\n"
        "assert gym.make('Countdown-v0').reset(seed=1)[0] == first\n"
        "assert 'stubborn' not in gym.registry\n"
    )
    done = run_python(code, installed)
    assert done.returncode == 0, done.stderr


def test_broken_plugins_break_neither_the_import_nor_other_environments(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("raise RuntimeError('imported')\n")
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = ["Missing-v0 = no_such_module:SPEC", "Raises-v0 = raises:SPEC", "Odd-v0 = json:dumps"]
    points += ["TextSokoban-v0 = raises:SPEC", "Nothing-v0 = ", "a b/c:d-v0 = raises:SPEC"]
    (info / "entry_points.txt").write_text("[arboretum.plugins]\n" + "\n".join(points) + "\n")
    code = (
        "import gymnasium as gym, arboretum\n"
        "from arboretum.envs import ConfigurationError\n"
        "gym.make('TextSokoban-v0').reset(seed=0)\n"
        "for id, words in {'Missing-v0': 'cannot be imported', 'Odd-v0': 'not an instance of EnvSpec'}.items():\n"
        "    try:\n"
        "        gym.make(id)\n"
        "    except ConfigurationError as error:\n"
        "        assert words in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(id)\n"
    )
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    (info / "entry_points.txt").write_text("[arboretum.plugins]\nno equals sign\n")
    done = run_python("import arboretum, gymnasium; gymnasium.make('TextSokoban-v0').reset()", tmp_path)
    assert done.returncode == 0 and "metadata of an installed package" in done.stderr, done.stderr


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


# ---------------------------------------------------------------------- parts of recipes


@pytest.fixture(scope="module")
def parts(installed: Path) -> ModuleType:
    """The module of the page, imported into this process."""
    spec = importlib.util.spec_from_file_location("my_parts", installed / "my_parts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_parts"] = module  # dataclasses resolve their annotations through it
    spec.loader.exec_module(module)
    return module


def two_groups() -> Rollouts:
    """Four episodes in two groups; every episode has two turns of one token, and one pays 1 in its second turn."""
    rewards = [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    return chain_rollouts(rewards, [0, 0, 1, 1], tokens=1, success=np.array([True, False, False, False]))


def test_plugin_credit_and_selector_compute_what_the_page_describes(parts: ModuleType) -> None:
    rollouts = two_groups()
    # Returns to go at γ = 0.5 in the first group: 0.5, 1, 0, 0, with the mean 0.375.
    expected = [0.125, 0.625, -0.375, -0.375, 0.0, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(parts.RewardToGo(gamma=0.5).assign(rollouts).advantages, expected)
    assert parts.SometimesSolved().select(rollouts).groups == (0,)
    assert parts.SometimesSolved(high=0.4).select(rollouts).groups == ()


def test_plugin_term_penalizes_entropy_below_its_floor(parts: ModuleType) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    from arboretum.trainers.algorithms.objectives.loss import policy_loss
    from arboretum.trainers.algorithms.objectives.settings import Objective
    from arboretum.trainers.algorithms.objectives.tokens import Tokens

    entropy = torch.tensor([0.1, 0.5], requires_grad=True)
    nothing = torch.zeros(2)
    tokens = Tokens(nothing, nothing, torch.full((2,), 0.5), torch.tensor([0, 0]), entropy=entropy)
    loss, sums = policy_loss(Objective(terms=(parts.EntropyFloor(floor=0.3, coef=1.0),)), tokens)
    loss.backward()
    assert loss.item() == pytest.approx(0.1)
    assert entropy.grad.tolist() == pytest.approx([-0.5, 0.0])
    assert sums["term/entropy_floor"] == pytest.approx(0.2)


@pytest.mark.heavy
def test_plugin_recipe_trains_by_name_and_resumes_from_its_stored_paths(installed: Path, tmp_path: Path) -> None:
    for module in ("torch", "transformers", "accelerate"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")
    changes = ["sampler.prompts=3", "sampler.rollouts=4", "optimization.episodes_per_step=12"]
    changes += ["selector.low=0", "selector.high=1"]  # keeps every group, whatever the policy solves
    options = [part for change in [*changes, "optimization.updates=1"] for part in ("--set", change)]
    out = tmp_path / "run"
    model = ["--model", "sapling", "--dialogue", "no_think", "--device", "cpu", "--validation.every", "0"]
    command = ["train", "turn_grpo", "--env", "TextSokoban-v0", *model, "--out", str(out), *options]
    run_arboretum(*command, "--set", "credit.gamma=0.9", cwd=tmp_path, site=installed)
    recipe = json.loads((out / "run.json").read_text())["recipe"]
    assert recipe["credit"] == {"name": "my_parts:RewardToGo", "gamma": 0.9}
    assert recipe["selector"]["name"] == "my_parts:SometimesSolved"
    (record,) = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert record["groups_kept"] == 1.0 and record["term/entropy_floor"] >= 0.0
    run_arboretum("train", "--resume", str(out), "--set", "optimization.updates=2", cwd=tmp_path, site=installed)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


def test_plugin_parts_are_set_by_name_in_another_recipe(installed: Path, tmp_path: Path) -> None:
    code = (
        "from arboretum.eval.options import parse_options\n"
        "from arboretum.trainers.algorithms.recipes import get_recipe\n"
        "changes = ['selector.name=sometimes_solved', 'objective.terms=[{name: entropy_floor, coef: 0.02}]']\n"
        "recipe = get_recipe('grpo').with_settings(parse_options(changes, '--set'))\n"
        "print(recipe.selector, recipe.objective.terms, recipe.needs_entropy)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "SometimesSolved(low=0.1, high=0.9) (EntropyFloor(floor=0.3, coef=0.02),) True\n"
