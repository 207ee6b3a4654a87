"""Exchange of a recipe's parts by name: built-in parts, parts and recipes of plug-ins, and storage as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.anchor import Anchor
from arboretum.trainers.algorithms.credit.gae import Gae
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.objectives.surgical import Surgical
from arboretum.trainers.algorithms.recipe import Critic, Recipe
from arboretum.trainers.algorithms.recipes import RECIPES, get_recipe
from arboretum.trainers.algorithms.samplers import Chains, Trees
from arboretum.trainers.algorithms.selectors import All, Dynamic, Uncertainty
from arboretum.trainers.config.serialize import from_plain, to_plain
from support.rollouts import chain_rollouts

MODULE = "parts_of_a_test_plugin"
SOURCE = '''
"""Parts of a recipe as a plug-in would define them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from arboretum.trainers.algorithms.credit.base import Advantages, Credit
from arboretum.trainers.algorithms.objectives.term import Term
from arboretum.trainers.algorithms.recipe import Recipe
from arboretum.trainers.algorithms.samplers import Chains
from arboretum.trainers.algorithms.selectors import Selection, Selector


@dataclass(frozen=True)
class Pairs(Chains):
    """Sampler with a setting of its own."""

    margin: float = 0.5

    name: ClassVar[str] = "pairs"


@dataclass(frozen=True)
class First(Selector):
    """Selector of the first groups."""

    count: int = 1

    name: ClassVar[str] = "first"

    def select(self, rollouts):
        return Selection(tuple(range(min(self.count, rollouts.groups))))


@dataclass(frozen=True)
class Constant(Credit):
    """Equal advantages of all tokens."""

    value: float = 1.0

    name: ClassVar[str] = "constant"

    def assign(self, rollouts, values=None, in_loss=None):
        return Advantages(np.full(rollouts.actions, self.value))


@dataclass(frozen=True)
class Push(Term):
    """Multiple of the log-probability."""

    coef: float = 0.5

    name: ClassVar[str] = "push"
    needs_reference: ClassVar[bool] = True

    def losses(self, tokens):
        return -self.coef * tokens.logp


