"""The table of algorithms: what it promises, how it is changed, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.gae import Gae
from arboretum.trainers.algorithms.recipe import Chains, Recipe, check_context
from arboretum.trainers.algorithms.recipes import RECIPES, recipe_named
from arboretum.trainers.algorithms.schedules import Linear
from arboretum.trainers.algorithms.selectors import Dynamic, Uncertainty


def test_the_table_names_every_algorithm() -> None:
    expected = ["ppo", "grpo", "dr_grpo", "rloo", "dapo", "dapo_tstar", "gigpo", "starpo", "starpo_s"]
    assert list(RECIPES) == expected
    assert all(recipe.name == name and recipe.about for name, recipe in RECIPES.items())


def test_published_numbers() -> None:
    """What each paper is known by."""
    dapo, gigpo, starpo, starpo_s = (RECIPES[name] for name in ("dapo", "gigpo", "starpo", "starpo_s"))
    assert (dapo.objective.clip_low, dapo.objective.clip_high) == (0.2, 0.28)
    assert dapo.objective.kl.coef == 0 and isinstance(dapo.selector, Dynamic) and dapo.overlong.coef == 1
    assert (gigpo.sampler.rollouts, gigpo.objective.kl.coef, gigpo.anchor) == (8, 0.01, "state")
    assert (starpo.sampler.prompts, starpo.sampler.rollouts, starpo.sampler.max_actions) == (8, 16, 10)
    assert starpo.objective.kl.coef == 0.001 and starpo.needs_reference and starpo.needs_entropy
    assert isinstance(starpo_s.selector, Uncertainty) and starpo_s.selector.amount == 0.25
    assert not starpo_s.needs_reference and starpo_s.objective.clip_high == 0.28
    assert RECIPES["dapo_tstar"].sampler.temperature == Linear(1.0, 0.5)


def test_published_batches_and_optimizers() -> None:
    """(prompts, rollouts), episodes a step, and how the optimizer was set where that was published."""
    batches = {
        "ppo": (8, 16, 32),
        "grpo": (8, 16, 32),
        "dr_grpo": (128, 8, 128),
        "rloo": (128, 4, 256),
        "dapo": (512, 16, 512),
        "gigpo": (16, 8, 32),
        "starpo": (8, 16, 32),
        "starpo_s": (8, 16, 32),
    }
    for name, (prompts, rollouts, step) in batches.items():
        recipe = RECIPES[name]
        sizes = (recipe.sampler.prompts, recipe.sampler.rollouts, recipe.optimisation.episodes_per_step)
        assert sizes == (prompts, rollouts, step), name
        assert recipe.optimisation.lr == 1e-6, name
        assert recipe.optimisation.max_grad_norm == 1.0, name
    adam = {
        name: (recipe.optimisation.betas, recipe.optimisation.weight_decay) for name, recipe in RECIPES.items()
    }
    assert adam["dr_grpo"] == ((0.9, 0.95), 0.0)
    assert adam["dapo"] == ((0.9, 0.999), 0.1)
    assert adam["starpo"] == adam["gigpo"] == ((0.9, 0.999), 0.01)
    assert {name: r.optimisation.warmup for name, r in RECIPES.items() if r.optimisation.warmup} == {
        "rloo": 18,
        "dapo": 20,
    }
    assert RECIPES["rloo"].objective.kl.coef == 0.03 and RECIPES["rloo"].objective.kl.placement == "reward"
    assert {name for name, recipe in RECIPES.items() if recipe.objective.entropy_coef == 0.001} == {
        "ppo",
        "grpo",
        "starpo",
        "starpo_s",
    }


def test_reading_the_table_loads_no_torch() -> None:
    code = "import sys, arboretum.trainers.algorithms.recipes; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "False"


def test_settings_of_one_part_change_together() -> None:
    recipe = RECIPES["grpo"].changed(
        {
            "sampler.prompts": 2,
            "sampler.rollouts": 4,
            "optimisation.episodes_per_step": 8,
            "objective.kl.coef": 0.0,
            "objective.clip_high": 0.28,
            "selector": Dynamic(),
        }
    )
    assert (recipe.sampler.prompts, recipe.sampler.rollouts, recipe.objective.kl.coef) == (2, 4, 0.0)
    assert recipe.objective.clip_high == 0.28 and recipe.objective.kl.estimator == "k3"
    assert isinstance(recipe.selector, Dynamic)
    assert RECIPES["grpo"].sampler.rollouts == 16
    # Each of the two alone would be refused.
    recipe = RECIPES["grpo"].changed({"objective.aggregation": "dr-grpo", "objective.norm_length": 100})
    assert recipe.objective.norm_length == 100


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("grpo", {"sampler.rollouts": 1}, "sampler.rollouts is 1"),
        ("gigpo", {"sampler.rollouts": 1}, "compares rollouts"),
        ("starpo_s", {"sampler.rollouts": 1, "optimisation.episodes_per_step": 4}, "differences within a group"),
        ("ppo", {"critic": None}, "needs a critic"),
        ("grpo", {"credit": Gae()}, "needs a critic"),
        ("ppo", {"credit": RECIPES["grpo"].credit}, "never look at the critic"),
        ("ppo", {"optimisation.episodes_per_step": 1000}, "8 prompts × 16 rollouts = 128"),
        ("ppo", {"objective.clip_hgih": 0.3}, "objective.clip_hgih.; did you mean .*objective.clip_high"),
        ("ppo", {"sampelr.prompts": 3}, "did you mean .*sampler"),
        ("grpo", {"critic.lr": 1.0}, "critic is None"),
        ("grpo", {"sampler.rollouts": "many"}, "sampler.rollouts takes a whole number, not 'many'"),
        ("grpo", {"optimisation.passes": 1.5}, "optimisation.passes takes a whole number"),
        ("grpo", {"optimisation.betas": [0.9]}, "optimisation.betas takes a list of 2"),
        ("grpo", {"optimisation.lr": float("inf")}, "optimisation.lr takes a finite number"),
        ("grpo", {"objective.entropy_coef": "high"}, "objective.entropy_coef takes a finite number"),
        ("grpo", {"credit.leave_one_out": "no"}, "credit.leave_one_out takes true or false"),
        ("grpo", {"sampler.think": "maybe"}, "sampler.think takes true or false or null"),
        ("grpo", {"sampler.top_p": 0.0}, "sampler.top_p must be above 0"),
        ("grpo", {"name": 3}, "name takes a text"),
        ("grpo", {"objective.kl": None}, "takes a Kl"),
        ("grpo", {"objective.kl": "k3", "objective.kl.coef": 0.1}, "one or the other"),
        ("grpo", {"sampler.temperature": 0.0}, "without chance"),
        ("grpo", {"sampler.format_penalty": 0.1}, "format_penalty"),
        ("ppo", {"credit.gamma": 1.1}, "credit.gamma"),
        ("grpo", {"credit.scale": "median"}, "credit.scale"),
        ("gigpo", {"credit.similarity": 0.95}, "observation"),
        ("ppo", {"critic.lr": 0.0}, "critic.lr"),
        ("ppo", {"optimisation.lr": float("nan")}, "optimisation.lr"),
        ("ppo", {"optimisation.passes": 0}, "optimisation.passes"),
        ("starpo_s", {"selector.rule": "count", "selector.amount": 9}, "of 8 prompts"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    name: str, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        RECIPES[name].changed(settings)
    assert "\n" not in str(caught.value)


def test_a_new_algorithm_is_a_new_row() -> None:
    mine = Recipe(
        name="mine", about="A test.", credit=RECIPES["rloo"].credit, sampler=Chains(prompts=4, rollouts=2)
    )
    assert mine.optimisation.passes == 1


def test_unknown_recipes_and_prompts_that_are_too_long() -> None:
    with pytest.raises(ConfigurationError, match="did you mean"):
        recipe_named("gripo")
    assert recipe_named("grpo") is RECIPES["grpo"]
    check_context(None, 10**6, 1)
    check_context(500, 100, 400)
    with pytest.raises(ConfigurationError, match="prompt of 101 tokens"):
        check_context(500, 101, 400)
