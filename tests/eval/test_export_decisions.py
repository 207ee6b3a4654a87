"""Exports of labelled decisions: preferences and steps, against the environments' solvers and stored episodes."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.agents.dialogue.registry import make_dialogue
from arboretum.cli import main
from arboretum.eval.agents import NamedAgent
from arboretum.eval.api import evaluate as run_evaluation
from arboretum.eval.decisions.labelling import label_run
from arboretum.eval.evaluate import evaluate
from arboretum.eval.planning import Scope
from arboretum.eval.store import EpisodeKey, read_episode, read_results
from arboretum.eval.suite import suite_of
from support.scripted_engine import ScriptedEngine

ROOT = Path(__file__).resolve().parents[2]
LEVELS = suite_of("TextSokoban-v0").entries[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of Sokoban by the random agent and the expert, without labels."""
    out = tmp_path_factory.mktemp("decisions") / "run"
    agents = [NamedAgent("random"), NamedAgent("expert")]
    console = Console(file=StringIO())
    options: dict[str, Any] = {"references": False, "out": out, "console": console}
    assert evaluate("TextSokoban-v0", agents, scope=Scope(limit=12), **options) == 0
    return out


@pytest.fixture
def language_run(tmp_path: Path) -> Path:
    """Folder of a run of the expert and of a language agent."""
    return shutil.copytree(Path(__file__).parent / "stored_runs" / "schema_1", tmp_path / "language")


