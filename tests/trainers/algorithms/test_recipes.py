"""Table of recipes: published values, changed settings, and rejected combinations."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arboretum
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.cognitive_credit import Cognitive
from arboretum.trainers.algorithms.credit.gae import Gae
from arboretum.trainers.algorithms.credit.tree import TreeCredit
from arboretum.trainers.algorithms.objectives.surgical import Surgical
from arboretum.trainers.algorithms.recipe import Recipe
from arboretum.trainers.algorithms.recipes import RECIPES, get_recipe
from arboretum.trainers.algorithms.samplers import Chains, Trees
from arboretum.trainers.algorithms.schedules import Linear
from arboretum.trainers.algorithms.selectors import Dynamic, Uncertainty
from arboretum.trainers.sampling.context_check import check_context


def test_table_lists_every_algorithm() -> None:
    expected = ["ppo", "grpo", "dr_grpo", "rloo", "dapo", "dapo_tstar", "gigpo", "starpo", "starpo_s", "tree_grpo"]
    expected += ["t_star", "t_star_dapo", "t_star_gigpo", "grove"]
    assert list(RECIPES) == expected
    assert all(recipe.name == name and recipe.about for name, recipe in RECIPES.items())


def test_recipes_have_the_distinctive_values_of_their_papers() -> None:
    dapo, gigpo, starpo, starpo_s = (RECIPES[name] for name in ("dapo", "gigpo", "starpo", "starpo_s"))
    assert (dapo.objective.clip_low, dapo.objective.clip_high) == (0.2, 0.28)
    assert dapo.objective.kl.coef == 0 and isinstance(dapo.selector, Dynamic) and dapo.overlong.coef == 1
    assert (gigpo.sampler.rollouts, gigpo.objective.kl.coef, gigpo.credit.keep) == (8, 0.01, {"states"})
    assert (starpo.sampler.prompts, starpo.sampler.rollouts, starpo.sampler.max_actions) == (8, 16, 10)
    assert starpo.objective.kl.coef == 0.001 and starpo.needs_reference and starpo.needs_entropy
    assert isinstance(starpo_s.selector, Uncertainty) and starpo_s.selector.amount == 0.25
    assert not starpo_s.needs_reference and starpo_s.objective.clip_high == 0.28
    assert RECIPES["dapo_tstar"].sampler.temperature == Linear(1.0, 0.5)


def test_recipes_have_the_published_batch_sizes_and_optimizers() -> None:
    """Batch sizes are (prompts, rollouts, episodes per step)."""
    batches = {
        "ppo": (8, 16, 32),
        "grpo": (8, 16, 32),
        "dr_grpo": (128, 8, 128),
        "rloo": (128, 4, 256),
        "dapo": (512, 16, 512),
        "gigpo": (16, 8, 32),
        "starpo": (8, 16, 32),
        "starpo_s": (8, 16, 32),
        "tree_grpo": (512, 6, 384),
    }
    for name, (prompts, rollouts, step) in batches.items():
        recipe = RECIPES[name]
        sizes = (recipe.sampler.prompts, recipe.sampler.rollouts, recipe.optimization.episodes_per_step)
        assert sizes == (prompts, rollouts, step), name
        assert recipe.optimization.lr == 1e-6, name
        assert recipe.optimization.max_grad_norm == 1.0, name
    adam = {
        name: (recipe.optimization.betas, recipe.optimization.weight_decay) for name, recipe in RECIPES.items()
    }
    assert adam["dr_grpo"] == ((0.9, 0.95), 0.0)
    assert adam["dapo"] == ((0.9, 0.999), 0.1)
    assert adam["starpo"] == adam["gigpo"] == ((0.9, 0.999), 0.01)
    assert {name: r.optimization.warmup for name, r in RECIPES.items() if r.optimization.warmup} == {
        "rloo": 18,
        "dapo": 20,
        "tree_grpo": 51,
    }
    assert RECIPES["rloo"].objective.kl.coef == 0.03 and RECIPES["rloo"].objective.kl.placement == "reward"
    assert {name for name, recipe in RECIPES.items() if recipe.objective.entropy_coef == 0.001} == {
        "ppo",
        "grove",
        "grpo",
        "starpo",
        "starpo_s",
        "t_star",
        "tree_grpo",
    }


def test_readme_lists_each_recipe_once() -> None:
    text = (Path(arboretum.__file__).parent / "README.md").read_text(encoding="utf-8")
    listed = re.search(r"^## Recipes\n(.*?)Each is a row of one table", text, re.DOTALL | re.MULTILINE)
    assert listed is not None
    assert sorted(re.findall(r"`(\w+)`", listed[1])) == sorted(RECIPES)


def test_tree_recipe_has_the_sizes_of_the_paper() -> None:
    recipe = RECIPES["tree_grpo"]
    assert isinstance(recipe.sampler, Trees) and isinstance(recipe.credit, TreeCredit)
    sizes = (
        recipe.sampler.trees,
        recipe.sampler.expansions,
        recipe.sampler.rounds,
        recipe.sampler.episodes_per_tree,
    )
    assert sizes == (2, 2, 1, 3)
    objective = recipe.objective
    assert (objective.aggregation, objective.dual_clip, objective.kl.coef) == ("token-mean", 3.0, 0.001)


@pytest.mark.parametrize("base", ["grpo", "dapo_tstar", "gigpo"])
def test_t_star_has_the_published_values_over_every_base(base: str) -> None:
    recipe = RECIPES[{"grpo": "t_star", "dapo_tstar": "t_star_dapo", "gigpo": "t_star_gigpo"}[base]]
    credit = recipe.credit
    assert isinstance(credit, Cognitive)
    assert (credit.kl_threshold, credit.kl_samples, credit.delta, credit.gamma) == (0.25, 16, 0.3, 0.99)
    assert credit.omega == (1.0 if base == "gigpo" else 0.0)
    assert recipe.objective.pair_terms == (Surgical(beta=0.1, weight=0.15),)
    assert recipe.objective.reference_decay == 0.95 and recipe.objective.kl.coef == 0
    assert recipe.grafting.mode == "rewrite" and not recipe.needs_token_reference
    assert (recipe.sampler.prompts, recipe.sampler.rollouts, recipe.sampler.max_turns) == (32, 8, 20)
    assert (recipe.optimization.updates, recipe.optimization.lr) == (160, 5e-6)
    inherited, kept = RECIPES[base].objective, recipe.objective
    for name in ("clip_low", "clip_high", "aggregation", "dual_clip", "entropy_coef"):
        assert getattr(kept, name) == getattr(inherited, name)
    assert recipe.sampler.temperature == RECIPES[base].sampler.temperature
    assert recipe.rewards.scale == 1.0


def test_importing_the_table_does_not_import_torch() -> None:
    code = "import sys, arboretum.trainers.algorithms.recipes; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "False"


def test_settings_of_several_parts_change_together() -> None:
    recipe = RECIPES["grpo"].with_settings(
        {
            "sampler.prompts": 2,
            "sampler.rollouts": 4,
            "optimization.episodes_per_step": 8,
            "objective.kl.coef": 0.0,
            "objective.clip_high": 0.28,
            "selector": Dynamic(),
        }
    )
    assert (recipe.sampler.prompts, recipe.sampler.rollouts, recipe.objective.kl.coef) == (2, 4, 0.0)
    assert recipe.objective.clip_high == 0.28 and recipe.objective.kl.estimator == "k3"
    assert isinstance(recipe.selector, Dynamic)
    assert RECIPES["grpo"].sampler.rollouts == 16
    recipe = RECIPES["grpo"].with_settings({"objective.aggregation": "dr-grpo", "objective.norm_length": 100})
    assert recipe.objective.norm_length == 100


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("grpo", {"sampler.rollouts": 1}, "sampler.rollouts is 1"),
        ("gigpo", {"sampler.rollouts": 1}, "compares episodes of one prompt"),
        (
            "starpo_s",
            {"sampler.rollouts": 1, "optimization.episodes_per_step": 4},
            "selector .uncertainty. compares episodes",
        ),
        ("ppo", {"critic": None}, "needs a critic"),
        ("ppo", {"critic.warmup": 200}, "only 200 updates, so the policy would never be trained"),
        ("grpo", {"credit": Gae()}, "needs a critic"),
        ("ppo", {"credit": RECIPES["grpo"].credit}, "does not use a critic; set critic=null"),
        ("ppo", {"optimization.episodes_per_step": 1000}, "8 prompts × 16 rollouts = 128"),
        ("ppo", {"objective.clip_hgih": 0.3}, "objective.clip_hgih.; did you mean .*objective.clip_high"),
        ("ppo", {"sampelr.prompts": 3}, "did you mean .*sampler"),
        ("grpo", {"critic.lr": 1.0}, "does not use a critic"),
        ("dapo", {"selector.max_batches": -1}, "selector.max_batches must be at least 0"),
        ("grpo", {"overlong.cache.size": 1}, "overlong.cache is 4096, which has no settings below it"),
        ("grpo", {"sampler.rollouts": "many"}, "sampler.rollouts is 'many'; expected a whole number, got text"),
        ("grpo", {"optimization.passes": 1.5}, "optimization.passes is 1.5; expected a whole number"),
        ("grpo", {"optimization.betas": [0.9]}, r"optimization.betas is \[0.9\]; expected a list of length 2"),
        ("grpo", {"optimization.lr": float("inf")}, "optimization.lr must be finite"),
        ("grpo", {"objective.entropy_coef": "high"}, "objective.entropy_coef is 'high'; expected a number"),
        ("grpo", {"credit.leave_one_out": "no"}, "credit.leave_one_out is 'no'; expected true or false"),
        ("grpo", {"sampler.think": "maybe"}, "sampler.think is 'maybe'; expected true or false"),
        ("grpo", {"sampler.top_p": 0.0}, "sampler.top_p must be above 0"),
        ("grpo", {"name": 3}, "name is 3; expected text"),
        ("grpo", {"objective.kl": None}, "objective.kl is None; expected settings by name"),
        ("grpo", {"objective.kl": "k3", "objective.kl.coef": 0.1}, "conflicts with objective.kl"),
        ("grpo", {"sampler.temperature": 0.0}, "greedy episodes of one prompt do not differ"),
        ("grpo", {"sampler.format_penalty": 0.1}, "format_penalty"),
        ("ppo", {"credit.gamma": 1.1}, "credit.gamma"),
        ("grpo", {"credit.scale": "median"}, "credit.scale is .median.; choose one of .group., .batch., .none."),
        ("gigpo", {"credit.similarity": 0.95}, "observation"),
        ("ppo", {"critic.lr": 0.0}, "critic.lr"),
        ("ppo", {"optimization.lr": float("nan")}, "optimization.lr"),
        ("ppo", {"optimization.passes": 0}, "optimization.passes"),
        ("grpo", {"optimization.max_tokens": 0}, "optimization.max_tokens must be at least 1"),
        (
            "grpo",
            {"optimization.max_tokens": 9, "optimization.schedule": "linear"},
            "needs to know the last update",
        ),
        ("dapo_tstar", {"optimization.max_tokens": 9}, "sampler.temperature changes until the last update"),
        ("starpo_s", {"selector.rule": "count", "selector.amount": 9}, "only 8 prompts"),
        ("tree_grpo", {"sampler.leaves": 4}, "sampler.leaves is 4, but a tree has only 1 rounds × 2 expansions"),
        ("tree_grpo", {"sampler.trees": 0}, "sampler.trees must be at least 1"),
        ("tree_grpo", {"sampler.rounds": 0}, "sampler.rounds must be at least 1"),
        ("tree_grpo", {"sampler.rollouts": 4}, "unknown setting 'sampler.rollouts'"),
        ("tree_grpo", {"sampler.choice": "best"}, "choose one of 'random', 'entropy', 'value'"),
        (
            "tree_grpo",
            {"sampler.trees": 1, "sampler.leaves": 1},
            "sampler.trees × sampler.leaves is 1; set it to 2 or more",
        ),
        ("tree_grpo", {"credit.prefix_weighting": "twice"}, "choose one of 'duplicate', 'mean', 'once'"),
        (
            "grpo",
            {"credit.name": "tree", "credit.estimator": "intra"},
            "compares episodes of one tree, but a tree of 'chains' has one; set sampler.name=trees",
        ),
    ],
)
def test_impossible_settings_are_rejected_in_one_sentence(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        RECIPES[name].with_settings(settings)
    assert "\n" not in str(caught.value)


def test_recipe_of_existing_parts_has_default_optimization() -> None:
    mine = Recipe(
        name="mine", about="A test.", credit=RECIPES["rloo"].credit, sampler=Chains(prompts=4, rollouts=2)
    )
    assert mine.optimization.passes == 1


def test_unknown_recipe_is_rejected_with_nearest_names() -> None:
    with pytest.raises(ConfigurationError, match="did you mean"):
        get_recipe("gripo")
    assert get_recipe("grpo") is RECIPES["grpo"]


def test_prompt_that_leaves_no_room_for_a_reply_is_rejected() -> None:
    check_context(None, 10**6, 1)
    check_context(500, 100, 400)
    with pytest.raises(ConfigurationError, match="prompt of 101 tokens"):
        check_context(500, 101, 400)
