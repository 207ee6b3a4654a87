"""Selection of the groups to train on.

Relative advantages are 0 in a group whose episodes all have the same return. Selectors drop such groups (DAPO),
or keep only the groups of most uncertain outcome (StarPO-S, RAGEN-2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from ...envs.checks import at_least, fraction, integer_at_least, one_of
from ...envs.errors import ConfigurationError
from ...envs.user_code import wrong_result
from ..data.rollouts import Rollouts
from ..data.segments import FloatArray, group_statistics, nearly_equal
from .part_failures import part_failures

Rule = Literal["fraction", "count", "top-p", "top-p-softmax", "min-p"]
Rescale = Literal["none", "linear", "sqrt"]


class Selection(NamedTuple):
    """Result of a selector.

    Attributes:
        groups: Indices of the selected groups, ascending; may be empty.
        scale: Factor on the advantages.
    """

    groups: tuple[int, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class Selector(ABC):
    """Rule that selects groups of rollouts.

    Class attributes:
        name: Name of the rule, in `selector.name`.
        needs_groups: True if the rule compares episodes of one prompt.
    """

    name: ClassVar[str]
    needs_groups: ClassVar[bool] = True

    @abstractmethod
    def select(self, rollouts: Rollouts) -> Selection:
        """Return the groups of one generation batch to train on."""

    def refill(self, needed: int) -> Refill[tuple[int, int]]:
        """Return the initial state of an update's batch, to which generation batches are added.

        The default takes a single generation batch and keeps every selected group.

        Args:
            needed: Number of groups in a full batch.
        """
        return Refill(needed, max_batches=1, cut=False)


@dataclass(frozen=True)
class All(Selector):
    """Selector of all groups."""

    name: ClassVar[str] = "all"
    needs_groups: ClassVar[bool] = False

    def select(self, rollouts: Rollouts) -> Selection:
        return Selection(tuple(range(rollouts.groups)))


def select_by_env(selector: Selector, rollouts: Rollouts) -> Selection:
    """Apply a selector to the groups of each environment on their own; see `Rollouts.episode_env`.

    Returns of different environments have different scales, so groups of one would displace those of another.

    Returns:
        The groups of all environments; the scale is the mean over the groups of their environments' scales.

    Raises:
        PartFailed: The selector failed, or selected a group that there is not, or one twice.
    """
    if rollouts.episode_env is None:
        return _select(selector, rollouts)
    envs = rollouts.group_env
    chosen: list[int] = []
    scale = 0.0
    for env in np.unique(envs):
        members = np.flatnonzero(envs == env)
        found = _select(selector, rollouts.select(members))
        chosen += members[list(found.groups)].tolist()
        scale += found.scale * len(members) / len(envs)
    return Selection(tuple(sorted(chosen)), scale)


def _select(selector: Selector, rollouts: Rollouts) -> Selection:
    with part_failures("selector", selector):
        found: Any = selector.select(rollouts)
        if not isinstance(found, Selection):
            raise wrong_result(selector.select, "a Selection", found)
        groups = list(found.groups)
        if groups != sorted(set(groups)) or any(not 0 <= group < rollouts.groups for group in groups):
            expected = f"different groups from 0 to {rollouts.groups - 1} in ascending order"
            raise wrong_result(selector.select, expected, found.groups)
    return found


# ---------------------------------------------------------------------- uncertainty


def most_uncertain(
    scores: FloatArray,
    rule: Rule = "fraction",
    amount: float = 0.25,
    *,
    include_zero: bool = True,
    smallest: bool = False,
    eps: float = 0.01,
) -> tuple[int, ...]:
    """Return the groups of most uncertain outcome.

    * "fraction": the fraction `amount` of all groups with the largest scores, rounded down, at least one
      (StarPO-S, arXiv:2504.20073, eq. 7).
    * "count": the `amount` groups with the largest scores.
    * "top-p": the fewest groups, in descending order, whose scores sum to at least `amount` · total - `eps`;
      none if that threshold is not positive, all for `amount` = 1 (RAGEN-2).
    * "top-p-softmax": the same with the softmax of the scores, without `eps`; at least one.
    * "min-p": groups whose score is at least `amount` times the largest.

    Args:
        scores: Standard deviation of the returns in each group, shape [G].
        rule: Rule of selection, see above.
        amount: Parameter of the rule, see above.
        include_zero: Allow groups with a score of 0 (at most 1e-10).
        smallest: Prefer the smallest scores instead of the largest.
        eps: Tolerance of "top-p".

    Returns:
        Indices, ascending. Among scores that are equal up to rounding errors, the lower index is preferred.
    """
    ranks = np.round(scores, 10)
    candidates = [i for i in range(len(scores)) if include_zero or abs(scores[i]) > 1e-10]
    candidates.sort(key=lambda i: ranks[i] if smallest else -ranks[i])  # stable
    if not candidates or (rule == "top-p" and amount >= 1.0):
        return tuple(sorted(candidates))
    if rule == "fraction":
        # The small addend compensates for rounding, so that 0.29 · 100 is 29.
        kept = candidates[: max(1, int(amount * len(scores) + 1e-9))]
    elif rule == "count":
        kept = candidates[: int(amount)]
    elif rule == "min-p":
        bound = amount * max(scores[i] for i in candidates)
        kept = [i for i in candidates if scores[i] >= bound]
    else:
        mass = np.array([scores[i] for i in candidates], dtype=np.float64)
        threshold = amount * mass.sum() - eps
        if rule == "top-p-softmax":
            mass = np.exp(mass - mass.max())
            mass /= mass.sum()
            threshold = amount - 1e-12
        elif threshold <= 0.0:
            return ()
        reached = np.flatnonzero(np.cumsum(mass) >= threshold)
        enough = int(reached[0]) + 1 if len(reached) else len(candidates)
        kept = candidates[:enough]
    return tuple(sorted(kept))


@dataclass(frozen=True)
class Uncertainty(Selector):
    """Selector of the groups whose returns differ most.

    Attributes:
        rule: Rule on the standard deviations of returns: "fraction" or "count" of groups with the largest ones;
            "top-p" for the fewest groups that hold a fraction of their sum, "top-p-softmax" the same with their
            softmax; "min-p" for groups above a fraction of the largest one.
        amount: Fraction, or number of groups for "count".
        include_zero: Allow groups whose returns are all equal.
        smallest: Prefer the smallest deviations instead of the largest.
        eps: Tolerance of "top-p".
        penalties: Include penalties in the returns, as in the released code; a single malformed reply then gives a
            group a positive score.
        rescale: Factor on the advantages (RAGEN-2): "linear" is the fraction of groups selected, "sqrt" its square
            root, "none" 1.
    """

    rule: Rule = "fraction"
    amount: float = 0.25
    include_zero: bool = True
    smallest: bool = False
    eps: float = 0.01
    penalties: bool = False
    rescale: Rescale = "none"

    name: ClassVar[str] = "uncertainty"

    def __post_init__(self) -> None:
        one_of("selector.rule", self.rule, ("fraction", "count", "top-p", "top-p-softmax", "min-p"))
        one_of("selector.rescale", self.rescale, ("none", "linear", "sqrt"))
        at_least("selector.eps", self.eps, 0.0)
        if self.rule == "count":
            if self.amount < 1 or self.amount != int(self.amount):
                raise ConfigurationError(f"selector.amount must be a whole number of groups, not {self.amount}.")
        else:
            fraction("selector.amount", self.amount)
            if self.amount == 0:
                raise ConfigurationError("selector.amount is 0, which selects nothing; set a fraction above 0.")

    def select(self, rollouts: Rollouts) -> Selection:
        scores = group_statistics(rollouts.returns(penalties=self.penalties), rollouts.group, rollouts.groups).std
        groups = most_uncertain(
            scores,
            self.rule,
            self.amount,
            include_zero=self.include_zero,
            smallest=self.smallest,
            eps=self.eps,
        )
        share = len(groups) / max(rollouts.groups, 1)
        return Selection(groups, {"none": 1.0, "linear": share, "sqrt": share**0.5}[self.rescale])


# ---------------------------------------------------------------------- dynamic sampling


def informative_groups(metrics: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return the groups whose episodes differ in a metric (DAPO, arXiv:2503.14476, eq. 11).

    Args:
        metrics: Metric of each episode of each group.

    Returns:
        Indices of the groups, ascending; differences within rounding errors do not count.
    """
    members = [np.array(values, dtype=np.float64) for values in metrics]
    return tuple(
        i for i, values in enumerate(members) if len(values) > 1 and not nearly_equal(values, values[0]).all()
    )


