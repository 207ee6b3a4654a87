"""Arms of the laboratory: what is sampled and which credit rule assigns the advantages, everything else equal."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ...envs.errors import ConfigurationError, unknown_name
from ...envs.user_code import is_ours
from ..algorithms.credit.anchor import Anchor
from ..algorithms.credit.base import Credit
from ..algorithms.credit.cognitive_credit import Cognitive
from ..algorithms.credit.gae import Gae
from ..algorithms.credit.group import Group
from ..algorithms.credit.grove_credit import Grove
from ..algorithms.credit.tree import TreeCredit
from ..algorithms.objectives.surgical import Surgical
from ..algorithms.registry import CREDITS, part_class
from ..algorithms.samplers import Chains, Sampler, Trees

CHAINS = Chains(rollouts=8)
"""Eight chains per task: the sampler of most arms."""
TREES = Trees(trees=4, expansions=2, rounds=1)
"""Four trees of three leaves, which cost as many steps as eight chains."""

Exact = Literal["none", "value", "advantage"]


@dataclass(frozen=True)
class Arm:
    """Arm of a comparison.

    Attributes:
        about: Description in one line.
        credit: Credit rule.
        sampler: Episodes per task and update.
        discount: Factor γ per step by which rewards are discounted from the start, before credit is assigned: an
            episode of T steps is worth γ^(T - 1) · R.
        surgical: Preference loss at divergences; None for none.
        exact: Advantages of `credit` ("none"), or in their place the return minus the exact value of the state and
            step ("value"), or the exact advantage of each action ("advantage").
        critic_rate: Fraction of the error that a tabular critic corrects per update.
        sees_plans: The credit rule tells states apart by the plan that the policy follows, where tasks have plans.
        baseline: Arm that this one is compared with; itself for GRPO with a number of chains. With steps of fixed
            divergence only arms with equally many updates compare.
    """

    about: str
    credit: Credit
    sampler: Sampler = CHAINS
    discount: float = 1.0
    surgical: Surgical | None = None
    exact: Exact = "none"
    critic_rate: float = 0.3
    sees_plans: bool = False
    baseline: str = "grpo"


def _t_star(**settings: Any) -> Cognitive:
    """Return T-STAR's credit, by default for states that a key identifies; see the recipe `t_star`."""
    return Cognitive(**{"equivalence": "state", "identity": "state", "gamma": 0.99, **settings})


def _tree(about: str, sampler: Trees = TREES, *, baseline: str = "grpo", **settings: Any) -> Arm:
    return Arm(about, TreeCredit(**settings), sampler, baseline=baseline)


GRPO = Group(scale="group")