def export(run: Path, to: str, out: Path, *options: str) -> list[dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--to", to, "--out", str(out), *options])
    assert ended.value.code == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def key_of(row: dict[str, Any]) -> EpisodeKey:
    return EpisodeKey(row["agent"], row["entry"], row["task"], row["repeat"])


def replies(messages: list[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "assistant"]


def test_chosen_action_is_on_a_shortest_plan_and_the_rejected_one_is_not(run: Path, tmp_path: Path) -> None:
    rows = export(run, "preference", tmp_path / "p.jsonl")
    env = LEVELS.make()
    assert len(rows) > 50 and {row["agent"] for row in rows} == {"random"}
    for row in rows:
        env.reset(seed=row["seed"], options={"task": row["task"]})
        observation = row["prompt"][1]["content"]
        for action in replies(row["prompt"]):
            observation = env.step(action)[0]
        assert row["prompt"][-1] == {"role": "user", "content": observation} and row["state"] == observation
        plan = env.expert_actions()
        assert plan is not None and len(replies(row["prompt"])) == row["turn"]
        start = env.snapshot()
        lengths = {}
        for action in ("Up", "Down", "Left", "Right"):
            terminated = env.step(action)[2]
            rest = [] if terminated else env.expert_actions()
            lengths[action] = None if rest is None else len(rest)
            env.restore(start)
        shortest = {action for action, length in lengths.items() if length == len(plan) - 1}
        assert set(row["optimal"]) == shortest
        assert replies(row["chosen"])[0] in shortest
        taken = replies(row["rejected"])[0]
        assert taken == row["taken"] and taken not in shortest
        assert row["fatal"] == (lengths[taken] is None or lengths[taken] + 1 > env.steps_left())


def test_each_state_and_action_is_rejected_once_per_episode(run: Path, tmp_path: Path) -> None:
    rows = export(run, "preference", tmp_path / "p.jsonl")
    found = [(key_of(row), row["state"], row["taken"]) for row in rows]
    assert len(found) == len(set(found))


def test_steps_are_those_of_the_episode_up_to_a_fatal_one(run: Path, tmp_path: Path) -> None:
    rows = export(run, "stepwise", tmp_path / "s.jsonl")
    stored = read_results(run).latest
    env = LEVELS.make()
    assert {key_of(row) for row in rows} == set(stored)
    ends = 0
    for row in rows:
        episode = read_episode(run, stored[key_of(row)])
        texts = [f"{turn.observation}\n{turn.reply}" for turn in episode.turns]
        assert row["completions"] == texts[: len(row["labels"])] and "Sokoban" in row["prompt"]
        # The sum of a solved episode's additional steps is its length over that of a shortest plan.
        env.reset(seed=episode.seed, options={"task": episode.task})
        shortest = len(env.expert_actions() or ())
        if row["success"]:
            lost = sum(decision["step_regret"] for decision in row["decisions"])
            assert lost == len(episode.turns) - shortest and len(row["labels"]) == len(episode.turns)
        if row["agent"] == "expert":
            assert all(row["labels"])
        fatal = [decision["turn"] for decision in row["decisions"] if decision["fatal"]]
        assert fatal == ([len(row["labels"]) - 1] if fatal else [])
        ends += bool(fatal)
    assert ends > 3


def test_stored_labels_are_used_and_lead_to_the_same_rows(run: Path, tmp_path: Path) -> None:
    labelled = shutil.copytree(run, tmp_path / "run")
    label_run(labelled)
    for to in ("preference", "stepwise"):
        assert export(labelled, to, tmp_path / f"l-{to}") == export(run, to, tmp_path / to)


def test_pairs_of_a_language_agent_differ_in_the_action_alone(language_run: Path, tmp_path: Path) -> None:
    rows = export(language_run, "preference", tmp_path / "p.jsonl", "--agent", "direct:sapling")
    stored = read_results(language_run).latest
    dialogue = make_dialogue("no_think")
    assert rows
    for row in rows:
        episode = read_episode(language_run, stored[key_of(row)])
        exchange = episode.exchanges[row["turn"]]
        assert [(one["role"], one["content"]) for one in row["prompt"]] == list(exchange.messages)
        assert replies(row["rejected"]) == [exchange.answer]
        taken, chosen = (dialogue.parse(replies(row[name])[0]) for name in ("rejected", "chosen"))
        assert chosen.well_formed and chosen.actions == (*row["before"], row["optimal"][0])
        assert taken.actions[: len(chosen.actions)] == (*row["before"], row["taken"])


QUERY = "<|begin_search_query|> river <|end_search_query|>"


@pytest.mark.parametrize(
    ("replies_given", "kept"),
    [
        ((f"First. {QUERY}", f"Again. {QUERY}", "So it is \\boxed{nonsense}"), "So it is"),
        (("It must be \\boxed{nonsense}",), "It must be"),
        (("Let me think about this.",), "Let me think about this."),
    ],
    ids=["repeated query", "answer", "malformed"],
)
def test_pairs_of_free_reasoning_keep_the_thought_of_the_judged_reply(
    replies_given: tuple[str, ...], kept: str, tmp_path: Path
) -> None:
    engine = ScriptedEngine(lambda _, number: replies_given[min(number, len(replies_given) - 1)])
    run_evaluation("TextSearchQA-v0", "search_o1", model=engine, limit=2, out=tmp_path / "run")
    rows = export(tmp_path / "run", "preference", tmp_path / "p.jsonl", "--agent", "search_o1:replies")
    dialogue = make_dialogue("search_o1")
    judged = [row for row in rows if replies(row["rejected"]) == [replies_given[-1]]]
    assert judged
    for row in judged:
        (chosen,) = replies(row["chosen"])
        parsed = dialogue.parse(chosen)
        assert parsed.well_formed and parsed.actions == (row["optimal"][0],)
        assert chosen.startswith(kept) and "nonsense" not in chosen


ARROWS = """
import dataclasses
from arboretum.agents.dialogue.base import Parsed
from arboretum.agents.dialogue.plain import Plain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrows(Plain):
    def parse(self, reply):
        found = reply.removeprefix("-> ")
        return Parsed((found,), None, True) if found != reply else Parsed((), None, False)

    def demonstrate(self, thought, action):
        return f"-> {action}"
"""


@pytest.fixture
def arrows_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a run in a dialogue of one's own, which inherits the name of the built-in `plain`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "arrows", raising=False)
    (tmp_path / "arrows.py").write_text(ARROWS)
    engine = ScriptedEngine(lambda _, number: "-> " + ("Up", "Down", "Left", "Right")[number % 4])
    run_evaluation(
        "TextSokoban-v0", "direct", model=engine, dialogue="arrows:Arrows", limit=6, out=tmp_path / "run"
    )
    return tmp_path / "run"


def test_pairs_are_written_in_the_dialogue_of_a_plug_in_that_inherits_a_built_in_name(
    arrows_run: Path, tmp_path: Path
) -> None:
    rows = export(arrows_run, "preference", tmp_path / "p.jsonl", "--agent", "direct:replies")
    assert len(rows) > 5
    for row in rows:
        assert replies(row["chosen"]) == [f"-> {row['optimal'][0]}"]
        assert replies(row["rejected"]) == [f"-> {row['taken']}"]


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (
            {"class": "gone:Arrows", "name": "plain"},
            "the dialogue gone:Arrows of direct:replies cannot be made here",
        ),
        ({"name": "arows"}, "the dialogue arows of direct:replies cannot be made here: unknown dialogue 'arows'"),
    ],
    ids=["class", "name of an earlier version"],
)
def test_dialogue_that_cannot_be_made_for_pairs_is_one_sentence(
    stored: dict[str, str], message: str, arrows_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("run.json", ".run.json"):
        manifest = json.loads((arrows_run / name).read_text())
        (settings,) = manifest["settings"]["direct:replies"].values()
        del settings["dialogue"]["class"]
        settings["dialogue"] |= stored
        (arrows_run / name).write_text(json.dumps(manifest))
    with pytest.raises(SystemExit) as ended:
        main(["export", str(arrows_run), "--to", "preference", "--out", str(tmp_path / "p.jsonl")])
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"run: {message}" in said and not (tmp_path / "p.jsonl").exists()


def test_unknown_agent_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run), "--to", "csv", "--agent", "exprt", "--out", str(tmp_path / "e.csv")])
    assert ended.value.code == 2 and "expert" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["stepwise", "preference"])
