"""Which groups to learn from.

A group whose episodes all ended alike says nothing about which of them was better. Selectors leave such groups out
(DAPO), or keep only the most uncertain ones (StarPO-S, RAGEN-2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from ...envs.checks import at_least, fraction, one_of
from ...envs.errors import ConfigurationError
from ..data.rollouts import Rollouts
from ..data.segments import FloatArray, equal, group_statistics

Rule = Literal["fraction", "count", "top-p", "top-p-softmax", "min-p"]
Rescale = Literal["none", "linear", "sqrt"]


class Selection(NamedTuple):
    """What a selector kept.

    Attributes:
        groups: indices in ascending order; may be empty, then the update is skipped.
        scale: what advantages are multiplied by.
    """

    groups: tuple[int, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class Selector(ABC):
    """A rule that picks groups of rollouts."""

    name: ClassVar[str]
    needs_groups: ClassVar[bool] = True

    @abstractmethod
    def select(self, rollouts: Rollouts) -> Selection:
        """Return the groups of one generation batch to train on."""

    def refill(self, needed: int) -> Refill[tuple[int, int]]:
        """Return the bookkeeping of one update: how many generation batches to roll out, and which groups to keep.

        The default rolls out one batch and keeps every selected group.

        Args:
            needed: Groups that make a full batch.
        """
        return Refill(needed, max_batches=1, cut=False)


@dataclass(frozen=True)
class All(Selector):
    """Every group."""

    name: ClassVar[str] = "all"
    needs_groups: ClassVar[bool] = False

    def select(self, rollouts: Rollouts) -> Selection:
        return Selection(tuple(range(rollouts.groups)))


# ---------------------------------------------------------------------- by uncertainty


def most_uncertain(
    scores: FloatArray,
    rule: Rule = "fraction",
    amount: float = 0.25,
    *,
    include_zero: bool = True,
    smallest: bool = False,
    eps: float = 0.01,
) -> tuple[int, ...]:
    """Groups by the uncertainty of their outcome.

    * "fraction": the top `amount` of all groups, rounded down, at least one (StarPO-S, arXiv:2504.20073, eq. 7).
    * "count": the top `amount` groups.
    * "top-p": the shortest run of top groups whose scores add up to `amount` of the total, less `eps`; none if
      that threshold is not positive; all for amount = 1 (RAGEN-2).
    * "top-p-softmax": the same with the softmax of the scores as mass, without `eps`; at least one.
    * "min-p": groups with a score of at least `amount` times the largest.

    Args:
        scores: the standard deviation of returns in each group, shape [G].
        rule: see above.
        amount: see above.
        include_zero: whether groups with a score of 0 (at most 1e-10) may be kept.
        smallest: take from the other end.
        eps: slack of "top-p".

    Returns:
        Indices in ascending order. Of scores that are equal, but for rounding, the lower index goes first.
    """
    ranks = np.round(scores, 10)
    candidates = [i for i in range(len(scores)) if include_zero or abs(scores[i]) > 1e-10]
    candidates.sort(key=lambda i: ranks[i] if smallest else -ranks[i])  # stable
    if not candidates or (rule == "top-p" and amount >= 1.0):
        return tuple(sorted(candidates))
    if rule == "fraction":
        # A hair is added so that 0.29 · 100 is 29.
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
    """Keep the groups whose returns differ most; see `most_uncertain`.

    Attributes:
        penalties: let penalties count in the returns (as released: then a single malformed reply makes a group
            look informative).
        rescale: multiply advantages by the fraction of groups kept, or its square root (RAGEN-2).
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
                raise ConfigurationError("selector.amount = 0 keeps nothing; choose a fraction above 0.")

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
    """Groups whose metric is not the same throughout, but for rounding (DAPO, arXiv:2503.14476, eq. 11)."""
    members = [np.array(values, dtype=np.float64) for values in metrics]
    return tuple(i for i, values in enumerate(members) if len(values) > 1 and not equal(values, values[0]).all())


@dataclass(frozen=True)
class Dynamic(Selector):
    """Drop silent groups, and sample on until enough others are found.

    Attributes:
        metric: what must differ within a group: the world's return (penalties do not count), or success.
        max_batches: generation batches an update; 0 for no bound.
        on_exhausted: when they are spent: "raise" (`Starved`), go on with the "partial" batch, or "skip" the
            update. A partial batch without any group is skipped.
    """

    metric: Literal["return", "success"] = "return"
    max_batches: int = 10
    on_exhausted: Literal["raise", "partial", "skip"] = "partial"

    name: ClassVar[str] = "dynamic"

    def __post_init__(self) -> None:
        one_of("selector.metric", self.metric, ("return", "success"))
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
    """Generation batches were spent before enough informative groups were found."""


T = TypeVar("T")


@dataclass(frozen=True)
class Refill(Generic[T]):
    """Progress of filling one update's batch; `add` returns the next state.

    Attributes:
        needed: Groups that make a full batch.
        max_batches: Maximum number of generation batches; 0 or less for no limit.
        on_exhausted: See `Dynamic`.
        cut: Keep only the first `needed` groups.
        batches: Generation batches so far.
        kept: Selected groups so far, in order of arrival.
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
                f"{self.batches} generation batches held {len(self.kept)} of {self.needed} informative groups; "
                "choose tasks that the policy solves sometimes, raise selector.max_batches, or set "
                'selector.on_exhausted to "partial".'
            )
        return self.kept if self.on_exhausted == "partial" else ()


def select_groups(batches: Sequence[Rollouts], kept: Sequence[tuple[int, int]]) -> Rollouts:
    """The groups (generation batch, group) of several generation batches as one batch.

    Raises:
        ConfigurationError: nothing was kept.
    """
    wanted = [[group for number, group in kept if number == i] for i in range(len(batches))]
    parts = [batch.select(groups) for batch, groups in zip(batches, wanted, strict=True) if groups]
    if not parts:
        raise ConfigurationError("no group was kept, so there is nothing to learn from; skip this update.")
    return Rollouts.concatenate(parts)
