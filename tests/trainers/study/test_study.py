"""Studies: validation of their files, and small studies from end to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Literal

import pytest
import yaml
from rich.console import Console

from arboretum.agents.dialogue.registry import make_dialogue
from arboretum.agents.reference import ExpertAgent, RandomAgent
from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.eval.suite import load_suite
from arboretum.eval.yaml_files import read_definition
from arboretum.trainers.config.serialize import to_plain
from arboretum.trainers.config.settings import EnvConfig, HardwareConfig
from arboretum.trainers.study import trials as study_trials
from arboretum.trainers.study.controls import Controls, Supervised
from arboretum.trainers.study.curves import read_curve
from arboretum.trainers.study.definition import Study, StudyEnv, StudyLevel, Trial
from arboretum.trainers.study.differences import differing_settings
from arboretum.trainers.study.evaluation import evaluate_policy, evaluate_reference, make_sampler, write_suite
from arboretum.trainers.study.parsing import load_study, parse_study, study_names
from arboretum.trainers.study.runner import (
    WorkItem,
    _check_validations,
    _run_in_workers,
    claim_folder,
    missing_work,
    run_study,
)
from arboretum.trainers.study.trials import RESULT, chosen_value, run_trial, trial_path
from arboretum.trainers.study.tuning import Tuning

LAKE = EnvConfig("TextFrozenLake-v0", {"observation_format": "grid", "success_rate": 1.0})
HEAD = "name: x\nmodel: y\nenvs: [{name: A, id: TextFrozenLake-v0}]\nrecipes: {grpo: {}}\n"


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_pass_their_check(name: str) -> None:
    study = load_study(name)
    study.check()
    assert len(list(study.trials())) == len(study.envs) * len(study.recipes) * study.seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "expected a mapping"),
        ("name: x\n", "`model` is missing"),
        ("name: x\nmodels: y\n", "unknown key 'models'; did you mean"),
        ("name: x\nmodel: y\nenvs: [{name: A}]\nrecipes: {grpo: {}}\n", "environment 1: `id` is missing"),
        ("name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {gripo: {}}\n", "unknown recipe"),
        (
            "name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {grpo: {sampler.rollouts: 1}}\n",
            "rollouts is 1",
        ),
        ("name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {large: {recipe: gripo}}\n", "unknown recipe"),
        ("name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {a/b: {recipe: grpo}}\n", "'a/b' cannot be"),
        (
            "name: x\nmodel: y\nenvs: [{name: A, id: B}]\nrecipes: {supervised: {recipe: grpo}}\n",
            "'supervised' cannot be the name",
        ),
        (f"{HEAD}seeds: 0\n", "seeds must be"),
        (f"{HEAD}samples: -1\n", "samples must be at least 0"),
        (f"{HEAD}levels: [{{name: B}}]\n", "level 1: `id` is missing"),
        (f"{HEAD}levels: [{{name: B, id: C}}, {{name: B, id: D}}]\n", "two levels have the name 'B'"),
        (HEAD.replace("A,", "a/b,"), "'a/b' cannot be the name of an environment"),
        (HEAD.replace("A,", "'',"), "'' cannot be the name of an environment"),
        (
            HEAD.replace("[{", "[{name: a, id: TextSokoban-v0}, {"),
            "environments 'a' and 'A' would have the same folder, a;",
        ),
        (f"{HEAD}controls: {{temperature: 1}}\n", "unknown key 'temperature'; did you mean"),
        (f"{HEAD}controls: {{temperatures: [0.0]}}\n", "temperatures must be above 0"),
        (f"{HEAD}controls: {{supervised: {{lr: -1.0}}}}\n", "supervised.lr must be above 0"),
        (f"{HEAD}controls: {{supervised: {{epochs: 1}}}}\n", "controls.supervised: unknown key 'epochs'"),
        (f"{HEAD}baseline: grop\n", "baseline must be one of"),
        (f"{HEAD}tuning: {{values: [0.1]}}\n", "two or more different values"),
        (f"{HEAD}tuning: {{values: [0.1, 0.2], part: 0}}\n", "tuning.part must be more than 0"),
        (f"{HEAD}hardware: {{precision: half}}\n", "hardware: `precision` has a value of the wrong type"),
        (f"{HEAD}hardware: {{threads: 1}}\n", "hardware: unknown key 'threads'"),
        (f"{HEAD}tuning: {{values: [0.1, 0.2], seed: 1}}\n", "tuning: unknown key 'seed'"),
        (f"{HEAD}tuning: {{values: [0.1, 0.2]}}\nvalidation_every: 0\n", "validation_every is 0"),
        (
            "name: x\nmodel: y\nenvs: [{name: A, id: B, settings: {sampler.rollouts: 1}}]\nrecipes: {grpo: {}}\n",
            "is 1",
        ),
    ],
)
def test_invalid_study_file_is_rejected(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_study(text, "mine.yaml")


def test_controls_of_a_file_are_read() -> None:
    assert parse_study(HEAD, "mine.yaml").controls == Controls()
    off = parse_study(f"{HEAD}controls: {{temperatures: [], supervised: false}}\n", "mine.yaml").controls
    assert off == Controls((), supervised=None)
    own = parse_study(f"{HEAD}controls: {{model: M, supervised: {{lr: 0.1, keep: all}}}}\n", "mine.yaml").controls
    assert own.model == "M" and own.supervised == Supervised(lr=0.1, keep="all")


def test_recipes_of_trees_differ_in_credit_and_sampler_only() -> None:
    study = load_study("trees")
    # The reference belongs to the surgical loss of T-STAR; all take two steps an update.
    assert differing_settings(study) == ["objective.reference_decay", "optimization.episodes_per_step"]
    published = replace(study, settings={}, tuning=None)
    assert {"sampler.format_penalty", "rewards.scale", "optimization.lr"} <= set(differing_settings(published))


def test_variants_of_a_recipe_have_names_folders_and_settings_of_their_own() -> None:
    text = HEAD.replace("{grpo: {}}", "{grpo: {}, grpo-large: {recipe: grpo, sampler.prompts: 64}}")
    study = parse_study(f"{text}seeds: 1\nbaseline: grpo\n", "mine.yaml")
    first, second = (study.config(trial, Path()) for trial in study.trials())
    assert first.recipe.name == second.recipe.name == "grpo"
    assert second.recipe.sampler.prompts == 64 != first.recipe.sampler.prompts
    assert [first.out, second.out] == [Path("a/grpo-0"), Path("a/grpo-large-0")]
    assert differing_settings(study) == ["sampler.prompts"]


def test_recipes_at_other_temperatures_are_validated_at_one_and_said_to_differ() -> None:
    recipes = "{grpo: {}, dapo_tstar: {}, cool: {recipe: grpo, sampler.temperature: 0.5}}"
    study = parse_study(f"{HEAD.replace('{grpo: {}}', recipes)}seeds: 1\nbaseline: grpo\n", "mine.yaml")
    temperatures = {}
    for trial in study.trials():
        config = study.config(trial, Path())
        at = config.validation.temperature
        temperatures[trial.recipe] = config.recipe.sampler.final_temperature if at is None else at
    assert temperatures == {"grpo": 1.0, "dapo_tstar": 1.0, "cool": 1.0}
    assert "sampler.temperature" in differing_settings(study)
    tuned = replace(study, tuning=Tuning((0.5, 1.0), "sampler.temperature"), recipes={"grpo": {}})
    assert {study.config(trial, Path()).validation.temperature for trial in tuned.tuning_trials()} == {None}
    assert [tuned.config(trial, Path()).validation.temperature for trial in tuned.tuning_trials()] == [1.0, None]


def test_whole_numbers_are_tuned() -> None:
    text = f"{HEAD}validation_every: 1\ntuning: {{setting: optimization.passes, values: [1, 2]}}\n"
    study = parse_study(text, "mine.yaml")
    passes = [study.config(trial, Path()).recipe.optimization.passes for trial in study.tuning_trials()]
    assert passes == [1, 2] and all(type(one) is int for one in passes)
    rates = parse_study(f"{HEAD}validation_every: 1\ntuning: {{values: [1, 2.5]}}\n", "mine.yaml")
    assert [rates.config(one, Path()).recipe.optimization.lr for one in rates.tuning_trials()] == [1.0, 2.5]


def test_suite_keeps_a_limit_that_the_study_lifts(tmp_path: Path) -> None:
    lifted = StudyEnv(EnvConfig("TextSearchQA-v0"), dialogue="search_o1", dialogue_settings={"max_turns": None})
    study = Study("x", "", "sapling", {"Search": lifted}, {"grpo": {}})
    (entry,) = (suite := load_suite(str(write_suite(study, "Search", tmp_path)))).entries
    settings = {**suite.dialogue, **entry.dialogue}
    assert make_dialogue("search_o1").max_turns == 15
    assert make_dialogue("search_o1", settings).max_turns is None


def test_hardware_of_a_file_is_that_of_all_runs_and_of_the_control() -> None:
    study = parse_study(f"{HEAD}hardware: {{precision: bfloat16, share_prefixes: true}}\n", "mine.yaml")
    env = next(iter(study.envs))
    (supervised, *_) = study.supervised_trials(env)
    for config in (
        study.config(next(study.trials()), Path()),
        study.supervised_config(supervised, Path(), episodes=8),
    ):
        assert config.hardware == HardwareConfig("cpu", "bfloat16", share_prefixes=True, in_flight=128)


@pytest.mark.parametrize("source", ["env", "levels"])
def test_supervised_control_imitates_the_expert_on_the_chosen_levels(source: Literal["env", "levels"]) -> None:
    study = load_study("trees")
    study = replace(study, controls=replace(study.controls, supervised=Supervised(source=source)))
    for env in ("Sokoban 2 boxes", "Sokoban 7x7"):
        for trial in study.supervised_trials(env):
            config = study.supervised_config(trial, Path(), episodes=64)
            assert config.env.id == study.envs[env].config.id and config.env.split == "train"
            levels = (
                [one.config for one in study.levels.values()] if source == "levels" else [study.envs[env].config]
            )
            assert config.env.kwargs == next(level.kwargs for level in levels if level.id == config.env.id)
            assert config.dialogue.settings == {"max_turns": 15, "max_actions_per_turn": 1, "max_actions": None}
            assert config.seed == trial.seed


def test_supervised_control_imitates_an_expert_that_sees_what_the_model_sees() -> None:
    study = load_study("trees")
    for env, hides in (("ALFWorld", True), ("Search 2 hops", True), ("Sokoban 7x7", False)):
        (trial, *_) = study.supervised_trials(env)
        assert study.supervised_config(trial, Path(), episodes=64).expert.searching is hides


def test_environment_without_an_expert_needs_a_study_without_supervised_learning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FrozenLake, "expert_actions", lambda self: None)
    study = Study("x", "", "sapling", {"Lake": StudyEnv(LAKE)}, {"grpo": {}})
    with pytest.raises(ConfigurationError, match=r"no expert plan .* Set controls.supervised to false"):
        study.check()
    replace(study, controls=Controls(supervised=None)).check()


def test_environment_overrides_model_dialogue_settings_and_splits_of_the_study(tmp_path: Path) -> None:
    study = parse_study(
        """\