def test_episodes_played_with_other_data_are_left_out_and_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    other = shutil.copytree(run, tmp_path / "run")
    text = (other / "run.json").read_text()
    for name in ("run.json", ".run.json"):
        (other / name).write_text(text.replace('"env": "TextSokoban-v0"', '"env": "TextSokobanNewVocab-v0"'))
    with pytest.raises(SystemExit) as ended:
        main(["export", str(other), "--to", to, "--out", str(tmp_path / "s.jsonl")])
    assert ended.value.code == 2 and not (tmp_path / "s.jsonl").exists()
    shown = capsys.readouterr()
    said = " ".join(shown.out.split())
    assert "24 episodes are left out: The replay differs from the record in the observation" in said
    assert "there is nothing to export (none of its 24 episodes can be judged)." in shown.err


def test_pairs_of_other_data_than_that_of_the_stored_labels_are_left_out_and_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Optimal actions of other levels were paired with the recorded replies."""
    labelled = shutil.copytree(run, tmp_path / "run")
    label_run(labelled)
    text = (labelled / "run.json").read_text()
    for name in ("run.json", ".run.json"):
        (labelled / name).write_text(text.replace('"env": "TextSokoban-v0"', '"env": "TextSokobanNewVocab-v0"'))
    assert export(labelled, "preference", tmp_path / "p.jsonl") == []
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\d+ episodes are left out: The replay differs from the record in the observation", said)


@pytest.mark.heavy
def test_parquet_has_the_stored_labels(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    labelled = shutil.copytree(run, tmp_path / "run")
    label_run(labelled)
    for folder, expected in ((run, False), (labelled, True)):
        out = tmp_path / f"{expected}.parquet"
        with pytest.raises(SystemExit):
            main(["export", str(folder), "--to", "parquet", "--out", str(out)])
        rows = parquet.read_table(out).to_pylist()
        assert all((row["optimal"] is not None) == expected for row in rows)
    assert all(len(row["optimal"]) == len(row["actions"]) == row["steps"] for row in rows)
    assert all(all(row["optimal"]) for row in rows if row["agent"] == "expert")


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # Of TRL, about transformers.
def test_trl_trains_on_the_pairs(run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    export(run, "preference", tmp_path / "p.jsonl")
    load = {"cache_dir": str(tmp_path / "cache"), "split": "train"}
    pairs = datasets.load_dataset("json", data_files=str(tmp_path / "p.jsonl"), **load)
    unpaired = trl.unpair_preference_dataset(pairs.select_columns(["prompt", "chosen", "rejected"]))
    assert len(unpaired) == 2 * len(pairs) and sum(unpaired["label"]) == len(pairs)
    settings = trl.DPOConfig(
        output_dir=str(tmp_path / "dpo"), use_cpu=True, bf16=False, max_steps=1, max_length=512, report_to=[]
    )
    trainer = trl.DPOTrainer(
        str(ROOT / "assets" / "sapling"),
        args=settings,
        train_dataset=pairs.select(range(8)).select_columns(["prompt", "chosen", "rejected"]),
    )
    # Before the first update, policy and reference are equal: the loss is log 2 (arXiv:2305.18290, equation 7).
    assert trainer.train().training_loss == pytest.approx(math.log(2), abs=1e-4)
