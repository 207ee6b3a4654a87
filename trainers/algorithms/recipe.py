"""Recipes: algorithms made of a sampler, a selector, a credit and an objective, with their hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...envs.checks import at_least, integer_at_least, one_of, positive
from ...envs.errors import ConfigurationError
from .credit.base import Credit
from .grafting import Grafting
from .objectives.settings import Objective, Overlong
from .overrides import apply_overrides
from .rewards import Rewards
from .samplers import Chains, Sampler
from .schedules import Linear
from .selectors import All, Selector, Uncertainty


@dataclass(frozen=True)
class Critic:
    """Value model beside the policy; the defaults are verl's.

    Attributes:
        lr: Learning rate.
        clip: Range around the old value outside which the value loss has no gradient; None turns clipping off.
        coef: Coefficient of the value loss.
        warmup: First updates in which only the critic is trained.
    """

    lr: float = 1e-5
    clip: float | None = 0.5
    coef: float = 1.0
    warmup: int = 0

    def __post_init__(self) -> None:
        positive("critic.lr", self.lr)
        positive("critic.coef", self.coef)
        integer_at_least("critic.warmup", self.warmup, 0)
        if self.clip is not None:
            positive("critic.clip", self.clip)


@dataclass(frozen=True)
class Optimization:
    """Optimizer of the policy; the defaults are verl's, the number of updates RAGEN's.

    Attributes:
        updates: Updates in the whole run, each with new rollouts.
        max_tokens: Generated tokens after which the run ends, with the update in progress, even if `updates` are
            not reached; None for no limit. Recipes that generate different amounts per update can so be compared
            at equal amounts. Thoughts and actions that T-STAR samples beside its episodes are not counted.
        lr: Learning rate of the policy.
        betas: Exponential decay rates of AdamW's moments.
        weight_decay: Weight decay of AdamW.
        schedule: Learning-rate schedule after the warm-up.
        warmup: First updates, over which the learning rate rises linearly.
        max_grad_norm: Norm to which gradients are clipped.
        episodes_per_step: Episodes per optimizer step; None takes one step per pass.
        passes: Passes over the rollouts of an update (k of RAGEN's Online-k).
    """

    updates: int = 200
    max_tokens: int | None = None
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 0
    max_grad_norm: float = 1.0
    episodes_per_step: int | None = None
    passes: int = 1

    def __post_init__(self) -> None:
        positive("optimization.lr", self.lr)
        positive("optimization.max_grad_norm", self.max_grad_norm)
        one_of("optimization.schedule", self.schedule, ("constant", "linear", "cosine"))
        for name, bound in (
            ("updates", 1),
            ("max_tokens", 1),
            ("passes", 1),
            ("episodes_per_step", 1),
            ("warmup", 0),
        ):
            integer_at_least(f"optimization.{name}", getattr(self, name), bound)
        at_least("optimization.weight_decay", self.weight_decay, 0)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigurationError(f"optimization.betas must lie in [0, 1), but are {self.betas}.")
        if self.max_tokens is not None and self.schedule != "constant":
            raise ConfigurationError(
                f"optimization.schedule is {self.schedule!r}, which needs to know the last update, but "
                "optimization.max_tokens ends the run before; set one of them to its default (constant; null)."
            )

    def is_complete(self, updates: int, tokens: float) -> bool:
        """Return True if all updates of a run are made, or its limit of generated tokens is reached.

        Args:
            updates: Updates made.
            tokens: Tokens generated.
        """
        return updates >= self.updates or (self.max_tokens is not None and tokens >= self.max_tokens)


_KINDS: Mapping[str, type] = {
    "credit": Credit,
    "objective": Objective,
    "sampler": Sampler,
    "selector": Selector,
    "rewards": Rewards,
    "overlong": Overlong,
    "grafting": Grafting,
    "optimization": Optimization,
}


@dataclass(frozen=True)
class Recipe:
    """Algorithm. The constructor rejects combinations of parts that cannot work.

    Attributes:
        name: Name on the command line.
        about: Description in one sentence, with the paper.
        credit: Rule that assigns an advantage to each token.
        objective: Loss.
        sampler: Episodes to roll out.
        selector: Groups to train on.
        rewards: Rewards of training, made of the environment's.
        critic: Value model; None for credits without one.
        overlong: Treatment of episodes that are too long.
        grafting: Source of the pairs for terms of the objective on preference pairs.
        optimization: Optimizer of the policy.
    """

    name: str
    about: str
    credit: Credit
    objective: Objective = field(default_factory=Objective)
    sampler: Sampler = field(default_factory=Chains)
    selector: Selector = field(default_factory=All)
    rewards: Rewards = field(default_factory=Rewards)
    critic: Critic | None = None
    overlong: Overlong = field(default_factory=Overlong)
    grafting: Grafting = field(default_factory=Grafting)
    optimization: Optimization = field(default_factory=Optimization)

    def __post_init__(self) -> None:
        for part, kind in _KINDS.items():
            if not isinstance(value := getattr(self, part), kind):
                raise ConfigurationError(
                    f"{self.name}: {part} must be an instance of {kind.__name__}, not {value!r:.80}."
                )
        n, size = self.sampler.rollouts, self.sampler.size_setting
        credit = f"{self.name}: credit {self.credit.name!r}"
        if self.credit.needs_groups and n < 2:
            raise ConfigurationError(
                f"{credit} compares episodes of one prompt, but {size} is {n}; set it to 2 or more, or choose a "
                "recipe with another credit, such as ppo."
            )
        if self.credit.needs_trees and self.sampler.episodes_per_tree < 2:
            raise ConfigurationError(
                f"{credit} compares episodes of one tree, but a tree of {self.sampler.name!r} has one; set "
                "sampler.name=trees with 2 or more sampler.leaves, or choose another credit.estimator."
            )
        if self.selector.needs_groups and n < 2:
            raise ConfigurationError(
                f"{self.name}: selector {self.selector.name!r} compares episodes of one prompt, but {size} is "
                f"{n}; set it to 2 or more, or choose a recipe that trains on all groups, such as grpo."
            )
        if self.rewards.needs_groups and n < 2:
            raise ConfigurationError(
                f"{self.name}: rewards.normalize compares episodes of one prompt, but {size} is {n}; set it to "
                '2 or more, or set rewards.over = "batch".'
            )
        if self.credit.needs_turn_rewards and self.rewards.normalize != "none":
            raise ConfigurationError(
                f"{credit} reads the reward of each turn, but rewards.normalize, which is "
                f"{self.rewards.normalize!r}, moves all rewards to the last turn; set it to "
                '"none".'
            )
        if self.credit.needs_critic and self.critic is None:
            raise ConfigurationError(f"{credit} needs a critic; set critic.lr, or choose another credit.")
        if self.critic is not None and not self.credit.needs_critic:
            raise ConfigurationError(f"{credit} does not use a critic; set critic=null.")
        if self.critic is not None and self.critic.warmup >= self.optimization.updates:
            raise ConfigurationError(
                f"{self.name}: critic.warmup is {self.critic.warmup}, but the run has only "
                f"{self.optimization.updates} updates, so the policy would never be trained; lower it, or raise "
                "optimization.updates."
            )
        episodes = self.sampler.prompts * n
        if (self.optimization.episodes_per_step or 1) > episodes:
            raise ConfigurationError(
                f"{self.name}: optimization.episodes_per_step is {self.optimization.episodes_per_step}, but an "
                f"update has only {self.sampler.prompts} prompts × {n} rollouts = {episodes} episodes; lower it, "
                "or set it to null for one step per update."
            )
        if self.optimization.max_tokens is not None and isinstance(self.sampler.temperature, Linear):
            raise ConfigurationError(
                f"{self.name}: sampler.temperature changes until the last update, but optimization.max_tokens "
                "ends the run before; set a constant temperature, or optimization.max_tokens=null."
            )
        selector, prompts = self.selector, self.sampler.prompts
        if isinstance(selector, Uncertainty) and selector.rule == "count" and selector.amount > prompts:
            raise ConfigurationError(
                f"{self.name}: selector.amount is {selector.amount:g} groups, but an update has only {prompts} "
                "prompts."
            )

    @property
    def needs_reference(self) -> bool:
        """True if the objective compares with a reference policy."""
        return self.needs_token_reference or any(term.needs_reference for term in self.objective.pair_terms)

    @property
    def needs_token_reference(self) -> bool:
        """True if the objective compares the tokens of the rollouts with a reference policy."""
        return self.objective.kl.coef > 0 or any(term.needs_reference for term in self.objective.token_terms)

    @property
    def needs_entropy(self) -> bool:
        """True if the loss differentiates entropies (they are logged in any case)."""
        return self.objective.entropy_coef != 0 or any(term.needs_entropy for term in self.objective.terms)

    def with_settings(self, settings: Mapping[str, object]) -> Recipe:
        """Return the recipe with other settings, given by path; see `apply_overrides`.

            >>> recipe = get_recipe("grpo").with_settings({"sampler.rollouts": 4, "objective.kl.coef": 0.0})
            >>> recipe.sampler.rollouts
            4

        Raises:
            ConfigurationError: Unknown setting, or a combination that cannot work.
        """
        return apply_overrides(self, settings)