name: x
model: sapling
envs:
  - {name: Lake, id: TextFrozenLake-v0, validation_split: train, test_split: valid}
  - {name: Blocks, id: TextBlocksworld-v0, model: sapling-blocksworld, dialogue: plain,
     dialogue_settings: {max_turns: 9, history: single},
     settings: {sampler.prompts: 3, optimization.lr: 0.5}}
settings: {sampler.prompts: 2, optimization.updates: 7}
recipes: {grpo: {optimization.lr: 0.25}}
levels:
  - {name: dry, id: TextFrozenLake-v0}
  - {name: three, id: TextBlocksworld-v0, kwargs: {blocks: 3}, model: sapling-blocksworld}
""",
        "mine.yaml",
    )
    lake, blocks = (study.config(trial, Path()) for trial in study.trials() if trial.seed == 0)
    assert (lake.model, lake.dialogue.name, lake.recipe.sampler.prompts) == ("sapling", "no_think", 2)
    assert (blocks.model, blocks.dialogue.name, blocks.recipe.sampler.prompts) == (
        "sapling-blocksworld",
        "plain",
        3,
    )
    assert (lake.validation.split, blocks.validation.split) == ("train", "valid")
    (entry,) = yaml.safe_load(write_suite(study, "Lake", tmp_path).read_text())["entries"]
    assert entry["split"] == "valid"
    suite = yaml.safe_load(write_suite(study, "Blocks", tmp_path).read_text())
    assert suite["dialogue"]["history"] == "single" and suite["dialogue"]["max_turns"] == 9
    # A recipe's own setting is the strongest.
    assert blocks.recipe.optimization.lr == 0.25 and blocks.recipe.optimization.updates == 7
    # Forgetting is measured on the levels of the warm start of the environment.
    assert list(study.levels_of("Lake")) == ["dry"] and list(study.levels_of("Blocks")) == ["three"]


def test_tuning_runs_generate_a_part_of_what_a_run_in_their_environment_generates() -> None:
    envs = {
        "long": StudyEnv(LAKE, settings={"optimization.max_tokens": 1001}),
        "short": StudyEnv(LAKE),
        "open": StudyEnv(LAKE, settings={"optimization.max_tokens": None}),
    }
    study = Study(
        "x",
        "",
        "sapling",
        envs,
        {"grpo": {}},
        {"optimization.max_tokens": 100},
        tuning=Tuning((0.1, 0.2), part=0.5),
    )
    for trials, expected in (
        (study.tuning_trials(), {"long": 501, "short": 50, "open": None}),
        (study.trials(), {"long": 1001, "short": 100, "open": None}),
    ):
        tokens = {one.env: study.config(one, Path()).recipe.optimization.max_tokens for one in trials}
        assert tokens == expected


def write_tuning_run(study: Study, trial: Trial, out: Path, points: list[tuple[int, float]], updates: int) -> None:
    """Write what a tuning run leaves: tokens and success of its validations, and the number of its updates."""
    config = study.config(trial, out)
    config.out.mkdir(parents=True)
    with (config.out / "metrics.jsonl").open("w") as file:
        for n, ((before, _), (tokens, rate)) in enumerate(zip([(0, 0.0), *points], points, strict=False)):
            file.write(
                json.dumps({"update": n, "sampled_tokens": tokens - before, "validation/success": rate}) + "\n"
            )
    result = {"outcomes": {}, "updates": updates, "generated_tokens": points[-1][0]}
    (config.out / RESULT).write_text(json.dumps(result))


@pytest.mark.parametrize("limits", [{"optimization.max_tokens": 1000}, {}])
def test_tuning_run_that_the_monitor_ends_early_counts_with_its_last_success(
    limits: dict[str, object], tmp_path: Path
) -> None:
    """Over the first 250 tokens the value that collapses is ahead, by 0.37 to 0.33."""
    study = Study("x", "", "sapling", {"Lake": StudyEnv(LAKE)}, {"grpo": {}}, limits, tuning=Tuning((0.1, 0.4)))
    curves = {
        0.1: [(0, 0.2), (100, 0.3), (200, 0.4), (400, 0.6), (700, 0.8), (1000, 0.9)],
        0.4: [(0, 0.2), (100, 0.6), (200, 0.3), (250, 0.0)],
    }
    for trial in study.tuning_trials():
        assert trial.candidate is not None
        updates = 3 if trial.candidate == 0.4 else study.config(trial, tmp_path).recipe.optimization.updates
        write_tuning_run(study, trial, tmp_path, curves[trial.candidate], updates)
    assert chosen_value(study, "Lake", "grpo", tmp_path) == 0.1


def test_tuning_chooses_by_the_area_under_the_curve_on_other_seeds(tmp_path: Path) -> None:
    """A value that learns fast and collapses loses against one that learns late, and against one that holds."""
    tuning = Tuning((0.1, 0.2, 0.4), seeds=2, settings={"optimization.updates": 5})
    study = Study("x", "", "sapling", {"Lake": StudyEnv(LAKE)}, {"grpo": {}}, seeds=3, tuning=tuning)
    assert {trial.seed for trial in study.trials()}.isdisjoint(trial.seed for trial in study.tuning_trials())
    # Success after 0, 100 and 200 tokens: the areas are 0.35, 0.375 and 0.45 with the first seed, and 0.35, 0.625
    # and 0.25 with the second.
    curves = {
        (0.1, 0): (0.2, 0.3, 0.6),
        (0.2, 0): (0.2, 0.4, 0.5),
        (0.4, 0): (0.2, 0.8, 0.0),
        (0.1, 1): (0.2, 0.3, 0.6),
        (0.2, 1): (0.2, 0.8, 0.7),
        (0.4, 1): (0.2, 0.4, 0.0),
    }
    with pytest.raises(ConfigurationError, match=r"grpo with 0.1 on Lake, seed 1000 has no result"):
        chosen_value(study, "Lake", "grpo", tmp_path)
    for trial in study.tuning_trials():
        config = study.config(trial, tmp_path)
        assert config.recipe.optimization.lr == trial.candidate and config.recipe.optimization.updates == 5
        assert trial.candidate is not None
        rates = curves[trial.candidate, trial.seed - 1000]
        write_tuning_run(study, trial, tmp_path, list(zip((0, 100, 200), rates, strict=True)), updates=5)
    assert read_curve(next(iter(study.tuning_trials())), tmp_path).area(200) == pytest.approx(0.35)
    assert chosen_value(study, "Lake", "grpo", tmp_path) == 0.2
    metrics = tmp_path / next(iter(study.tuning_trials())).folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("validation/success", "success"))
    with pytest.raises(ConfigurationError, match="grpo on Lake was not validated after its first update"):
        chosen_value(study, "Lake", "grpo", tmp_path)
    (trial, *_) = study.trials()
    assert study.config(trial, tmp_path, 0.2).recipe.optimization.lr == 0.2
    assert study.config(trial, tmp_path, 0.2).recipe.optimization.updates == 200


def test_study_that_tunes_the_temperature_goes_on_after_its_first_final_run(tmp_path: Path) -> None:
    """The temperature at which a run was validated follows from the value that was chosen for it."""
    study = parse_study(f"{HEAD}tuning: {{setting: sampler.temperature, values: [0.5, 1.0]}}\n", "mine.yaml")
    (trial, *_) = study.trials()
    for chosen, other in ((0.5, 1.0), (1.0, 0.5)):
        folder = tmp_path / trial.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(to_plain(study.config(trial, tmp_path, chosen))))
        trial_path(tmp_path, trial).write_text(json.dumps({"tuned_value": chosen}))
        _check_validations(study, tmp_path)
        trial_path(tmp_path, trial).write_text(json.dumps({"tuned_value": other}))
        with pytest.raises(ConfigurationError, match="an earlier version validated"):
            _check_validations(study, tmp_path)


def test_reference_agents_run_on_the_same_tasks() -> None:
    study = Study(
        "x", "", "sapling", {"Lake": StudyEnv(LAKE)}, {"grpo": {}}, tasks=16, repeats=2, samples=4, pass_tasks=8
    )
    random = evaluate_reference(study, "Lake", RandomAgent())
    expert = evaluate_reference(study, "Lake", ExpertAgent())
    assert random["sampled"].keys() == expert["sampled"].keys() and len(expert["sampled"]) == 16
    assert all(all(episodes) and len(episodes) == 2 for episodes in expert["sampled"].values())
    assert not all(all(episodes) for episodes in random["sampled"].values())
    # The samples for pass@k include the sampled episodes.
    assert list(random["samples"]) == list(random["sampled"])[:8] and "samples" not in expert
    assert all(found[:2] == random["sampled"][task] for task, found in random["samples"].items())
    assert {len(found) for found in random["samples"].values()} == {4}


def test_study_with_too_few_held_out_tasks_is_rejected_at_once() -> None:
    envs = {"Blocks": StudyEnv(EnvConfig("TextBlocksworld-v0", {"blocks": 3}))}
    study = Study("x", "", "sapling-blocksworld", envs, {"grpo": {}}, tasks=64, validation_every=0)
    with pytest.raises(ConfigurationError, match="asks for 64 tasks, but TextBlocksworld-v0 has only 42"):
        study.check()


def test_study_with_too_few_tasks_for_its_temperatures_is_rejected_at_once() -> None:
    envs = {"Blocks": StudyEnv(EnvConfig("TextBlocksworld-v0", {"blocks": 3}))}
    study = Study("x", "", "sapling-blocksworld", envs, {"grpo": {}}, tasks=20, validation_tasks=20)
    with pytest.raises(
        ConfigurationError, match=r"'Blocks': controls\.tuning_tasks: .*asks for 128 tasks.*only 24"
    ):
        study.check()
    replace(study, controls=replace(study.controls, tuning_tasks=20)).check()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id: TextFrozenLake-v0", "id: TextFrozenLak-v0", "environment 'Lake 5x5': unknown environment"),
        ("size: 6", "siz: 6", "environment 'Lake 6x6': unknown option of TextFrozenLake-v0 'siz'"),
        ("id: TextSokoban-v0", "id: TextSokobn-v0", "level 'Sokoban': unknown environment 'TextSokobn-v0'"),
    ],
)
def test_environment_that_cannot_be_made_is_reported_with_its_place_in_the_study(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(read_definition("study", "studies", "first-steps")[0].replace(old, new, 1))
    with pytest.raises(SystemExit) as ended:
        main(["study", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and f"arboretum: {message}" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_missing_warm_start_is_reported_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["study", "smollm2", "--precision", "float32"])
    error = " ".join(capsys.readouterr().err.split())
    assert "runs/smollm2-warm/model: there is no such folder" in error
    assert "Make the study's warm start with: arboretum sft" in error and "--precision float32" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
def test_level_with_few_tasks_is_played_whole() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    blocks = StudyEnv(EnvConfig("TextBlocksworld-v0", {"blocks": 4}))
    levels = {"3 blocks": StudyLevel(EnvConfig("TextBlocksworld-v0", {"blocks": 3}))}
    settings: dict[str, object] = {"sampler.max_turns": 8, "sampler.reply_tokens": 12}
    study = replace(
        Study("x", "", "sapling-blocksworld", {"Blocks": blocks}, {"grpo": {}}, settings, "plain"),
        tasks=4,
        samples=0,
        levels=levels,
        level_tasks=48,
    )
    sampler = make_sampler(study, "Blocks", "sapling-blocksworld")
    outcomes = evaluate_policy(study, "Blocks", sampler)
    sampler.engine.close()
    assert len(outcomes["levels/3 blocks/sampled"]) == len(outcomes["levels/3 blocks/greedy"]) == 42


def test_unknown_study_is_rejected_with_nearest_names() -> None:
    with pytest.raises(ConfigurationError, match="did you mean trees"):
        load_study("tree")


def test_work_of_some_environments_leaves_out_that_of_the_others(tmp_path: Path) -> None:
    envs = {"Lake": StudyEnv(LAKE), "Wet lake": StudyEnv(EnvConfig("TextFrozenLake-v0"))}
    study = Study("x", "", "sapling", envs, {"grpo": {}}, seeds=1, tuning=Tuning((0.1, 0.2)))
    names = [[item.name for item in phase] for phase in missing_work(study, tmp_path, ["Wet lake"])]
    assert names[0] == ["grpo with 0.1 on Wet lake, seed 1000", "grpo with 0.2 on Wet lake, seed 1000"]
    assert names[1][0] == "grpo on Wet lake, seed 0" and names[2] == ["supervised on Wet lake, seed 0"]
    assert not any(name.endswith((" Lake", " Lake, seed 0")) for phase in names for name in phase)
    with pytest.raises(ConfigurationError, match=r"unknown environment of the study x 'wet lake'; .*Wet lake"):
        run_study(study, tmp_path, envs=["wet lake"], console=Console(file=StringIO()))


def die() -> None:
    os._exit(3)


def write_file(path: Path) -> None:
    path.write_text("done")


def test_worker_that_dies_costs_its_phase_and_not_the_later_ones(tmp_path: Path) -> None:
    study = Study("x", "", "sapling", {"Lake": StudyEnv(LAKE)}, {"grpo": {}})
    phases = [[WorkItem("first", die, ())], [], [WorkItem("second", write_file, (tmp_path / "file",))]]
    text = StringIO()
    failures = _run_in_workers(study, tmp_path, phases, 1, Console(file=text, width=80))
    assert failures == [f"first: a worker process died; see {tmp_path / 'log.txt'}"]
    assert (
        "1 of 2: first failed: a worker process died" in text.getvalue()
        and "2 of 2: second done" in text.getvalue()
    )
    assert (tmp_path / "file").read_text() == "done"


def test_file_in_the_place_of_the_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match=r"file.*: is a file, or below one; name a folder\."):
            run_study(replace(load_study("first-steps"), model="sapling"), path, console=Console(file=StringIO()))


def test_folder_whose_study_file_is_none_is_rejected(tmp_path: Path) -> None:
    study = replace(load_study("first-steps"), model="sapling")
    (tmp_path / "study.json").write_text("[]")
    with pytest.raises(DataError, match=r"study.json: does not hold the definition of a study"):
        run_study(study, tmp_path, console=Console(file=StringIO()))


def test_folder_goes_on_when_only_the_tables_of_its_study_change(tmp_path: Path) -> None:
    study = replace(load_study("passes"), pairs=())
    claim_folder(study, tmp_path)
    stored = json.loads((tmp_path / "study.json").read_text())
    del stored["pairs"]  # as a version without them wrote it
    (tmp_path / "study.json").write_text(json.dumps(stored))
    claim_folder(replace(study, pairs=(("grove_3", "grpo_3"),), baseline="grove", collapse=True), tmp_path)
    assert json.loads((tmp_path / "study.json").read_text())["pairs"] == [["grove_3", "grpo_3"]]
    with pytest.raises(ConfigurationError, match=r"started with other settings \(seeds was 5 and is 4\)"):
        claim_folder(replace(study, seeds=4), tmp_path)


def test_results_in_one_precision_are_not_continued_in_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.json").write_text(json.dumps(to_plain(load_study("first-steps"))))
    with pytest.raises(SystemExit):
        main(["study", "first-steps", "--precision", "bfloat16", "--out", str(tmp_path)])
    error = " ".join(capsys.readouterr().err.split())
    assert "started with other settings (hardware.precision was 'float32' and is 'bfloat16')" in error


def test_run_in_the_folder_of_a_study_keeps_its_report(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="holds a run, not a study; choose another --out"):
        run_study(load_study("first-steps"), tmp_path, console=Console(file=StringIO()))
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("name", ["summary.json", "table.md", "report.html"])
def test_file_of_somebody_else_is_not_replaced_by_a_study(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigurationError, match=f"holds {name}, which belongs to no run; choose another --out"):
        claim_folder(load_study("first-steps"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def successes(metrics: str) -> list[float | None]:
    """Return the success rate of every record of a metrics.jsonl."""
    return [json.loads(line).get("success") for line in metrics.splitlines()]


@pytest.fixture
def small(warm_model: Path) -> Study:
    """Study of two trials with two updates each, from a tiny model."""
    settings: dict[str, object] = {
        "sampler.prompts": 2,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 12,
        "optimization.updates": 2,
        "optimization.episodes_per_step": 8,
    }
    recipes: dict[str, dict[str, object]] = {"grpo": {}}
    return Study(
        "small",
        "",
        str(warm_model),
        {"Lake": StudyEnv(LAKE)},
        recipes,
        settings,
        seeds=2,
        tasks=8,
        validation_every=1,
        samples=4,
        pass_tasks=4,
        level_tasks=4,
        controls=Controls((0.5, 1.0), tuning_tasks=4, supervised=Supervised(lr=1e-3, batch=8)),
    )


def run(study: Study, out: Path, *, workers: int = 2) -> tuple[int, str]:
    """Run a study, and return its exit status and output."""
    text = StringIO()
    status = run_study(study, out, workers=workers, console=Console(file=text, width=80))
    return status, text.getvalue()


@pytest.mark.heavy
def test_repeated_study_runs_missing_trials_only(small: Study, tmp_path: Path) -> None:
    status, output = run(small, tmp_path)
    assert status == 0 and "8 of 8" in output and "warm start" in output
    folder = tmp_path / "lake" / "grpo-1"
    assert (folder / "report.html").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    rows = json.loads((tmp_path / "summary.json").read_text())["rows"]
    policies = ["random", "expert", "warm start", "warm start, best temperature", "supervised", "grpo"]
    assert [row["policy"] for row in rows] == policies
    assert {row["env"] for row in rows} == {"Lake"} and [row["runs"] for row in rows] == [0, 0, 0, 0, 2, 2]
    before = {
        path: path.stat().st_mtime_ns for path in [*tmp_path.rglob("result.json"), *tmp_path.glob("*-Lake*")]
    }
    (tmp_path / "lake" / "grpo-0" / RESULT).unlink()
    (tmp_path / "lake" / "supervised-1" / RESULT).unlink()
    first = (tmp_path / "lake" / "grpo-0" / "metrics.jsonl").read_text()
    status, output = run(small, tmp_path)
    assert status == 0 and "1 of 2: grpo on Lake, seed 0 done" in output
    assert "2 of 2: supervised on Lake, seed 1 done" in output
    changed = {path for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed == {tmp_path / "lake" / name / RESULT for name in ("grpo-0", "supervised-1")}
    again = (tmp_path / "lake" / "grpo-0" / "metrics.jsonl").read_text()
    assert successes(first) == successes(again)
    with pytest.raises(ConfigurationError, match=r"other settings \(tasks was \d+ and is 9\)"):
        run(replace(small, tasks=9), tmp_path)


@pytest.mark.heavy
def test_study_on_edited_code_says_so_in_its_table(
    small: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # for its workers
    monkeypatch.syspath_prepend(str(tmp_path))
    lake = replace(LAKE, id="edited_lake:Lake")
    study = replace(small, envs={"Lake": StudyEnv(lake)}, controls=Controls(()), validation_every=0)
    sentence = "the code of edited_lake:Lake was edited between the runs, so they are not comparable"

    def run_with(max_steps: int) -> tuple[str, str]:
        (tmp_path / "edited_lake.py").write_text(
            "from arboretum.envs.frozenlake import FrozenLake\n"
            "class Lake(FrozenLake):\n"
            "    def __init__(self, split=None, **settings):\n"
            f"        super().__init__(split, max_steps={max_steps}, **settings)\n"
        )
        status, output = run(study, tmp_path / "study")
        assert status == 0
        return " ".join(output.split()), (tmp_path / "study" / "report.html").read_text()

    assert not any(sentence in text for text in run_with(5))
    assert not any(sentence in text for text in run_with(6))  # Nothing is left to run.
    (tmp_path / "study" / "lake" / "grpo-0" / RESULT).unlink()
    assert all(sentence in text for text in run_with(6))


@pytest.mark.heavy
def test_study_of_some_environments_makes_no_folders_of_the_others(small: Study, tmp_path: Path) -> None:
    study = replace(small, envs={**small.envs, "Wet lake": StudyEnv(EnvConfig("TextFrozenLake-v0"))}, seeds=1)
    assert run_study(study, tmp_path, envs=["Lake"], console=Console(file=StringIO())) == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["lake"]
    assert (tmp_path / "lake" / "suite.yaml").exists()


@pytest.mark.heavy
def test_trial_without_advantages_that_is_interrupted_in_its_evaluation_does_not_train_on(
    small: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_solved = StudyEnv(EnvConfig("TextFrozenLake-v0", {"start_goal": "corners"}))
    one_action = dict.fromkeys(("sampler.max_turns", "sampler.max_actions_per_turn", "sampler.max_actions"), 1)
    settings = {**small.settings, **one_action, "sampler.format_penalty": 0.0, "optimization.updates": 40}
    study = replace(small, envs={"Lake": never_solved}, settings=settings, validation_every=0)
    trial = next(study.trials())

    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(study_trials, "evaluate_policy", interrupt)
        run_trial(study, trial, tmp_path)
    run_trial(study, trial, tmp_path)
    assert json.loads((tmp_path / trial.folder / RESULT).read_text())["updates"] == 10


@pytest.mark.heavy
def test_failed_trial_is_reported_and_the_others_are_kept(small: Study, tmp_path: Path) -> None:
    blocked = tmp_path / "lake" / "grpo-0"
    blocked.parent.mkdir()
    blocked.write_text("a file instead of the trial's folder")
    status, output = run(small, tmp_path, workers=1)
    assert status == 1 and "Failed: grpo on Lake, seed 0: " in output
    assert "Failed: supervised on Lake, seed 1: grpo on Lake, seed 0 has no result yet" in output
    assert (tmp_path / "lake" / "grpo-1" / RESULT).exists()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("file", "results"), [("study.json", "there are no results yet"), ("warm-start-Lake.json", "warm start")]
)
def test_interrupted_study_prints_the_results_so_far(
    warm_model: Path, tmp_path: Path, file: str, results: str
) -> None:
    definition = tmp_path / "mine.yaml"
    definition.write_text(
        f"name: mine\nmodel: {warm_model}\nenvs: [{{name: Lake, id: TextFrozenLake-v0}}]\n"
        "recipes: {grpo: {}}\nsettings: {sampler.reply_tokens: 12, optimization.updates: 1000}\ntasks: 8\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "arboretum.cli", "study", str(definition), "--out", str(out)]
    study = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # The children of a background shell ignore SIGINT unless the handler is restored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    deadline = time.monotonic() + 240
    while not (out / file).exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    study.send_signal(signal.SIGINT)
    output, _ = study.communicate(timeout=60)
    assert study.returncode == 130
    assert "Interrupted:" in output and results in output and "Traceback" not in output


SAPLING = """\
name: mine
model: sapling
envs: [{name: Lake, id: TextFrozenLake-v0, kwargs: {observation_format: grid}}]
recipes: {grpo: {}}
baseline: grpo
tuning: {values: [1e-4, 3e-4], settings: {optimization.updates: 1}}
collapse: true
settings:
  sampler.prompts: 4
  sampler.rollouts: 4
  sampler.reply_tokens: 24
  sampler.max_actions: 10
  sampler.think: null
  optimization.updates: 2
  optimization.lr: 3.0e-4
  optimization.episodes_per_step: 16
