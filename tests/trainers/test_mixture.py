"""Runs on several environments: prompts by weight, metrics of each environment, exact continuation, mistakes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.config.cli_options import TrainOptions, given_options
from arboretum.trainers.config.mixture import parse_env
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import EnvConfig, ValidationConfig
from arboretum.trainers.reporting.report import describe_training
from arboretum.trainers.reporting.result import read_validation
from arboretum.trainers.sampling.schedule import EnvSchedule
from support.training import Make, equal, finish, weights, without_times

LAKE, SOKOBAN = "TextFrozenLake-v0", "TextSokoban-v0"


# ---------------------------------------------------------------------- order of prompts


def test_schedule_of_three_to_one_is_the_one_worked_by_hand() -> None:
    # The bound is 1/2. Environment 1 is due from 0.25·t ≥ 0.5 on, and must come by (0 + 1 - 0.5) / 0.25 = 2 → 3rd.
    assert EnvSchedule([3, 1]).draw(0, 8) == [0, 0, 1, 0, 0, 0, 1, 0]
    assert EnvSchedule([1, 1]).draw(0, 6) == [0, 1, 0, 1, 0, 1]
    assert EnvSchedule([5]).draw(3, 4) == [0, 0, 0, 0]


def test_every_window_has_the_share_of_every_environment() -> None:
    rng = random.Random(0)
    for _ in range(40):
        ratios = [rng.choice([1, 2, 3, 0.5, 0.1, 7, 0.333]) for _ in range(rng.randint(2, 6))]
        order = EnvSchedule(ratios).draw(0, 300)
        bound = 1 - 1 / (2 * len(ratios) - 2)
        counts = [[0] for _ in ratios]
        for env in order:
            for number, running in enumerate(counts):
                running.append(running[-1] + (env == number))
        for ratio, running in zip(ratios, counts, strict=True):
            share = ratio / sum(ratios)
            assert max(abs(count - share * place) for place, count in enumerate(running)) <= bound + 1e-9
            window = 7
            gaps = [running[i + window] - running[i] - share * window for i in range(len(order) - window)]
            assert max(map(abs, gaps)) <= 2 * bound + 1e-9


def test_schedule_is_the_same_from_any_prompt_on() -> None:
    whole = EnvSchedule([2, 1, 0.5]).draw(0, 100)
    later = EnvSchedule([2, 1, 0.5])
    assert later.draw(60, 40) == whole[60:]
    assert [later.count_before(60, env) for env in range(3)] == [whole[:60].count(env) for env in range(3)]


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("TextSokoban-v0", ("TextSokoban-v0", None, None)),
        ("TextSokoban-v0:3", ("TextSokoban-v0", None, 3.0)),
        ("small=TextSokoban-v0:0.5", ("TextSokoban-v0", "small", 0.5)),
        ("package.module:Maze", ("package.module:Maze", None, None)),
        ("maze=package.module:Maze:2", ("package.module:Maze", "maze", 2.0)),
    ],
)
def test_environment_has_a_name_and_a_weight(text: str, spec: tuple[str, str | None, float | None]) -> None:
    assert parse_env(text) == spec


def options(*arguments: str) -> TrainOptions:
    import tyro

    return tyro.cli(TrainOptions, args=[*arguments, "--model", "/nowhere"])


def test_options_are_for_all_environments_or_for_one() -> None:
    config = options(
        *("--env", "small=TextSokoban-v0:3", "--env", LAKE, "--env-arg", "max_steps=20"),
        *("--env-arg", "small.reward_mode=sparse", "--env-arg", f"{LAKE}.size=3"),
        *("--dialogue-arg", "max_turns=4", "--dialogue-arg", "small.max_turns=2"),
    ).config("grpo")
    small = {"max_steps": 20, "reward_mode": "sparse"}
    assert config.envs == (
        EnvConfig(SOKOBAN, small, name="small", weight=3.0, dialogue={"max_turns": 2}),
        EnvConfig(LAKE, {"max_steps": 20, "size": 3}),
    )
    assert config.dialogue.settings == {"max_turns": 4}
    assert config.out == Path(f"runs/grpo-small+{LAKE}-0").absolute()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"--env {SOKOBAN}:0 --env {LAKE}", f"the weight of {SOKOBAN} must be a number above 0, but is 0"),
        (f"--env {SOKOBAN}:-1 --env {LAKE}", f"the weight of {SOKOBAN} must be a number above 0, but is -1"),
        (f"--env {SOKOBAN}:nan --env {LAKE}", "must be a number above 0, but is nan"),
        (f"--env {SOKOBAN}:three --env {LAKE}", "the weight 'three' is no number"),
        (f"--env =X:2 --env {LAKE}", "--env takes [NAME=]ID[:WEIGHT]"),
        (f"--env {SOKOBAN} --env {SOKOBAN}:2", f"{SOKOBAN} is named twice; to train on it with different options"),
        (f"--env a={LAKE} --env b={LAKE}", "a and b are the same environment with the same options"),
        (f"--env {LAKE} --env TextSokobn-v0", "unknown environment 'TextSokobn-v0'; did you mean TextSokoban-v0"),
        (
            f"--env {LAKE} --env TextSokobn-v0:2 --set sampler.prompts=1",  # too few for episodes_per_step
            "unknown environment 'TextSokobn-v0'; did you mean TextSokoban-v0",
        ),
        (
            f"--env {LAKE} --env {SOKOBAN} --env-arg TextSokobn-v0.max_steps=3",
            "--env-arg TextSokobn-v0.max_steps=3: unknown environment of this run",
        ),
        (f"--env {LAKE} --env {SOKOBAN} --env-arg p_frozen=0.5", f"unknown option of {SOKOBAN} 'p_frozen'"),
        (f"--env {LAKE} --env {SOKOBAN} --env-arg size=3", f"{SOKOBAN}: size must be an integer from 5"),
        (f"--env {LAKE} --env {SOKOBAN} --dialogue-arg {LAKE}.max_tuns=3", "max_tuns"),
    ],
)
def test_mistake_is_reported_in_one_sentence(
    arguments: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["train", "grpo", *arguments.split(), "--model", "sapling"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_fine_tuning_takes_one_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(f"sft --env {LAKE} --env {SOKOBAN} --model sapling".split())
    assert "`arboretum sft` takes one --env" in capsys.readouterr().err


# ---------------------------------------------------------------------- runs

MIXTURE = {
    "env": EnvConfig(LAKE, {"size": 3}, weight=3),
    "mixture": (EnvConfig(LAKE, {"size": 4}, name="large", dialogue={"max_turns": 2}),),
    "validation": ValidationConfig(every=2, tasks=5),
}


def mixture(
    run_of: Make, recipe: str = "grpo", changes: dict[str, object] | None = None, **more: Any
) -> TrainingConfig:
    return run_of(recipe, {"sampler.prompts": 4, "optimization.updates": 4, **(changes or {})}, **MIXTURE, **more)


@pytest.mark.heavy
def test_run_trains_on_each_environment_by_its_weight_and_reports_each(
    run_of: Make, tmp_path: Path, one_thread: None
) -> None:
    from arboretum.trainers.checkpoints.run_folder import claim_run_folder
    from arboretum.trainers.trainer import Trainer

    config = mixture(run_of)
    claim_run_folder(config, resume=False)
    trainer = finish(Trainer(config))
    for record in trainer.history[1:]:
        assert (record[f"episodes/{LAKE}"], record["episodes/large"]) == (12, 4)  # 4 episodes for each prompt
        for metric in ("success", "return", "turns"):
            parts = 12 * record[f"{metric}/{LAKE}"] + 4 * record[f"{metric}/large"]
            assert record[metric] == pytest.approx(parts / 16)
        assert record["turns/large"] <= 2 < trainer.sampler.dialogue.max_turns
    validated = [one for one in map(read_validation, trainer.history) if one is not None]
    assert [one.update for one in validated] == [0, 2, 4]
    for one in validated:
        assert set(one.by_env) == {LAKE, "large"}
        small, large = one.by_env[LAKE].success, one.by_env["large"].success
        assert one.success.value == pytest.approx((3 * small.value + large.value) / 4)
        assert one.success.low <= one.success.value <= one.success.high
    page = describe_training(config.out)
    assert page["env"] == f"{LAKE} + large"
    assert [row["name"] for row in page["validations"] if row["part"]][:2] == [LAKE, "large"]
    assert "Success on held-out tasks by environment" in {chart["title"] for chart in page["charts"]}


@pytest.mark.heavy
def test_validation_of_which_an_environment_failed_wholly_ends_the_run(
    run_of: Make, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """It would be a small share of all episodes, whose score would choose the best checkpoint."""
    from arboretum.trainers import trainer
    from arboretum.trainers.sampling.failures import EpisodesFailed, Failures
    from arboretum.trainers.sampling.validation import RunValidation, validate_run

    def without_large(*given: Any) -> RunValidation:
        found = validate_run(*given)
        large = replace(found.by_env["large"], failures=Failures(24, 24, "the server is down"))
        return found._replace(by_env={**found.by_env, "large": large}, failures=Failures(280, 24, "it is down"))

    monkeypatch.setattr(trainer, "validate_run", without_large)
    with pytest.raises(EpisodesFailed, match=r"^24 of 24 validation episodes of large .*the server is down"):
        finish(trainer.Trainer(mixture(run_of)))


@pytest.mark.heavy
@pytest.mark.parametrize("recipe", ["dapo", "tree_grpo"])
def test_interrupted_mixture_continues_to_the_same_numbers(
    recipe: str, run_of: Make, tmp_path: Path, one_thread: None
) -> None:
    from arboretum.trainers.trainer import Trainer

    def config(name: str) -> TrainingConfig:
        return mixture(run_of, recipe, {"optimization.updates": 3}, out=tmp_path / name, checkpoint_every=1)

    whole = finish(Trainer(config("whole")))
    first = Trainer(config("part"))
    for record in first.run():
        if record.metrics["update"] == 2:
            break
    first.close()
    resumed = finish(Trainer(config("part"), resume=True))
    assert without_times(resumed.history) == without_times(whole.history)
    assert equal(weights(resumed), weights(whole))


@pytest.mark.heavy
def test_command_trains_a_mixture_and_resumes_it_with_its_settings(
    warm_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    def run(command: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        assert isinstance(ended.value.code, int)
        return ended.value.code

    out = tmp_path / "run"
    command = (
        f"train grpo --env {LAKE}:3 --env large={LAKE} --env-arg large.size=5 --model {warm_model} --device cpu"
        f" --dialogue no_think --dialogue-arg max_turns=2 --dialogue-arg show_reward=false --out {out}"
        " --validation.every 1 --validation.tasks 3 --set sampler.prompts=4 --set sampler.rollouts=2"
        " --set sampler.reply_tokens=8 --set optimization.episodes_per_step=8 --set optimization.updates="
    )
    assert run(command + "1") == 0
    text = capsys.readouterr().out
    assert "large held out" in text and (out / "report.html").exists() and (out / "model").exists()
    assert run(f"train --resume {out} --set optimization.updates=2") == 0
    assert "prolong" not in capsys.readouterr().out
    assert run(f"train --resume {out}") == 0
    prolong = f"The run was complete; prolong it with: arboretum train --resume {out} --set optimization.updates=4"
    assert prolong in capsys.readouterr().out.replace("\n", "")
    assert run(f"train --resume {out} --env {LAKE}:3 --env large={LAKE}:2") == 2
    assert "was started with another mixture (large: weight was 1.0 and is 2.0)" in capsys.readouterr().err
    assert run(f"train --resume {out} --env {LAKE}") == 2
    assert "was started with another mixture" in capsys.readouterr().err
    assert run(f"train --resume {out} --env-arg large.size=6") == 2
    assert "size was 5 and is 6" in capsys.readouterr().err
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [record["update"] for record in records] == [0, 1, 2]
    assert run(f"compare {out} {out}/../run2") == 2


def test_single_environment_is_stored_as_before(tmp_path: Path) -> None:
    from arboretum.trainers.config.serialize import from_plain, to_plain

    config = options("--env", LAKE, "--env-arg", "size=5").config("grpo")
    stored = to_plain(config)
    assert stored["env"] == {"id": LAKE, "kwargs": {"size": 5}, "split": "train", "tasks": None}
    assert "mixture" not in stored and from_plain(TrainingConfig, stored) == config
    several = options("--env", f"{LAKE}:2", "--env", SOKOBAN).config("grpo")
    assert from_plain(TrainingConfig, json.loads(json.dumps(to_plain(several)))) == several


def test_weights_are_kept_when_a_run_is_resumed(tmp_path: Path) -> None:
    stored = options("--env", f"{LAKE}:2", "--env", f"{SOKOBAN}:0.5").config("grpo")
    resumed = TrainOptions(resume=tmp_path, env_arg=(f"{LAKE}.size=5",)).config(None, stored, given_options([]))
    assert [(env.id, env.weight, env.kwargs) for env in resumed.envs] == [
        (LAKE, 2.0, {"size": 5}),
        (SOKOBAN, 0.5, {}),
    ]
    with pytest.raises(ConfigurationError, match="unknown environment of this run"):
        TrainOptions(resume=tmp_path, env_arg=("TextFrozenLak-v0.size=5",)).config(None, stored, set())
