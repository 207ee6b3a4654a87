"""Every program of `examples/` runs as its docstring says, and prints what it promises."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arboretum
from arboretum.agents.dialogue import make_dialogue
from arboretum.envs.registry import make_env

ROOT = Path(arboretum.__file__).parent
EXAMPLES = ROOT / "examples"
RATE = r"\d+ % of held-out levels solved \(\d+ to \d+\)"


def run_example(name: str, *arguments: str, cwd: Path) -> str:
    """Run a program of the folder on one thread, and return what it prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "none"}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    # DeepSpeed, where it is installed, logs to the standard output.
    return re.sub(r"^\[\d{4}-\d\d-\d\d .*\n", "", done.stdout, flags=re.MULTILINE)


def require(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")


def solved(output: str) -> dict[str, float]:
    """Return the success rates in percent that `arboretum.evaluate` printed, by agent."""
    return {agent: float(rate) for agent, rate in re.findall(r", (\S+): ([\d.]+) % solved", output)}


# ---------------------------------------------------------------------- the folder


def files() -> list[Path]:
    return sorted(path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb", ".yaml"))


def test_every_example_has_a_test_and_a_row_in_the_table() -> None:
    tests, table = Path(__file__).read_text(encoding="utf-8"), (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(files()) == 10
    for path in files():
        assert f'"{path.name}"' in tests, f"{path.name} has no test"
        assert f"[{path.name}]({path.name})" in table, f"{path.name} is not in examples/README.md"
    assert {EXAMPLES / name for name in re.findall(r"\]\((\w+\.\w+)\)", table)} == set(files())


@pytest.mark.parametrize("path", [path for path in files() if path.suffix == ".py"], ids=lambda path: path.name)
def test_docstring_says_how_to_run_it_and_what_it_prints(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"    python examples/{path.name}" in text and "rints" in text.split('"""')[1]


# ---------------------------------------------------------------------- programs


@pytest.mark.heavy
def test_own_environment_is_solved_by_the_expert_and_half_by_the_model(tmp_path: Path) -> None:
    require("torch", "transformers")
    output = run_example("own_environment.py", "--tasks", "40", cwd=tmp_path)
    board, expert = output.split("\n\n")[0].rsplit("\n", 1)
    assert len(board.split("\n")) == 5 and expert.startswith("Expert: ")
    rates = solved(output)
    assert rates["expert"] == 100 and rates["random"] < 35 < rates["no_think:sapling"]


def test_own_environment_passes_verification(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "arboretum", "verify", "own_environment:SlidingLake"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLES)
    assert done.returncode == 0 and "own_environment:SlidingLake: pass" in done.stdout, done.stdout + done.stderr


def test_what_if_agrees_with_the_exact_optimum(tmp_path: Path) -> None:
    output = run_example("what_if.py", "--samples", "100", cwd=tmp_path)
    found = re.findall(r"(\d+) % \( *(\d+)\)", output)
    assert len(found) == 4 * 13
    assert all(abs(int(played) - int(exact)) <= 20 for played, exact in found)
    assert output.count(">") == 13 and "Not solved. Step 13 gave away most: 62 points." in output


def test_hosted_model_is_evaluated_on_a_server_and_resumed(tmp_path: Path) -> None:
    require("torch", "transformers", "aiohttp")
    from support.chat_server import ChatServer, model_replies

    server = ChatServer(model_replies("sapling", make_dialogue("no_think"), 24))
    options = ["--agent", "no_think", "--env", "TextFrozenLake-v0", "--tasks", "6", "--max-tokens", "24"]
    with server.running():
        call = ["sapling", "--base-url", server.url, *options]
        output = run_example("evaluate_hosted_model.py", *call, cwd=tmp_path)
        requests = len(server.conversations)
        again = run_example("evaluate_hosted_model.py", *call, cwd=tmp_path)
    assert set(solved(output)) == {"no_think:sapling", "random", "expert"}
    assert re.search(r"no_think:\S+ - random: [+-][\d.]+ points \([+-][\d.]+ to [+-][\d.]+\), p = ", output)
    assert "prompt and" in output and "<answer>" in output
    assert (tmp_path / "runs" / "hosted" / "report.html").is_file()
    assert requests > 0 and len(server.conversations) == requests and again == output


@pytest.mark.heavy
def test_folder_is_evaluated_at_every_temperature(tmp_path: Path) -> None:
    require("torch", "transformers")
    folder = ROOT / "assets" / "sapling"
    output = run_example("evaluate_folder.py", str(folder), "--tasks", "8", "--attempts", "2", cwd=tmp_path)
    lines = output.splitlines()
    assert lines[0] == "TextSokoban-v0, 8 tasks, 2 episodes each" and [line.split()[0] for line in lines[2:]] == [
        "0.0",
        "0.5",
        "1.0",
    ]
    for line in lines[2:]:
        rate, some, every = map(float, re.findall(r"([\d.]+) %", line))
        assert every <= rate <= some
    assert len(set(re.findall(r"([\d.]+) %", lines[2]))) == 1, "greedy attempts at a task are equal"


def test_suite_plays_every_level_in_every_form() -> None:
    require("torch", "transformers")
    run = arboretum.evaluate(EXAMPLES / "sapling_forms.yaml", "no_think", model="sapling", limit=1)
    names = [line.entry for line in run.summary.lines]
    levels = dict.fromkeys(name.rpartition(" ")[0] for name in names)
    assert len(levels) == 8 and names == [
        f"{level} {form}" for level in levels for form in ("ragen", "five", "one")
    ]
    assert all(line.episodes == 1 and line.failed == 0 for line in run.summary.lines)


@pytest.mark.heavy
def test_own_credit_is_trained_with_beside_grpo(tmp_path: Path) -> None:
    require("torch", "accelerate")
    output = run_example("own_credit.py", "--updates", "2", cwd=tmp_path)
    first, second = re.findall(
        rf"^(\S+): mean returns ([\d.]+) ([\d.]+)\n  before {RATE}\n  after  {RATE}$", output, re.M
    )
    assert (first[0], second[0]) == ("group", "own_credit:Rank")
    assert first[1] == second[1], "the first episodes are sampled by the same policy with the same seeds"
    assert {path.name for path in (tmp_path / "runs" / "own_credit").iterdir()} == {"group", "rank"}


def test_ranks_are_zero_in_equal_groups_and_opposite_for_pairs() -> None:
    from support.rollouts import chain_rollouts

    spec = importlib.util.spec_from_file_location("own_credit_example", EXAMPLES / "own_credit.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look the module up
    spec.loader.exec_module(module)
    rollouts = chain_rollouts([[0.0], [9.0], [1.0], [5.0], [5.0]], [0, 0, 0, 1, 1], tokens=1)
    assert module.Rank().assign(rollouts).advantages.tolist() == [-1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.heavy
def test_training_reports_success_before_and_after(tmp_path: Path) -> None:
    require("torch", "accelerate")
    output = run_example("train_in_30_lines.py", "2", cwd=tmp_path)
    assert re.search(rf"^0 \n1 [\d.]+\n2 [\d.]+\nbefore {RATE}\nafter  {RATE}\nModel: runs/lake-2/model$", output)
    assert (tmp_path / "runs" / "lake-2" / "model" / "model.safetensors").is_file()


@pytest.mark.heavy
def test_trl_trains_on_our_episodes(tmp_path: Path) -> None:
    require("torch", "trl")
    output = run_example("trl_with_our_environments.py", "--steps", "1", cwd=tmp_path)
    assert re.search(rf"^mean returns -?[\d.]+\nbefore {RATE}\nafter  {RATE}$", output, re.M)
    assert (tmp_path / "runs" / "trl" / "model.safetensors").is_file()


@pytest.mark.heavy
def test_recorded_episode_shows_a_fatal_move_and_a_solution(tmp_path: Path) -> None:
    require("torch", "transformers", "PIL")
    from PIL import Image

    output = run_example("record_episode.py", "episode.gif", cwd=tmp_path)
    (task, lost), (_, won) = re.findall(r"^(test/\d+) (?:lost|solved): (.*)$", output, re.M)
    env = make_env("TextSokoban-v0", split="test")
    for moves, value in ((lost, 0.0), (won, 1.0)):
        env.reset(seed=0, options={"task": task})
        for action in moves.split():
            assert env.optimum() != (0.0, None)
            env.step(action)
        assert env.optimum()[0] == value
    shown = ROOT / "docs" / "episode.gif"
    for path in (tmp_path / "episode.gif", shown):
        assert path.stat().st_size <= 400_000
        with Image.open(path) as picture:
            assert picture.size == (700, 520) and picture.info["loop"] == 0
            assert getattr(picture, "n_frames", 1) >= len(lost.split()) + 5


@pytest.mark.heavy
def test_notebook_runs_and_its_stored_outputs_are_current(tmp_path: Path) -> None:
    require("torch", "accelerate", "nbclient", "ipykernel")
    import nbformat
    from nbclient import NotebookClient

    stored = nbformat.read(EXAMPLES / "first_look.ipynb", as_version=4)
    fresh = nbformat.read(EXAMPLES / "first_look.ipynb", as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(fresh, timeout=250, coalesce_streams=True, resources=folder).execute()
    cells = [(old, new) for old, new in zip(stored.cells, fresh.cells, strict=True) if old.cell_type == "code"]
    assert all(old.outputs and old.execution_count for old, _ in cells)
    # What a model samples can differ in the last bits of another processor.
    for old, new in cells:
        if "sapling" not in old.source and "episodes" not in old.source and "result" not in old.source:
            assert old.outputs == new.outputs, old.source
        assert [one.output_type for one in old.outputs] == [one.output_type for one in new.outputs]
    assert re.search(RATE, new.outputs[-1].text)
