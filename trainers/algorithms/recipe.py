"""The parts of an algorithm and how they fit together: what a row of the table in `recipes` is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_type_hints

from ...envs.checks import at_least, described, fits, fraction, one_of, positive
from ...envs.errors import ConfigurationError, unknown_name
from .credit.anchor import Anchor
from .credit.base import Credit
from .objectives.settings import Objective, Overlong
from .schedules import Linear
from .selectors import All, Selector, Uncertainty


@dataclass(frozen=True)
class Chains:
    """P prompts × N independent rollouts; sizes default to RAGEN's (arXiv:2504.20073).

    Attributes:
        prompts: P, starts an update.
        rollouts: N, episodes from each start.
        temperature: of sampling; fixed, or a line over the run.
        top_p: nucleus sampling; 1 is off. Below 1 the policy that is trained is not the one that samples, which
            the metrics of mismatch show, and objective.mismatch can correct.
        reply_tokens: longest reply, in tokens.
        max_turns, max_actions_per_turn, max_actions: budgets of the dialogue; None leaves its own.
        format_penalty: the dialogue's penalty for a malformed turn or a refused action; None leaves its own.
        think: whether replies reason before they act; None leaves the dialogue as it is.
    """

    prompts: int = 8
    rollouts: int = 16
    temperature: float | Linear = 1.0
    top_p: float = 1.0
    reply_tokens: int = 400
    max_turns: int | None = None
    max_actions_per_turn: int | None = None
    max_actions: int | None = None
    format_penalty: float | None = None
    think: bool | None = None

    def __post_init__(self) -> None:
        for name in ("prompts", "rollouts", "reply_tokens", "max_turns", "max_actions_per_turn", "max_actions"):
            at_least(f"sampler.{name}", getattr(self, name), 1)
        line = self.temperature if isinstance(self.temperature, Linear) else Linear(*(self.temperature,) * 2)
        if not min(line.start, line.end) > 0:
            raise ConfigurationError(
                "sampler.temperature must be above 0: without chance there is nothing to learn."
            )
        fraction("sampler.top_p", self.top_p)
        positive("sampler.top_p", self.top_p)
        if self.format_penalty is not None and self.format_penalty > 0:
            raise ConfigurationError(f"sampler.format_penalty must not be positive, but is {self.format_penalty}.")


@dataclass(frozen=True)
class Critic:
    """A value model beside the policy; the defaults are verl's.

    Attributes:
        lr: its learning rate.
        clip: of its loss, see `value.value_losses`; None is off.
        coef: weight of its loss where it shares the policy's optimizer.
        warmup: updates in which it learns alone.
    """

    lr: float = 1e-5
    clip: float | None = 0.5
    coef: float = 1.0
    warmup: int = 0

    def __post_init__(self) -> None:
        positive("critic.lr", self.lr)
        positive("critic.coef", self.coef)
        at_least("critic.warmup", self.warmup, 0)
        if self.clip is not None:
            positive("critic.clip", self.clip)


@dataclass(frozen=True)
class Optimisation:
    """How updates are made; the defaults are verl's, 200 updates RAGEN's.

    Attributes:
        updates: generation batches in the whole run.
        lr: the policy's learning rate.
        betas, weight_decay: of AdamW.
        schedule: what the learning rate does after `warmup` updates of linear growth.
        warmup: see above.
        max_grad_norm: gradients are scaled down to this norm.
        episodes_per_step: episodes in one optimizer batch; None for all.
        passes: k of RAGEN's Online-k: how often one batch of rollouts is learnt from before it is thrown away.
    """

    updates: int = 200
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 0
    max_grad_norm: float = 1.0
    episodes_per_step: int | None = None
    passes: int = 1

    def __post_init__(self) -> None:
        positive("optimisation.lr", self.lr)
        positive("optimisation.max_grad_norm", self.max_grad_norm)
        one_of("optimisation.schedule", self.schedule, ("constant", "linear", "cosine"))
        for name, bound in (
            ("updates", 1),
            ("passes", 1),
            ("episodes_per_step", 1),
            ("warmup", 0),
            ("weight_decay", 0),
        ):
            at_least(f"optimisation.{name}", getattr(self, name), bound)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigurationError(f"optimisation.betas must lie in [0, 1), but are {self.betas}.")


@dataclass(frozen=True)
class Recipe:
    """An algorithm. One that cannot work does not come into being: the constructor says why.

    Attributes:
        name: how the command line calls it.
        about: what it is, in a sentence, and the paper.
        credit: what each token's advantage is.
        objective: which loss.
        sampler: which episodes to roll out.
        selector: which groups to learn from.
        critic: the value model, if any.
        overlong: what becomes of episodes that are too long.
        optimisation: how updates are made.
    """

    name: str
    about: str
    credit: Credit
    objective: Objective = field(default_factory=Objective)
    sampler: Chains = field(default_factory=Chains)
    selector: Selector = field(default_factory=All)
    critic: Critic | None = None
    overlong: Overlong = field(default_factory=Overlong)
    optimisation: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        n = self.sampler.rollouts
        credit = f"{self.name}: credit {self.credit.name!r}"
        if self.credit.needs_groups and n < 2:
            raise ConfigurationError(
                f"{credit} compares rollouts of one start, but sampler.rollouts is {n}; set it to 2 or more, or "
                "take a recipe with another credit, such as ppo."
            )
        if self.selector.needs_groups and n < 2:
            raise ConfigurationError(
                f"{self.name}: selector {self.selector.name!r} looks at differences within a group, but "
                f"sampler.rollouts is {n}; set it to 2 or more, or take a recipe "
                "that learns from all groups, such as grpo."
            )
        if self.credit.needs_critic and self.critic is None:
            raise ConfigurationError(f"{credit} needs a critic; set critic, or take another credit.")
        if self.critic is not None and not self.credit.needs_critic:
            raise ConfigurationError(f"{credit} would never look at the critic; set critic to None.")
        batch = self.sampler.prompts * n
        if (self.optimisation.episodes_per_step or 1) > batch:
            raise ConfigurationError(
                f"{self.name}: optimisation.episodes_per_step is {self.optimisation.episodes_per_step}, but an "
                f"update has only {self.sampler.prompts} prompts × {n} rollouts = {batch} episodes."
            )
        if isinstance(self.selector, Uncertainty) and self.selector.rule == "count":
            wanted, there = self.selector.amount, self.sampler.prompts
            if wanted > there:
                raise ConfigurationError(f"{self.name}: selector.amount = {wanted:g} groups, of {there} prompts.")

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen reference policy is kept."""
        return self.objective.kl.coef > 0

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss itself needs entropies (they are logged in any case)."""
        return self.objective.entropy_coef != 0

    @property
    def anchor(self) -> Literal["state", "observation"] | None:
        """What turns are matched by; with "state", play with `keep_states=True`."""
        return self.credit.anchor if isinstance(self.credit, Anchor) else None

    def changed(self, settings: Mapping[str, object]) -> Recipe:
        """With other settings, named by their path.

            >>> RECIPES["grpo"].changed({"sampler.rollouts": 4, "objective.kl.coef": 0.0})

        Raises:
            ConfigurationError: no such setting, or the result cannot work.
        """
        tree = _Branch()
        for path, value in settings.items():
            *parents, leaf = path.split(".")
            branch = tree
            for name in parents:
                branch = branch.setdefault(name, _Branch())
                if not isinstance(branch, _Branch):
                    raise ConfigurationError(f"{path} is set beside the whole of {name}; set one or the other.")
            branch[leaf] = value
        recipe: Recipe = _with(self, tree, "")
        return recipe


class _Branch(dict[str, Any]):
    """Settings below one part of a recipe."""


def _with(part: Any, changes: _Branch, path: str) -> Any:
    """A part of a recipe with other settings; those of one part change together."""
    if not is_dataclass(part) or isinstance(part, type):
        raise ConfigurationError(f"{path} is {part!r}, which has no settings below it; set {path} as a whole.")
    known = [setting.name for setting in fields(part)]
    kinds = get_type_hints(type(part))
    values = {}
    for name, value in changes.items():
        here = f"{path}.{name}" if path else name
        if name not in known:
            raise unknown_name("setting", here, [f"{path}.{other}" if path else other for other in known])
        if isinstance(value, _Branch):
            value = _with(getattr(part, name), value, here)
        if not fits(value, kinds[name]):
            raise ConfigurationError(f"{here} takes {described(kinds[name])}, not {value!r}.")
        values[name] = value
    return replace(part, **values)


def check_context(context: int | None, prompt_tokens: int, reply_tokens: int) -> None:
    """Raise unless the first prompt and a reply fit into the model's context.

    Args:
        context: longest sequence that the model takes, in tokens; None where there is no limit.
        prompt_tokens: of the longest first prompt seen.
        reply_tokens: longest reply asked for.

    Raises:
        ConfigurationError: they do not fit.
    """
    if context is not None and prompt_tokens + reply_tokens > context:
        raise ConfigurationError(
            f"a prompt of {prompt_tokens} tokens and a reply of up to {reply_tokens} do not fit into the model's "
            f"context of {context}; lower sampler.reply_tokens, shorten the prompt, or take another model."
        )