ARMS: Mapping[str, Arm] = {
    "grpo": Arm("GRPO, eight chains", GRPO),
    "dr-grpo": Arm("GRPO without division by the standard deviation", Group(scale="none")),
    "grpo-discounted": Arm("GRPO on returns discounted by .95 per step, without step credit", GRPO, discount=0.95),
    "gigpo": Arm("GiGPO, γ .95, divided by the standard deviation", Anchor(gamma=0.95, scale="group")),
    "gigpo-gamma1": Arm("GiGPO, γ 1, divided by the standard deviation", Anchor(gamma=1.0, scale="group")),
    "gigpo-unscaled": Arm("GiGPO, γ .95, F = 1", Anchor(gamma=0.95, scale="none")),
    "tree": _tree("Tree-GRPO, M 4, N 2, L 1"),
    "tree-2-6-1": _tree("Tree-GRPO, M 2, N 6, L 1", Trees(trees=2, expansions=6, rounds=1)),
    "tree-2-2-3": _tree("Tree-GRPO, M 2, N 2, L 3", Trees(trees=2, expansions=2, rounds=3)),
    "tree-mean": _tree("Tree-GRPO, shared steps of k leaves weighted 1/k", prefix_weighting="mean"),
    "tree-once": _tree("Tree-GRPO, shared steps by their first leaf only", prefix_weighting="once"),
    "tree-inter": _tree("Tree-GRPO, inter-tree advantages only", estimator="inter"),
    "tree-intra": _tree("Tree-GRPO, intra-tree advantages only", estimator="intra"),
    "t-star": Arm("T-STAR, γ .99, layered, surgical loss", _t_star(), surgical=Surgical()),
    "t-star-plan": Arm(
        "T-STAR, γ .99, states of different plans kept apart", _t_star(), surgical=Surgical(), sees_plans=True
    ),
    "t-star-plain": Arm("T-STAR, γ .99, without surgical loss", _t_star()),
    "t-star-gamma1": Arm("T-STAR, γ 1, with surgical loss", _t_star(gamma=1.0), surgical=Surgical()),
    "t-star-gamma1-plain": Arm("T-STAR, γ 1, without surgical loss", _t_star(gamma=1.0)),
    "t-star-policy": Arm(
        "T-STAR, γ 1, merges states in which the policy acts alike (ε .25), without surgical loss",
        _t_star(gamma=1.0, equivalence="policy"),
    ),
    "t-star-prefix": Arm(
        "T-STAR, γ 1, merges below equal parents only, without surgical loss",
        _t_star(gamma=1.0, merging="prefix"),
    ),
    "t-star-unmerged": Arm(
        "T-STAR, γ 1, without merging, with surgical loss",
        _t_star(gamma=1.0, merging="none"),
        surgical=Surgical(),
    ),
    "ppo": Arm("PPO with a tabular critic, λ .95", Gae(gamma=1.0, lam=0.95)),
    "ppo-unwhitened": Arm("The same without whitening", Gae(gamma=1.0, lam=0.95, whiten=False)),
    "grove": Arm("GROVE, γ 1", Grove()),
    "grove-discounted": Arm("GROVE, γ .95", Grove(gamma=0.95)),
    "grove-step": Arm("GROVE, γ 1, states pooled at equal steps only", Grove(key="step_state")),
    "grove-plan": Arm("GROVE, γ 1, states of different plans kept apart", Grove(), sees_plans=True),
    "exact-value": Arm("Return minus the exact value of state and step", GRPO, exact="value"),
    "exact": Arm("Exact advantages: the head-room of credit", GRPO, exact="advantage"),
    "grpo-4": Arm("GRPO, four chains", GRPO, Chains(rollouts=4), baseline="grpo-4"),
    "tree-4": _tree("Tree-GRPO at a budget of four chains: M 2, N 2, L 1", Trees(trees=2), baseline="grpo-4"),
    "grpo-2": Arm("GRPO, two chains", GRPO, Chains(rollouts=2), baseline="grpo-2"),
    "tree-2": _tree("Tree-GRPO at a budget of two chains: M 1, N 2, L 1", Trees(trees=1), baseline="grpo-2"),
}
"""Arms by name. Further registered credits are arms of their own names; see `get_arm`."""


def get_arm(name: str) -> Arm:
    """Return an arm by its name, or the arm of a registered credit with its default settings.

    Raises:
        ConfigurationError: No such arm or credit.
    """
    if name in ARMS:
        return ARMS[name]
    try:
        credit_class: type[Credit] = part_class(Credit, name)  # type: ignore[type-abstract]
    except ConfigurationError:
        if ":" in name:  # A path of a class, which the error is about.
            raise
        raise unknown_name("arm of the laboratory", name, arm_names()) from None
    if not is_ours(credit_class):
        _module_digest(credit_class)  # of the file as it was imported; it may be edited later
    credit = credit_class()
    return Arm(f"credit {name!r} with its defaults", credit, TREES if credit.needs_trees else CHAINS)


def rule_digest(name: str) -> str:
    """Return a digest of the module of a credit rule of another package; empty for every other arm.

    It is that of the file when this process imported it.
    """
    try:
        credit = type(get_arm(name).credit)
    except ConfigurationError:
        return ""
    return "" if is_ours(credit) else _module_digest(credit)


@cache
def _module_digest(credit: type[Credit]) -> str:
    try:
        return hashlib.sha256(Path(inspect.getsourcefile(credit) or "").read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""


def arm_names() -> list[str]:
    """Return the names of all arms: those of the table, then the registered credits that no arm of it has."""
    used = {type(arm.credit) for arm in ARMS.values()}
    return [*ARMS, *(name for name, credit in CREDITS.items() if credit not in used)]