@dataclass(frozen=True)
class Dynamic(Selector):
    """Selector that drops groups without differences and requests batches until enough groups are found.

    Attributes:
        metric: Metric that must differ within a group: "success" (DAPO's correctness), or "return" (of the
            environment, without penalties), which in an environment with dense rewards also differs between
            episodes that all failed.
        max_batches: Maximum number of generation batches per update; 0 for no limit.
        on_exhausted: Action when `max_batches` did not suffice: "raise" `NotEnoughGroups`, train on the "partial"
            batch, or "skip" the update. An empty partial batch is skipped.
    """

    metric: Literal["return", "success"] = "success"
    max_batches: int = 10
    on_exhausted: Literal["raise", "partial", "skip"] = "partial"

    name: ClassVar[str] = "dynamic"

    def __post_init__(self) -> None:
        one_of("selector.metric", self.metric, ("return", "success"))
        integer_at_least("selector.max_batches", self.max_batches, 0)
        one_of("selector.on_exhausted", self.on_exhausted, ("raise", "partial", "skip"))

    def select(self, rollouts: Rollouts) -> Selection:
        metric = rollouts.success.astype(float) if self.metric == "success" else rollouts.returns(penalties=False)
        members: list[list[float]] = [[] for _ in range(rollouts.groups)]
        for group, value in zip(rollouts.group.tolist(), metric.tolist(), strict=True):
            members[group].append(value)
        return Selection(informative_groups(members))

    def refill(self, needed: int) -> Refill[tuple[int, int]]:
        return Refill(needed, self.max_batches, self.on_exhausted)


