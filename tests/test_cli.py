"""The `arboretum` command as a user meets it: its output and its exit status."""

from __future__ import annotations

import csv
import io
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arboretum.cli import main
from arboretum.trainers.config.run import TrainingConfig

ASK_A_MODEL = ["eval", "TextBandit-v0", "--agent", "direct", "--limit", "1", "--model", "openai/m"]


def run(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "arboretum.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80"},
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["evl", "quick"], "unknown command 'evl'; did you mean"),
        (["trian"], "unknown command 'trian'; did you mean train?"),
        (["eval", "qick"], "unknown suite or environment 'qick'; did you mean quick?"),
        (["eval", "quick", "--agent", "randm"], "unknown agent 'randm'; did you mean random?"),
        (["verify", "TextFrozenLak-v0"], "'TextFrozenLak-v0'; did you mean TextFrozenLake-v0 or"),
        (["play", "TextBandt-v0"], "unknown environment 'TextBandt-v0'; did you mean TextBandit-v0"),
        (["play", "TextBandit-v0", "--task", "Teacher/Tradr"], "did you mean Teacher/Trader"),
        (["play", "TextBandit-v0", "--split", "tset"], "unknown split 'tset'; did you mean test?"),
        (["bench", "evns"], "unknown benchmark 'evns'; did you mean envs"),
        (["play", "TextBandit-v0", "--seed", "-1"], "seed must not be negative"),
        (["eval", "quick", "--workers", "0"], "--workers must be at least 1"),
        (["eval", "quick", "--out", "/proc/nowhere"], "cannot be written to"),
        (["report", "/nowhere"], "holds no run (no run.json); give the folder of a run"),
        (["eval", "/nowhere.yaml"], "cannot be read"),
        (["eval", "missing.py:Env"], "missing.py:Env cannot be imported: No module named 'missing'."),
        (["eval", "bad.py:Env"], "did you mean bad:Env?"),
        (["eval", "quick", "--agent", "parts/bad.py:Mine"], "did you mean parts.bad:Mine?"),
        (["data", "verify", "alfworld"], "neither downloads the files of alfworld nor knows their checksums"),
        (["data", "get", "alfwrld"], "unknown data set 'alfwrld'; did you mean alfworld?"),
        (["eval", "quick", "--limit", "three"], "--limit: 'three' is not a whole number."),
        (["play", "TextBandit-v0", "--seed=x y"], "--seed: 'x y' is not a whole number."),
        (["view", "--port", "it's"], '--port: "it\'s" is not a whole number.'),
        (["eval", "quick", "--label-seconds", "long"], "--label-seconds: 'long' is not a number."),
        (["scaling", "plan", "--batch", "big"], "--batch: 'big' is not a whole number."),
        (["eval", "TextBandit-v0", "--env-arg", "env=1"], "unknown option of TextBandit-v0 'env'; known: split,"),
        (["eval", "TextBandit-v0", "--env-arg", "id=3"], "unknown option of TextBandit-v0 'id'; known: split,"),
        (["play", "TextBandit-v0", "--env-arg", "id=3"], "unknown option of TextBandit-v0 'id'; known: split,"),
        ([*ASK_A_MODEL, "--engine-arg", "base_url=5"], "base_url=) must look like https://host/v1, not '5'."),
        (
            [*ASK_A_MODEL, "--engine-arg", "base_url=http://a/v1", "--base-url", "http://b/v1"],
            "is 'http://b/v1', but the engine's argument base_url 'http://a/v1'; remove one.",
        ),
        (["scaling", "plan", "--gpus", "8", "x"], "--gpus: 'x' is not a whole number."),
    ],
)
def test_mistake_of_the_user_is_reported_in_one_sentence_with_status_2(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "bad.py").touch()
    (tmp_path / "bad.py").touch()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert "Traceback" not in printed.err + printed.out