seeds: 1
tasks: 12
repeats: 1
samples: 4
pass_tasks: 6
validation_every: 1
levels: [{name: dry, id: TextFrozenLake-v0, kwargs: {observation_format: grid, success_rate: 1.0}}]
level_tasks: 6
controls:
  temperatures: [0.2, 1.0]
  tuning_tasks: 6
  model: sapling
  supervised: {source: levels, lr: 5.0e-4, batch: 16}
"""


@pytest.mark.heavy
def test_command_reports_every_control_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sapling's study from the command line: tables, files, an exported model, and one control deleted."""
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    from arboretum.cli import main

    def command(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 0
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(SAPLING)
    text = command("study", "mine.yaml", "--out", "out", "--workers", "1")
    assert "9 of 9: supervised on Lake, seed 0 done" in text
    summary = json.loads(Path("out/summary.json").read_text())
    rows = {row["policy"]: row for row in summary["rows"]}
    policies = [
        "random",
        "expert",
        "other model",
        "warm start",
        "warm start, best temperature",
        "supervised",
        "grpo",
    ]
    assert list(rows) == policies
    # The control named by `model` is the warm start itself here, and with equal seeds it solves the same tasks.
    assert rows["other model"]["sampled"] == rows["warm start"]["sampled"]
    rates = rows["warm start, best temperature"]["validation"]
    assert rates[f"{rows['warm start, best temperature']['temperature']:g}"] == max(rates.values())
    for policy in ("grpo", "supervised", "warm start"):
        values = [rows[policy][f"pass@{k}"]["value"] for k in (1, 4)]
        assert values[0] <= values[1] == pytest.approx(1 - rows[policy]["unsolved"]["value"])
    assert set(rows["grpo"]["gains"]) == {"sampled", "tuned", "supervised", "greedy", "pass@4", "pass@4 tuned"}
    assert set(rows["grpo"]["levels"]["dry"]) == {"sampled", "greedy", "sampled_change", "greedy_change"}
    assert rows["grpo"]["tuned_value_per_run"] in (1e-4, 3e-4) and "learning at equal generated tokens" in text
    (curve,) = summary["curves"]
    tokens = [point["generated_tokens"] for point in curve["points"]]
    assert tokens[0] == 0 < tokens[1] < tokens[2] == rows["grpo"]["generated_tokens_per_run"]
    assert "success by generated tokens" in Path("out/report.html").read_text()

    # The exported model, evaluated by the command that the study prints, solves what the study says it solves.
    printed = next(one for one in summary["commands"] if "grpo-0" in one)
    assert printed in text
    command(*printed.split()[1:], "--out", "check", "--no-references")
    (line,) = json.loads(Path("check/summary.json").read_text())["lines"]
    assert line["success"]["value"] == rows["grpo"]["sampled"]["value"]

    kept = {
        path: path.read_bytes()
        for path in Path("out").rglob("*")
        if path.name.endswith(("-Lake.json", "result.json"))
    }
    Path("out/warm-start-best-temperature-Lake.json").unlink()
    text = command("study", "mine.yaml", "--out", "out", "--workers", "1")
    assert "1 of 1: warm start, best temperature on Lake done" in text
    assert {path: path.read_bytes() for path in kept} == kept
    assert json.loads(Path("out/summary.json").read_text()) == summary