class NotEnoughGroups(RuntimeError):
    """The generation batches of an update contained too few informative groups."""


T = TypeVar("T")


@dataclass(frozen=True)
class Refill(Generic[T]):
    """Progress of filling one update's batch; `add` returns the next state.

    Attributes:
        needed: Number of groups in a full batch.
        max_batches: Maximum number of generation batches; 0 for no limit.
        on_exhausted: See `Dynamic`.
        cut: Train on exactly `needed` groups, from as many generation batches as that takes. False takes one
            generation batch and all its selected groups.
        batches: Number of generation batches so far.
        kept: Selected groups so far, in sampling order.
    """

    needed: int
    max_batches: int = 10
    on_exhausted: Literal["raise", "partial", "skip"] = "partial"
    cut: bool = True
    batches: int = 0
    kept: tuple[T, ...] = field(default=())

    def add(self, groups: Sequence[T]) -> Refill[T]:
        """Return the state after one more generation batch with these selected groups."""
        return replace(self, batches=self.batches + 1, kept=(*self.kept, *groups))

    @property
    def full(self) -> bool:
        """True once there are enough groups."""
        return len(self.kept) >= self.needed

    @property
    def exhausted(self) -> bool:
        """True once the generation batches are used up without enough groups."""
        return not self.full and 0 < self.max_batches <= self.batches

    @property
    def wants_more(self) -> bool:
        """True while another generation batch is needed."""
        return not self.full and not self.exhausted and (self.cut or not self.batches)

    def batch(self) -> tuple[T, ...]:
        """Return the groups to train on: the first `needed`, or the fallback; empty to skip the update.

        Raises:
            NotEnoughGroups: The batches are used up and the fallback is "raise".
        """
        if not self.cut:
            return self.kept
        if not self.exhausted:
            return self.kept[: self.needed]
        if self.on_exhausted == "raise":
            raise NotEnoughGroups(
                f"{self.batches} generation batches had {len(self.kept)} of {self.needed} informative groups; "
                "choose tasks that the policy solves sometimes, raise selector.max_batches, or set "
                'selector.on_exhausted = "partial".'
            )
        return self.kept if self.on_exhausted == "partial" else ()


def select_groups(batches: Sequence[Rollouts], kept: Sequence[tuple[int, int]]) -> Rollouts:
    """Return the kept groups of several generation batches as one batch.

    Args:
        batches: Generation batches of the update.
        kept: Groups to train on, each (generation batch, group).

    Raises:
        ConfigurationError: `kept` is empty.
    """
    selected = [[group for index, group in kept if index == i] for i in range(len(batches))]
    parts = [batch.select(groups) for batch, groups in zip(batches, selected, strict=True) if groups]
    if not parts:
        raise ConfigurationError("no group was selected, so there is nothing to train on; skip this update.")
    return Rollouts.concatenate(parts)