@pytest.mark.parametrize(
    "given",
    [
        ["--agent", "random", "--agent", "expert"],
        ["--agent=random", "--limit", "2", "--agent", "expert"],
        ["--agent", "random", "expert"],
    ],
)
def test_all_agents_of_a_repeated_option_play_and_are_exported(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--no-references", "--label-seconds", "0", "--workers", "1", "--limit", "2", "--out", "run"]
    chosen = [one for one in given if one not in ("--limit", "2")]
    for command in (
        ["eval", "TextBandit-v0", *given, *options],
        ["export", "run", "--to", "csv", *chosen],
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0, capsys.readouterr().err
    with (tmp_path / "run" / "episodes.csv").open() as file:
        assert {row["agent"] for row in csv.DictReader(file)} == {"random", "expert"}


def test_repeated_options_of_a_group_and_of_a_sub_command_keep_all_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["scaling", "plan", "--gpus", "x", "--batch", "8", "--gpus", "16"])
    assert "--gpus: 'x' is not a whole number." in capsys.readouterr().err
    configs: list[TrainingConfig] = []
    monkeypatch.setattr("arboretum.trainers.commands.train.train", lambda config, **_: configs.append(config))
    signs = ["--monitor.fatal", "variance", "--monitor.action=stop", "--monitor.fatal=silence", "penalty"]
    with pytest.raises(SystemExit):
        main(["train", "grpo", "--env", "TextBandit-v0", "--model", "sapling", *signs])
    assert configs[0].monitor.fatal == ("variance", "silence", "penalty")


@pytest.mark.parametrize("arguments", [["plan", "--frob"], ["measure", "--gpus", "8"]])
def test_error_of_a_sub_command_points_to_its_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["scaling", *arguments])
    assert f"run arboretum scaling {arguments[0]} --help" in capsys.readouterr().err


def test_table_is_printed_to_a_pipe_whose_encoding_lacks_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows a pipe has the encoding cp1252 or another code page."""
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="cp1252") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as ended:
            main(["eval", "TextBandit-v0", "--agent", "random", "--limit", "2", "--out", str(tmp_path / "run")])
        printed = raw.getvalue().decode("cp1252")
    assert ended.value.code == 0
    assert "TextBandit-v0" in printed and "?" in printed


def test_envs_lists_every_registered_id() -> None:
    from arboretum.envs.registry import ENVS

    done = run("envs")
    assert done.returncode == 0
    for spec in ENVS:
        assert re.search(rf"^{spec.id}\s+\S", done.stdout, re.MULTILINE)


# ---------------------------------------------------------------------- arboretum play


def test_episode_is_played_from_a_pipe() -> None:
    done = run(
        "play", "TextBandit-v0", "--task", "Teacher/Trader", "--seed", "1", stdin="Plumber\n:hint\nTeacher\n"
    )
    assert done.returncode == 0
    assert "There is no such arm" in done.stdout
    assert "The expert would: Trader" in done.stdout
    assert "Teacher: 0.15 points" in done.stdout
    assert "Not solved in 2 moves" in done.stdout


def test_end_of_input_leaves_the_episode_without_an_error() -> None:
    done = run("play", "TextBandit-v0", stdin="")
    assert done.returncode == 0 and "You left the game." in done.stdout


def test_agent_plays_while_the_user_watches() -> None:
    done = run("play", "TextBandit-v0", "--agent", "expert", "--seed", "3")
    assert done.returncode == 0 and "Solved in 1 moves" in done.stdout


def test_agent_with_a_model_is_watched_in_the_viewer() -> None:
    done = run("play", "TextBandit-v0", "--agent", "no_think")
    shown = " ".join(done.stderr.split())
    assert done.returncode == 2 and "agent 'no_think' needs a model, which `arboretum play` does not load" in shown
    assert (
        "`arboretum eval TextBandit-v0 --agent no_think --model MODEL`" in shown
        and "`arboretum view runs`" in shown
    )


def test_version_and_help_without_arguments() -> None:
    from arboretum import __version__

    assert run("--version").stdout == f"arboretum {__version__}\n"
    bare = run()
    assert bare.returncode == 0 and bare.stdout == run("--help").stdout


def test_mistyped_option_is_compared_with_the_options_of_its_verb_alone() -> None:
    mistyped = run("eval", "quick", "--agnet", "random")
    assert mistyped.returncode == 2
    shown = mistyped.stdout + mistyped.stderr
    assert "Unrecognized options: --agnet, random" in shown and "Agents: random, expert" in shown
    assert set(re.findall(r"arboretum (\w+)", shown)) == {"eval"}  # play, export and others have --agent as well


def test_module_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "arboretum", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == run("--version").stdout


INTERRUPT = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2]: raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv[0] = sys.argv[1]
"""
"""Begins a program in which Ctrl-C comes at the import of the module that its second argument names."""


