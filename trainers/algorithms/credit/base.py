"""Interface of credit rules: settings that assign an advantage to each sampled token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ....agents.forks import Keep
from ....envs.user_code import describe_method, wrong_result
from ...data.cognitive_graph import CognitiveGraph, DivergencePair
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray
from ..part_failures import part_failures


class Advantages(NamedTuple):
    """Result of a credit rule.

    Attributes:
        advantages: Advantage of each copy of a sampled token (see `Rollouts`), [M].
        value_targets: Regression target of the critic at each copy, [M]; None without a critic.
        multiplicity: Weight m ≥ 0 of each copy in the sums and counts of the loss, [M]; see `token_weights`. A
            copy of multiplicity 0 is not trained on. None takes 1.
        divergences: Pairs of branches of different outcome, for terms of the loss on preferences.
        metrics: Metrics of the rule, for the update's report.
        graphs: Graphs of merged turns, for the run's report.
    """

    advantages: FloatArray
    value_targets: FloatArray | None = None
    multiplicity: FloatArray | None = None
    divergences: Sequence[DivergencePair] = ()
    metrics: Mapping[str, float] = MappingProxyType({})
    graphs: Sequence[CognitiveGraph] = ()


class PolicyProbe(Protocol):
    """Access of a credit rule to the policy that is being trained."""

    def action_logprobs(
        self, contexts: Sequence[IntArray], actions: Sequence[Sequence[str]], *, normalize: bool = True
    ) -> list[FloatArray]:
        """Return the score of each action in each context, unnormalized over actions.

        Args:
            contexts: Token ids of conversations before the policy's reply.
            actions: Actions to score in each context.
            normalize: Score by the mean log-probability per token, so that long actions compare with short ones;
                False scores by the log-probability of the whole action, as divergences of samples need it.

        Returns:
            For each context, the score of each action, written after the fixed prefix of actions; NaN where it
            does not fit into the context window.
        """

    def sample_actions(self, contexts: Sequence[IntArray], count: int, seed: int) -> list[list[str]]:
        """Return `count` actions that the policy samples in each context after the fixed prefix of actions.

        Args:
            contexts: Token ids of conversations before the policy's reply.
            count: Actions per context.
            seed: Seed of the samples.
        """


@dataclass(frozen=True)
class Credit(ABC):
    """Rule of credit assignment.

    Class attributes:
        name: Name of the rule, in `credit.name`.
        needs_critic: True if `assign` reads the critic's values.
        finds_divergences: True if `assign` lists divergences, of which preference pairs are made.
        needs_groups: True if the rule compares episodes of one prompt.
        needs_turn_rewards: True if the rule reads every reward in the turn that earned it.

    Attributes:
        keep: What `play` must record of every turn beyond its tokens, since `assign` reads it.
        redraws: Further outcomes to draw of every combination of state and actions in a group, without the policy,
            as `Rollouts.turn_redraws`; `keep` must then have "states" and "snapshots".
        needs_trees: True if the rule has no advantage where every tree has a single episode.
        needs_policy: True if `assign` takes a further argument `policy`, a `PolicyProbe`.
    """

    name: ClassVar[str]
    needs_critic: ClassVar[bool] = False
    finds_divergences: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    needs_turn_rewards: ClassVar[bool] = False

    @property
    def keep(self) -> frozenset[Keep]:
        return frozenset()

    @property
    def redraws(self) -> int:
        return 0

    @property
    def needs_trees(self) -> bool:
        return False

    @property
    def needs_policy(self) -> bool:
        return False

    @abstractmethod
    def assign(
        self, rollouts: Rollouts, values: FloatArray | None = None, in_loss: BoolArray | None = None
    ) -> Advantages:
        """Return the advantage of every copy of a sampled token: of every episode's own tokens.

        Args:
            rollouts: Episodes of the update, with their penalties.
            values: Critic's value before each sampled token, [N]; None without a critic.
            in_loss: Mask of the tokens that are trained on, [N]; None for all. Statistics over tokens must not
                include the others.
        """


def assign_credit(
    credit: Credit, rollouts: Rollouts, values: FloatArray | None, in_loss: BoolArray | None, **probe: Any
) -> Advantages:
    """Return `credit.assign`, after checks of its arrays.

    Raises:
        PartFailed: The rule failed, or its arrays have another shape, or values that are not finite.
    """
    with part_failures("credit", credit):
        found: Any = credit.assign(rollouts, values, in_loss, **probe)
        if not isinstance(found, Advantages):
            raise wrong_result(credit.assign, "Advantages", found)
        copies = len(rollouts.copies.path)
        for name in ("advantages", "value_targets", "multiplicity"):
            array = getattr(found, name)
            if array is None and name != "advantages":
                continue
            if np.shape(array) != (copies,):
                expected = f"{name} of shape ({copies},), one for each copy of a sampled token"
                raise wrong_result(credit.assign, expected, np.shape(array))
            faults = np.count_nonzero(~np.isfinite(array))
            if faults:
                rule = describe_method(credit.assign)
                raise ValueError(f"{rule} returned {faults} of {copies} {name} that are not finite")
    return found
