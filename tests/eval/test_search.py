"""Evaluation of agents that search: their settings, their cost beside the results, and their label in reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import arboretum
from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env
from arboretum.eval.decisions.labels import EpisodeDecisions, Unlabelled
from arboretum.eval.decisions.replay import label_episode, label_recorded, parse_recorded
from arboretum.eval.store import encode_episode
from arboretum.eval.viewer.replay import replay_episode

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")

COMMAND = ("eval", "TextFrozenLake-v0", "--model", "sapling", "--device", "cpu", "--max-tokens", "16")
SCOPE = ("--limit", "8", "--no-references")
SEARCH = ("--agent", "best_of_n", "mcts", "--agent-arg", "n=4", "--agent-arg", "simulations=4")
BUDGET = ("--agent-arg", "tokens=200")


def run(*arguments: str) -> object:
    """Run the command and return its exit status."""
    with pytest.raises(SystemExit) as exit_:
        main([*arguments])
    return exit_.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("search") / "run"
    assert run(*COMMAND, *SCOPE, *SEARCH, *BUDGET, "--out", str(out)) == 0
    return out


def test_summary_has_the_cost_of_each_agent(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    lines = {line["agent"]: line for line in summary["lines"]}
    best, tree = lines["best_of_n:sapling"], lines["mcts:sapling"]
    assert best["episodes"] == tree["episodes"] == 8
    assert best["tokens"] >= 4 * 2 and best["simulated_steps"] > 4 * 1
    assert 2 <= tree["tokens"] <= 200 + 16 and tree["simulated_steps"] > 0
    notes = [note for note in summary["notes"] if "searches with the environment as a simulator" in note]
    assert [note.partition(" ")[0] for note in notes] == ["best_of_n:sapling", "mcts:sapling"]
    assert not any("retries failed tasks" in note for note in summary["notes"])


def test_record_and_report_say_which_agents_search(folder: Path) -> None:
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["uses_simulator"] == ["best_of_n:sapling", "mcts:sapling"]
    assert manifest["identities"]["best_of_n:sapling"]["settings"] == {"n": 4, "select": "return"}
    settings = {"simulations": 4, "width": 4, "tokens": 200, "exploration": 1.25, "parallel": 4}
    assert manifest["identities"]["mcts:sapling"]["settings"] == settings
    page = (folder / "report.html").read_text()
    assert "n 4, select return" in page
    assert "simulated steps" in page and "searches with the environment as a simulator" in page


def test_search_is_resumed_without_playing_an_episode_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (folder / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    copy = tmp_path / "run"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "episodes.jsonl").write_bytes(b"".join(lines[:11]))
    assert run(*COMMAND, *SCOPE, *SEARCH, *BUDGET, "--out", str(copy)) == 0
    assert "11 of 16 episodes are already stored" in capsys.readouterr().out
    resumed = (copy / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    assert resumed[:11] == lines[:11]
    assert len(resumed) == 16


def test_direct_agent_beside_a_search_has_its_tokens_in_the_table(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    direct = tmp_path / "direct"
    assert run(*COMMAND, *SCOPE, "--agent", "no_think", "--temperature", "1", "--out", str(direct)) == 0
    assert " refused " in capsys.readouterr().out
    assert run("report", str(direct), str(folder), "--out", str(tmp_path / "both.html")) == 0
    shown = capsys.readouterr().out
    assert " tokens " in shown and " refused " not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--agent", "best_of_n", "--agent-arg", "n=0"], "n must be an integer of at least 1, not 0"),
        (
            ["--agent", "mcts", "--agent-arg", "tokens=5"],
            "a budget of 5 tokens per episode is less than one",
        ),
        (["--agent", "mcts", "--temperature", "0"], "the temperature is 0; pass --temperature 1"),
        (["--agent", "mcts", "--agent-arg", "simulation=5"], "did you mean simulations?"),
        (["--agent", "direct", "--agent-arg", "n=5"], "--agent-arg has no effect: direct has no settings"),
    ],
)
def test_bad_settings_are_refused_before_the_model_is_loaded(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*COMMAND, *options) == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).split())


def test_agent_settings_need_a_model() -> None:
    with pytest.raises(ConfigurationError, match="agent_args requires a model"):
        arboretum.evaluate("TextBandit-v0", "random", agent_args={"n": 4})


def test_search_from_python_takes_its_settings() -> None:
    result = arboretum.evaluate(
        "TextFrozenLake-v0", "best_of_n", model="sapling", agent_args={"n": 2}, max_tokens=16, limit=3
    )
    assert result.complete
    assert {episode.details["kept"] for episode in result.episodes.values()} <= {0, 1}
    line = result.line("best_of_n:sapling")
    assert line.tokens is not None and line.simulated_steps is not None


def test_episode_kept_on_ice_is_labelled_with_the_random_events_that_it_had() -> None:
    """Its chance was drawn anew in the branch, so that the seed of the episode alone leads elsewhere."""
    env = make_env("TextFrozenLake-v0", split="test")
    result = arboretum.evaluate(
        env, "best_of_n", model="sapling", agent_args={"n": 4}, max_tokens=16, temperature=1.0, limit=8
    )
    for key, episode in result.episodes.items():
        assert isinstance(label_episode(env, episode), EpisodeDecisions)
        stored = parse_recorded(encode_episode(key, episode).line)
        assert isinstance(label_recorded(env, stored), EpisodeDecisions)
        assert replay_episode(env, episode, episode.seed).fault is None
        del episode.details["chance_seed"]
    assert any(isinstance(label_episode(env, episode), Unlabelled) for episode in result.episodes.values())
