"""Noise of the policy gradients of credit rules: estimates, measurement, and the command."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.files import write_atomic
from arboretum.trainers.algorithms.credit.base import Credit
from arboretum.trainers.algorithms.credit.grove_credit import Grove
from arboretum.trainers.algorithms.recipes import get_recipe
from arboretum.trainers.config.settings import EnvConfig
from arboretum.trainers.study import gradients
from arboretum.trainers.study.controls import Controls
from arboretum.trainers.study.definition import Study, StudyEnv, Trial
from arboretum.trainers.study.gradient_noise import GradientProgress, estimate, noise_of, run_gradients
from arboretum.trainers.study.gradients import measure_gradients, read_products
from arboretum.trainers.trainer import Trainer

LAKE = EnvConfig("TextFrozenLake-v0", {"observation_format": "grid", "success_rate": 1.0})
ONE_STEP: dict[str, object] = {"optimization.updates": 1, "optimization.episodes_per_step": None}


@pytest.fixture
def study() -> Study:
    """Study of one update with a single step on 16 episodes of the shipped model."""
    settings: dict[str, object] = {
        "sampler.prompts": 4,
        "sampler.rollouts": 4,
        "sampler.max_turns": 3,
        "sampler.max_actions_per_turn": 1,
        "sampler.max_actions": 3,
        "sampler.reply_tokens": 24,
        "sampler.format_penalty": 0.0,
        "objective.aggregation": "token-mean",
        "objective.kl.coef": 0.0,
        "objective.entropy_coef": 0.0,
        **ONE_STEP,
    }
    return Study(
        "small",
        "",
        "sapling",
        {"Lake": StudyEnv(LAKE)},
        {"grpo": {}, "grove": {}, "grpo_3": {"recipe": "grpo", "optimization.passes": 3}},
        settings,
        validation_every=0,
        controls=Controls(supervised=None),
    )


def known_products(batches: int) -> np.ndarray:
    """Return products of gradients of squared lengths 1 and 4, cosine 0.6, and noise of 40 x 0.1 and 40 x 0.2."""
    generator = np.random.default_rng(0)
    means = np.zeros((2, 1, 40))
    means[0, 0, 0], means[1, 0, :2] = 1, (1.2, 1.6)
    gradients = means + np.sqrt([0.1, 0.2])[:, None, None] * generator.normal(size=(2, batches, 40))
    return np.asarray(np.einsum("anw,bmw->abnm", gradients, gradients))


def test_signal_and_direction_of_known_gradients() -> None:
    signals, cosines = estimate(known_products(1500), np.arange(1500))
    assert signals == pytest.approx([1 / 4, 4 / 8], rel=0.07) and cosines == pytest.approx([1, 0.6], abs=0.04)


def test_interval_holds_the_known_ratio_and_shrinks_with_batches() -> None:
    few, many = (noise_of(known_products(batches)) for batches in (40, 200))
    for unit, other in (few, many):
        assert (unit.ratio, unit.low, unit.high, unit.direction) == (1, 1, 1, pytest.approx(1))
        assert other.low < 2 < other.high
    assert many[1].high - many[1].low < (few[1].high - few[1].low) / 2


def test_signal_that_cannot_be_told_from_noise_has_no_ratio() -> None:
    gradients = np.array([[[1.0, 0.0], [-1.0, 0.0]] * 5, [[1.0, 0.2]] * 10])
    unit, other = noise_of(np.einsum("anw,bmw->abnm", gradients, gradients))
    assert unit.signal < 0 and math.isnan(unit.ratio) and math.isnan(other.ratio) and math.isnan(other.direction)
    assert math.isinf(other.high)


def test_two_signals_that_cannot_be_told_from_noise_have_no_direction() -> None:
    gradients = np.array([[[1.0, 0.0], [-1.0, 0.0]] * 5, [[0.5, 0.1], [-0.5, 0.1]] * 5])
    gradients[1, :, 1] *= [1, -1] * 5
    unit, other = noise_of(np.einsum("anw,bmw->abnm", gradients, gradients))
    assert max(unit.signal, other.signal) < 0 and math.isnan(unit.direction) and math.isnan(other.direction)


def test_gradients_are_those_of_the_first_updates_of_training(study: Study, tmp_path: Path) -> None:
    credits = {name: get_recipe(name).credit for name in ("rloo", "grpo", "grove")}
    path = tmp_path / "gradients.json"
    measure_gradients(study, "Lake", credits, 2, path)
    products = read_products(path, credits, 2)
    assert products is not None and products.shape == (3, 3, 2, 2)
    assert products == pytest.approx(products.transpose(1, 0, 3, 2), rel=1e-6)
    assert read_products(path, credits, 3) is None and read_products(tmp_path / "none.json", credits, 2) is None
    for number, name in enumerate(credits):
        if name == "rloo":
            continue
        trainer = Trainer(study.config(Trial("Lake", name, seed=0), tmp_path / "run"))
        record = next(trainer.run())
        trainer.close()
        norm = record.metrics["grad_norm"]
        assert norm > 0 and math.sqrt(products[number, number, 0, 0]) == pytest.approx(norm, rel=1e-4), name


def test_gradients_are_those_of_the_groups_that_the_first_recipe_keeps(study: Study, tmp_path: Path) -> None:
    """With 16 episodes a batch, DAPO samples until four groups differ within, and weights what it finds."""
    recipes: dict[str, dict[str, object]] = {"dapo": {"selector.max_batches": 3}}
    study = replace(study, recipes=recipes)
    path, credits = tmp_path / "gradients.json", {"dapo": get_recipe("dapo").credit}
    measure_gradients(study, "Lake", credits, 1, path)
    products = read_products(path, credits, 1)
    trainer = Trainer(study.config(Trial("Lake", "dapo", seed=0), tmp_path / "run"))
    record = next(trainer.run())
    trainer.close()
    assert products is not None and record.metrics["groups_kept"] < 4 * record.metrics["batches"]
    assert math.sqrt(products[0, 0, 0, 0]) == pytest.approx(record.metrics["grad_norm"], rel=1e-4)


def test_redraws_of_one_rule_are_not_in_the_gradients_of_another(study: Study, tmp_path: Path) -> None:
    slippery = StudyEnv(EnvConfig("TextFrozenLake-v0", {"observation_format": "grid"}))
    study = replace(study, envs={"Lake": slippery})
    grove = get_recipe("grove").credit
    assert isinstance(grove, Grove)
    rules: dict[str, Credit] = {"grove": grove, "two": replace(grove, redraws=2), "six": replace(grove, redraws=6)}
    measured = {}
    for names in (("grove",), ("two",), ("grove", "two", "six")):
        path, credits = tmp_path / f"{'-'.join(names)}.json", {name: rules[name] for name in names}
        measure_gradients(study, "Lake", credits, 1, path)
        measured[names] = read_products(path, credits, 1)
    alone, two, together = measured.values()
    assert alone is not None and two is not None and together is not None
    squares = [together[number, number, 0, 0] for number in range(3)]
    assert squares[:2] == pytest.approx([alone[0, 0, 0, 0], two[0, 0, 0, 0]], rel=1e-4)
    assert len(set(squares)) == 3


def test_first_recipe_with_a_critic_plays_the_episodes(study: Study, tmp_path: Path) -> None:
    study = replace(study, recipes={"ppo": {}})
    credits = {name: get_recipe(name).credit for name in ("rloo", "grpo")}
    measure_gradients(study, "Lake", credits, 1, tmp_path / "gradients.json")
    assert read_products(tmp_path / "gradients.json", credits, 1) is not None


def test_products_are_read_for_the_rules_in_their_order_only(tmp_path: Path) -> None:
    path, credits = tmp_path / "gradients.json", {name: get_recipe(name).credit for name in ("rloo", "grpo")}
    rules = {name: str(credit) for name, credit in credits.items()}
    path.write_text(json.dumps({"rules": rules, "products": np.zeros((2, 2, 1, 1)).tolist()}))
    assert read_products(path, credits, 1) is not None
    assert read_products(path, dict(reversed(credits.items())), 1) is None
    path.write_text(json.dumps({"products": [[[[1.0]]]]}))
    assert read_products(path, credits, 1) is None


def test_command_keeps_what_it_measured_and_names_the_study_s_rules(study: Study, tmp_path: Path) -> None:
    text = StringIO()
    console = Console(file=text, width=80)
    for _ in range(2):
        assert run_gradients(study, tmp_path, 8, recipes=(), envs=(), workers=1, console=console) == 0
    output = text.getvalue()
    assert output.count("1 of 1: Lake done") == 1 and output.count("Gradients of 8 batches") == 2
    # A variant with the same credit as another recipe has no row of its own.
    assert [line.split()[0] for line in output.splitlines() if line.startswith((" r", " g"))] == [
        "rloo",
        "grpo",
        "grove",
    ] * 2
    found = json.loads((tmp_path / "lake" / "gradients.json").read_text())
    assert list(found["rules"]) == ["rloo", "grpo", "grove"]
    assert json.loads((tmp_path / "study.json").read_text())["name"] == "small"


def test_terminal_shows_the_batches_of_a_measurement_in_progress(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = StringIO()
    console = Console(file=text, width=80, force_terminal=True)

    def write_and_show(path: Path, content: str) -> None:
        write_atomic(path, content)
        progress.show(["Lake"])  # in place of the process that waits for the measurement

    monkeypatch.setattr(gradients, "write_atomic", write_and_show)
    rules = {"rloo": get_recipe("rloo").credit}
    with GradientProgress(tmp_path, 4, 1, console) as progress:
        progress.show(["Lake"])
        measure_gradients(study, "Lake", rules, 4, tmp_path / "lake" / "gradients.json")
    counts = [int(found) for found in re.findall(r"of 4 batches: Lake (\d+)", text.getvalue())]
    assert counts[:5] == [0, 1, 2, 3, 4]
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["gradients.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["passes", "--gradients", "7"], "--gradients must be at least 8, but is 7."),
        (["passes", "--recipes", "grpo"], "--recipes chooses what --gradients measures; give both."),
        (["passes", "--gradients", "8", "--recipes", "gropo"], "unknown recipe 'gropo'; did you mean grpo"),
        (["passes", "--gradients", "8", "--recipes", "ppo"], "the rule of ppo needs a critic"),
        (["passes", "--gradients", "8", "--recipes", "tree_grpo"], "the rule of tree_grpo is for trees"),
        (["passes", "--gradients", "8", "--recipes", "rloo"], "no rule to compare with that of rloo"),
        (["passes", "--gradients", "8", "--envs", "Lake"], "unknown environment of the study passes 'Lake'"),
        (["credit", "--gradients", "8"], "--gradients is an option of other studies; omit it."),
        (["credit", "--recipes", "grpo"], "--recipes is an option of other studies; omit it, or give --arms."),
    ],
)
def test_command_rejects_what_it_cannot_measure(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["study", *arguments, "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_study_whose_first_recipe_samples_trees_is_rejected(study: Study, tmp_path: Path) -> None:
    trees = replace(study, recipes={"tree_grpo": {}, **study.recipes}, settings=ONE_STEP)
    with pytest.raises(ConfigurationError, match="first recipe of the study small samples trees"):
        run_gradients(trees, tmp_path, 8, recipes=(), envs=(), workers=1, console=Console(file=StringIO()))