def run_code(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("module", ["tyro", "arboretum.eval.suite"])
def test_interrupt_while_modules_are_imported_ends_quietly(module: str, tmp_path: Path) -> None:
    script = tmp_path / "arboretum"
    script.write_text("from arboretum.__main__ import main\nmain()\n")
    as_module = run_code(INTERRUPT + "runpy.run_module('arboretum', run_name='__main__')", "-m", module)
    as_script = run_code(INTERRUPT + "runpy.run_path(sys.argv[1], run_name='__main__')", str(script), module)
    for done in (as_module, as_script):
        assert done.stderr == "" and done.returncode == 130


@pytest.mark.skipif(os.name != "posix", reason="needs a shell with pipes")
def test_reader_that_closes_the_pipe_causes_no_message() -> None:
    script = f"{sys.executable} -m arboretum train --help | (exec 0<&-; sleep 4)"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_terminal_accepts_arrow_keys_and_undo() -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        arguments = ["play", "TextSokoban-v0", "--task", "test/3", "--seed", "1"]
        os.execv(sys.executable, [sys.executable, "-m", "arboretum.cli", *arguments])
    output = ""

    def read_until(text: str, start: int = 0) -> None:
        nonlocal output
        deadline = time.monotonic() + 30
        while text not in output[start:]:
            ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, output
            output += os.read(terminal, 4096).decode()

    read_until("> ")
    start = len(output)
    os.write(terminal, b"\x1b[A")  # arrow up
    read_until("Up", start)
    read_until("> ", output.index("Up", start))
    start = len(output)
    os.write(terminal, b":undp\x7fo\r")  # A typing error is corrected with backspace.
    read_until("> ", start)
    start = len(output)
    os.write(terminal, b":undo\r")
    read_until("Nothing to undo", start)
    start = output.index("Nothing to undo", start)
    os.write(terminal, b"\x1b[D\x1b[C" * 3 + b"up\rdown\r")  # The input arrives before the prompts.
    for key in [*("Left", "Right") * 3, "up", "down"]:
        read_until(f"> {key}", start)
        start = output.index(f"> {key}", start) + 2
    os.write(terminal, b":quit\r")
    read_until("You left the game.")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_interruption_while_tasks_are_chosen_says_that_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("arboretum.eval.evaluate.plan_suite", interrupt)
    with pytest.raises(SystemExit, match="130"):
        main(["eval", "TextBandit-v0", "--limit", "1", "--out", str(tmp_path / "run")])
    printed = " ".join(capsys.readouterr().out.split())
    assert "Interrupted while the tasks were chosen: nothing was written. Run the same command again" in printed
    assert not (tmp_path / "run").exists()


def test_view_says_that_a_folder_holds_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = []
    monkeypatch.setattr("arboretum.eval.viewer.command.serve", lambda *_, **__: served.append(True))
    with pytest.raises(SystemExit):
        main(["view", str(tmp_path), "--no-browser"])
    assert served and f"{tmp_path}: holds no runs yet" in caplog.text