RECIPE = Recipe(name="constant", about="Constant advantages.", credit=Constant(2.0), selector=First(3))
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of an importable module with plug-in parts."""
    (tmp_path / f"{MODULE}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield MODULE
    sys.modules.pop(MODULE, None)


def reload(recipe: Recipe) -> Recipe:
    """Return a recipe read back from its JSON."""
    return from_plain(Recipe, json.loads(json.dumps(to_plain(recipe))))


# ---------------------------------------------------------------------- built-in parts


def test_selector_name_exchanges_the_selector_and_applies_its_settings() -> None:
    recipe = RECIPES["grpo"].with_settings({"selector.name": "uncertainty", "selector.amount": 0.5})
    assert recipe.selector == Uncertainty(amount=0.5)
    assert RECIPES["grpo"].selector == All()


def test_part_name_alone_gives_the_part_its_defaults() -> None:
    assert RECIPES["starpo_s"].with_settings({"selector.name": "dynamic"}).selector == Dynamic()
    assert RECIPES["starpo_s"].with_settings({"selector": "dynamic"}).selector == Dynamic()


def test_name_of_the_current_part_keeps_its_settings() -> None:
    recipe = RECIPES["starpo_s"].with_settings({"selector.name": "uncertainty", "selector.eps": 0.1})
    assert recipe.selector == Uncertainty(amount=0.25, eps=0.1)


def test_anchor_credit_on_grpo_matches_turns_by_state() -> None:
    recipe = RECIPES["grpo"].with_settings({"credit.name": "anchor", "credit.omega": 0.5})
    assert recipe.credit == Anchor(omega=0.5)
    assert recipe.credit.keep == {"states"} and not RECIPES["grpo"].credit.keep
    assert recipe.objective == RECIPES["grpo"].objective


def test_gae_credit_on_grpo_requires_a_critic() -> None:
    recipe = RECIPES["grpo"].with_settings({"credit.name": "gae", "critic.lr": 1e-4})
    assert (recipe.credit, recipe.critic) == (Gae(), Critic(lr=1e-4))
    with pytest.raises(ConfigurationError, match=r"credit 'gae' needs a critic; set critic\.lr"):
        RECIPES["grpo"].with_settings({"credit.name": "gae"})


def test_group_credit_on_ppo_works_without_critic() -> None:
    recipe = RECIPES["ppo"].with_settings({"credit.name": "group", "critic": None})
    assert (recipe.credit, recipe.critic) == (Group(), None)
    with pytest.raises(ConfigurationError, match="does not use a critic; set critic=null"):
        RECIPES["ppo"].with_settings({"credit.name": "group"})


def test_sampler_name_keeps_prompts_and_rollouts() -> None:
    recipe = RECIPES["gigpo"].with_settings({"sampler.name": "chains", "sampler.temperature": 0.5})
    assert isinstance(recipe.sampler, Chains)
    assert (recipe.sampler.prompts, recipe.sampler.rollouts, recipe.sampler.temperature) == (16, 8, 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selector.name": "uncertanty"}, "unknown selector 'uncertanty'; did you mean uncertainty?"),
        ({"credit.name": "anchr"}, "unknown credit 'anchr'; did you mean anchor?"),
        ({"sampler.name": "chain"}, "unknown sampler 'chain'; did you mean chains?"),
        ({"objective.terms": ["surgicl"]}, "unknown term 'surgicl'; did you mean surgical?"),
        ({"objective.terms": [{"name": "surgical", "beta": 0}]}, "objective.terms: surgical.beta must be above 0"),
        ({"objective.reference_decay": 2.0}, "objective.reference_decay must be between 0 and 1, but is 2.0."),
        ({"objective.terms.name": "surgical"}, "objective.terms is a list; set objective.terms as a whole"),
        ({"selector.name": 3}, "selector.name must be the name of a part, but is 3."),
        (
            {"selector.name": "arboretum.trainers.algorithms.selectors:Selector"},
            "selector arboretum.trainers.algorithms.selectors:Selector is abstract; it must define select.",
        ),
        ({"objective.terms": "surgical"}, "objective.terms expects a list, as in [name], but is 'surgical'."),
        ({"objective.terms": [{"coef": 1.0}]}, "objective.terms[0] lacks its name; set objective.terms[0].name."),
        ({"selector.name": "dynamic", "selector.amount": 0.5}, "unknown setting 'selector.amount'"),
        ({"credit.name": "no_such_module:Part"}, "no_such_module:Part cannot be imported"),
        ({"selector.name": "collections:OrderedDict"}, "collections:OrderedDict is not a subclass of Selector."),
    ],
)
def test_impossible_part_is_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RECIPES["grpo"].with_settings(settings)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: replace(r, credit="gae"), "grpo: credit must be an instance of Credit, not 'gae'."),
        (lambda r: replace(r, credit=type(r.credit)), "grpo: credit must be an instance of Credit, not <class '"),
        (lambda r: replace(r, selector=None), "grpo: selector must be an instance of Selector, not None."),
        (lambda r: replace(r.sampler, prompts=1.5), "sampler.prompts must be a whole number, not 1.5."),
        (lambda r: replace(r.sampler, rollouts=True), "sampler.rollouts must be a whole number, not True."),
        (lambda r: replace(r.optimization, passes=1.5), "optimization.passes must be a whole number, not 1.5."),
        (lambda r: replace(r.optimization, passes=0), "optimization.passes must be at least 1, but is 0."),
    ],
)
def test_impossible_part_made_in_python_is_rejected(change: Callable[[Recipe], object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        change(RECIPES["grpo"])
    assert str(caught.value).startswith(message)


def test_numbers_of_numpy_are_stored_as_plain_numbers() -> None:
    grpo = RECIPES["grpo"]
    sampler = replace(grpo.sampler, prompts=np.int64(3), temperature=np.float32(0.5))
    recipe = replace(grpo, sampler=sampler, optimization=replace(grpo.optimization, episodes_per_step=None))
    assert reload(recipe) == recipe


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("\n\nPart = undefined\n", "NameError: name 'undefined' is not defined (broken_parts.py, line 3)."),
        ("def part(:\n", "SyntaxError: invalid syntax (broken_parts.py, line 1)."),
    ],
)
def test_module_that_fails_while_it_is_imported_is_named_with_the_line(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_parts.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        RECIPES["grpo"].with_settings({"credit.name": "broken_parts:Part"})
    assert str(caught.value) == f"broken_parts:Part cannot be imported: {reason}"


def test_terms_are_set_by_name_or_with_settings() -> None:
    by_name = RECIPES["dapo"].with_settings({"objective.terms": ["surgical"]})
    assert by_name.objective.terms == (Surgical(beta=0.1, weight=0.15, length_normalized=False),)
    assert by_name.needs_reference and not by_name.needs_token_reference
    changed = RECIPES["dapo"].with_settings({"objective.terms": [{"name": "surgical", "weight": 0.3}]})
    assert changed.objective.pair_terms == (Surgical(weight=0.3),) and changed.objective.token_terms == ()
    assert reload(changed) == changed


# ---------------------------------------------------------------------- parts of plug-ins


def test_name_in_the_place_of_a_part_is_the_same_as_its_name() -> None:
    starpo = RECIPES["starpo"]
    assert starpo.with_settings({"sampler": "chains"}) == starpo
    changes = {"selector": "uncertainty"}
    assert starpo.with_settings(changes) == starpo.with_settings({"selector.name": "uncertainty"})


def test_plugin_part_without_a_name_is_rejected(plugin: str, tmp_path: Path) -> None:
    parts = SOURCE.partition("RECIPE =")[0].replace('    name: ClassVar[str] = "constant"\n', "")
    (tmp_path / "nameless_parts.py").write_text(parts)
    with pytest.raises(ConfigurationError, match=r"Constant must define the class attribute `name`"):
        RECIPES["grpo"].with_settings({"credit.name": "nameless_parts:Constant"})
    sys.modules.pop("nameless_parts", None)


def test_plugin_credit_is_found_by_path(plugin: str) -> None:
    recipe = RECIPES["grpo"].with_settings({"credit.name": f"{plugin}:Constant", "credit.value": 3})
    assert recipe.credit.assign(chain_rollouts([[0.0]] * 2, range(2))).advantages.tolist() == [3.0] * 4


def test_plugin_selector_is_found_by_path(plugin: str) -> None:
    recipe = RECIPES["grpo"].with_settings({"selector": {"name": f"{plugin}:First", "count": 2}})
    assert recipe.selector.select(chain_rollouts([[0.0]] * 3, range(3))).groups == (0, 1)
    with pytest.raises(ConfigurationError, match=r"selector\.count is 'two'; expected a whole number"):
        RECIPES["grpo"].with_settings({"selector.name": f"{plugin}:First", "selector.count": "two"})


def test_trees_keep_the_settings_that_they_share_with_chains() -> None:
    recipe = RECIPES["gigpo"].with_settings({"sampler.name": "trees", "sampler.rounds": 2})
    assert recipe.sampler == Trees(prompts=16, reply_tokens=512, format_penalty=0.0, rounds=2)
    assert recipe.sampler.rollouts == 2 * (2 * 2 + 1)


def test_plugin_sampler_keeps_the_settings_that_it_shares_with_the_old_one(plugin: str) -> None:
    recipe = RECIPES["gigpo"].with_settings({"sampler.name": f"{plugin}:Pairs", "sampler.prompts": 32})
    assert type(recipe.sampler).__name__ == "Pairs"
    assert asdict(recipe.sampler) == {**asdict(RECIPES["gigpo"].sampler), "prompts": 32, "margin": 0.5}


def test_plugin_term_is_added_to_the_loss_and_the_metrics(plugin: str) -> None:
    torch = pytest.importorskip("torch")
    from arboretum.trainers.algorithms.objectives.loss import policy_loss, reduce_metrics
    from arboretum.trainers.algorithms.objectives.tokens import Tokens

    dapo, path = RECIPES["dapo"], f"{plugin}:Push"
    one_term = dapo.with_settings({"objective.terms": [path]})
    two_terms = dapo.with_settings({"objective.terms": [path, {"name": path, "coef": 2.0}]})
    logp = torch.tensor([-1.0, -3.0], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([0.5, 0.5], dtype=torch.float64)
    tokens = Tokens(logp, torch.tensor([1.0, -1.0]).double(), weights, torch.tensor([0, 0]))
    base, base_sums = policy_loss(dapo.objective, tokens)
    loss, sums = policy_loss(one_term.objective, tokens)
    assert (loss - base).item() == pytest.approx(0.5 * 2.0)  # The mean of -logp is 2.
    assert (policy_loss(two_terms.objective, tokens)[0] - base).item() == pytest.approx(2.5 * 2.0)
    (gradient,) = torch.autograd.grad(loss - base, logp)
    assert gradient.tolist() == pytest.approx([-0.25, -0.25])
    assert reduce_metrics([sums])["term/push"] == pytest.approx(1.0)
    assert "term/push" not in reduce_metrics([base_sums])


def test_plugin_term_declares_its_need_of_a_reference_policy(plugin: str) -> None:
    assert not RECIPES["dapo"].needs_reference
    assert RECIPES["dapo"].with_settings({"objective.terms": [f"{plugin}:Push"]}).needs_reference


def test_plugin_recipe_is_found_by_path(plugin: str) -> None:
    recipe = get_recipe(f"{plugin}:RECIPE")
    assert (recipe.name, recipe.sampler) == ("constant", Chains())
    with pytest.raises(ConfigurationError, match=f"{plugin}:First is not an instance of Recipe"):
        get_recipe(f"{plugin}:First")


# ---------------------------------------------------------------------- storage


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_read_back_from_json_is_equal(name: str) -> None:
    assert reload(RECIPES[name]) == RECIPES[name]


def test_recipe_with_plugin_parts_read_back_from_json_is_equal(plugin: str) -> None:
    changes = {"objective.terms": [{"name": f"{plugin}:Push", "coef": 0.25}], "sampler.name": f"{plugin}:Pairs"}
    recipe = get_recipe(f"{plugin}:RECIPE").with_settings(changes)
    plain = to_plain(recipe)
    assert plain["credit"] == {"name": f"{plugin}:Constant", "value": 2.0}
    assert plain["objective"]["terms"] == [{"name": f"{plugin}:Push", "coef": 0.25}]
    assert plain["sampler"]["name"] == f"{plugin}:Pairs"
    assert reload(recipe) == recipe
