"""T-STAR's credit on rollouts (arXiv:2604.07165): turns merge into a cognitive graph, and share its values.

1. Every turn of a group is a step. Steps of equal depth and with the same history of effects merge if their
   contexts are equivalent: identical, or alike to the policy (`cognitive_steps.py`, `cognitive_policy.py`).
2. Returns are backed up along the edges of the graph, weighted by the fraction of episodes that take them; a
   node's value is compared with the mean and the standard deviation of the group (`cognitive_values.py`).
3. Nodes whose children differ widely in value are divergences, which `Advantages` lists beside the advantages.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ....agents.forks import Keep
from ....envs.checks import at_least, fraction, integer_at_least, one_of, positive
from ....envs.errors import ConfigurationError
from ...data.cognitive_graph import DivergencePair
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray
from .anchor import anchor_advantages
from .base import Advantages, Credit, PolicyProbe
from .cognitive import Symmetrize, layer_paths, tree_paths
from .cognitive_policy import Comparison, Contexts, PolicyRule, compare_by_policy
from .cognitive_records import GroupGraphs, graph_metrics, pair_metrics
from .cognitive_steps import (
    History,
    Identity,
    describe_steps,
    identity_classes,
    label_steps,
    undecided_steps,
)
from .cognitive_values import Baseline, GroupValues, Past, divergence_pairs, group_values

Merging = Literal["layered", "prefix", "none"]


@dataclass(frozen=True)
class Cognitive(Credit):
    """T-STAR's advantage of each node of a cognitive graph, on the sampled tokens of its turns.

    Attributes:
        merging: Steps that may merge: "layered" for those of equal depth, whatever their pasts; "prefix" for those
            below the same merged parent, which keeps the graph a tree; "none" for none.
        equivalence: Contexts that are equivalent: "policy" for identical ones and those in which the policy acts
            alike (T-STAR), "state" for identical ones only, which needs no model.
        identity: Contexts that are identical: those with equal "state" keys, those with the same "observation", or
            "none".
        history: Comparison of the effects of two pasts: in "order", or as a "set".
        kl_threshold: Divergence ε_kl, in nats, below which the policy acts alike.
        kl_samples: Actions K sampled per context where actions cannot be listed.
        kl_estimator: Estimate from these samples: "k1" (T-STAR; a negative estimate counts as alike) or "k3".
        kl_symmetrize: Combination of the two directions of the divergence: "max", "mean" or "forward".
        kl_contexts: Compared contexts: "all" (T-STAR), those whose merging is "undecided", since it can change an
            advantage (see `undecided_steps`; all with past "merged", and with baseline "depth_matched" where
            `gamma` is not 1), or only "one" of each set of identical ones among these.
        max_compared: Episodes per group above which the policy is compared only within episodes of equal first
            action.
        gamma: Discount γ per turn of the values.
        baseline: Mean return that a value is compared with: that of the "group" (T-STAR), or "depth_matched",
            discounted like the value.
        past: Rewards before a node: "own" adds an episode's own to the mean of what follows the node; "merged"
            averages whole returns over the node's episodes (T-STAR). Equal where only the end is rewarded.
        eps: ε added to the standard deviation.
        delta: Difference δ of the children's values above which a node is a divergence.
        floor: Value that the best child of a divergence must exceed, so that failures are not preferred to
            failures; None for any.
        omega: Weight ω of GiGPO's step advantage, which is added; 0 turns it off.
        anchor_gamma: Discount γ per turn of the step advantage's returns.
        anchor_scale: Divisor of the step advantage: "group" for the standard deviation + ε, "none" for 1.
    """

    merging: Merging = "layered"
    equivalence: Literal["policy", "state"] = "policy"
    identity: Identity = "state"
    history: History = "order"
    kl_threshold: float = 0.25  # T-STAR
    kl_samples: int = 16  # T-STAR
    kl_estimator: Literal["k1", "k3"] = "k1"  # T-STAR eq. 18
    kl_symmetrize: Symmetrize = "max"
    kl_contexts: Contexts = "undecided"
    max_compared: int = 16  # T-STAR
    gamma: float = 1.0  # T-STAR: 0.99
    baseline: Baseline = "group"
    past: Past = "own"
    eps: float = 1e-6
    delta: float = 0.3  # T-STAR
    floor: float | None = 0.0
    omega: float = 0.0
    anchor_gamma: float = 0.95  # GiGPO
    anchor_scale: Literal["group", "none"] = "none"  # GiGPO code

    name: ClassVar[str] = "cognitive"
    needs_groups: ClassVar[bool] = True
    finds_divergences: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of("credit.merging", self.merging, ("layered", "prefix", "none"))
        one_of("credit.equivalence", self.equivalence, ("policy", "state"))
        one_of("credit.identity", self.identity, ("state", "observation", "none"))
        one_of("credit.history", self.history, ("order", "set"))
        positive("credit.kl_threshold", self.kl_threshold)
        integer_at_least("credit.kl_samples", self.kl_samples, 1)
        one_of("credit.kl_estimator", self.kl_estimator, ("k1", "k3"))
        one_of("credit.kl_symmetrize", self.kl_symmetrize, ("max", "mean", "forward"))
        one_of("credit.kl_contexts", self.kl_contexts, ("all", "undecided", "one"))
        integer_at_least("credit.max_compared", self.max_compared, 1)
        fraction("credit.gamma", self.gamma)
        one_of("credit.baseline", self.baseline, ("group", "depth_matched"))
        one_of("credit.past", self.past, ("own", "merged"))
        at_least("credit.eps", self.eps, 0.0)
        at_least("credit.delta", self.delta, 0.0)
        at_least("credit.omega", self.omega, 0.0)
        fraction("credit.anchor_gamma", self.anchor_gamma)
        one_of("credit.anchor_scale", self.anchor_scale, ("group", "none"))
        if self.merging != "none" and self.equivalence == "state" and self.identity == "none":
            raise ConfigurationError(
                'credit.equivalence = "state" merges identical contexts, but credit.identity is "none"; set '
                'credit.identity = "state", or credit.merging = "none".'
            )

    @property
    def keep(self) -> frozenset[Keep]:
        needed: set[Keep] = set()
        if self.merging != "none" or (self.omega and self.identity != "observation"):
            needed.add("states")
        if self.needs_policy:
            needed.add("choices")
        return frozenset(needed)

    @property
    def needs_policy(self) -> bool:
        return self.merging != "none" and self.equivalence == "policy"

    def assign(
        self,
        rollouts: Rollouts,
        values: FloatArray | None = None,
        in_loss: BoolArray | None = None,
        policy: PolicyProbe | None = None,
    ) -> Advantages:
        started = time.perf_counter()
        steps = describe_steps(rollouts, self.history if self.merging != "none" else None, self.max_compared)
        returns = rollouts.returns(penalties=True)
        labels = np.arange(rollouts.turns)
        metrics: dict[str, float] = {}
        if self.merging != "none":
            identical = identity_classes(rollouts, steps, self.identity)
            metrics["seconds/merge"] = time.perf_counter() - started
            compared = Comparison(identical, 0, 0, 0)
            if self.equivalence == "policy":
                rule = PolicyRule(
                    self.kl_threshold, self.kl_samples, self.kl_estimator, self.kl_symmetrize, self.kl_contexts
                )
                # With these, an advantage depends on merging also where nothing more is earned.
                depends = self.past == "merged" or (self.baseline == "depth_matched" and self.gamma != 1.0)
                compares_all = self.kl_contexts == "all" or depends
                undecided = None if compares_all else undecided_steps(rollouts, steps)
                compared = compare_by_policy(rollouts, steps, identical, _required(policy), rule, undecided)
                metrics["seconds/compare"] = time.perf_counter() - started - metrics["seconds/merge"]
            labels = label_steps(rollouts, steps, compared.classes, returns)
            metrics |= pair_metrics(steps, identical, compared.pairs, compared.separate)
            metrics["graph/contexts"] = float(compared.contexts)
        valued = time.perf_counter()
        groups = self._values(rollouts, labels)
        advantages = np.zeros(len(rollouts.paths.turn))
        starts = np.searchsorted(rollouts.paths.episode, np.arange(rollouts.episodes + 1))
        for group in groups:
            places = [np.arange(starts[episode], starts[episode + 1]) for episode in group.episodes]
            advantages[np.concatenate([*places, np.zeros(0, dtype=np.int64)])] = group.advantages
        if self.omega:
            advantages += self.omega * self._step_advantages(rollouts)
        pairs: list[DivergencePair] = []
        sampled = np.bincount(rollouts.action_turn, minlength=rollouts.turns)
        for group in groups:
            pairs += divergence_pairs(group, rollouts, sampled)
        metrics["seconds/values"] = time.perf_counter() - valued
        return Advantages(
            advantages[rollouts.copies.path],
            divergences=pairs,
            metrics=metrics | graph_metrics(groups),
            graphs=GroupGraphs(groups, rollouts, steps.child),
        )

    def _values(self, rollouts: Rollouts, labels: IntArray) -> list[GroupValues]:
        """Return the values of every group."""
        turns, episodes = rollouts.paths
        ends = np.searchsorted(episodes, np.arange(rollouts.episodes), side="right").tolist()
        by_turn, by_label, by_reward = (
            row.tolist() for row in (turns, labels[turns], rollouts.turn_scores[turns])
        )
        spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        members: list[list[int]] = [[] for _ in range(rollouts.groups)]
        for episode, group in enumerate(rollouts.group.tolist()):
            members[group].append(episode)
        to_paths = tree_paths if self.merging == "prefix" else layer_paths
        return [
            group_values(
                group,
                own,
                [by_turn[spans[episode]] for episode in own],
                to_paths([by_label[spans[episode]] for episode in own]),
                [by_reward[spans[episode]] for episode in own],
                gamma=self.gamma,
                baseline=self.baseline,
                past=self.past,
                eps=self.eps,
                delta=self.delta,
                floor=-np.inf if self.floor is None else self.floor,
            )
            for group, own in enumerate(members)
        ]

    def _step_advantages(self, rollouts: Rollouts) -> FloatArray:
        """Return GiGPO's A_S of every path entry, [P]."""
        anchors = rollouts.turn_observation if self.identity == "observation" else rollouts.turn_state
        if any(anchor is None for anchor in anchors):
            raise ConfigurationError('the turns have no state keys; roll out with keep={"states"}.')
        turns, episodes = rollouts.paths
        return anchor_advantages(
            rollouts.turn_scores[turns],
            episodes,
            rollouts.group[episodes],
            [anchors[turn] for turn in turns.tolist()],
            gamma=self.anchor_gamma,
            scale=self.anchor_scale,
            eps=self.eps,
        ).step


def _required(policy: PolicyProbe | None) -> PolicyProbe:
    """Return the policy.

    Raises:
        ConfigurationError: There is none.
    """
    if policy is None:
        raise ConfigurationError(
            'credit.equivalence = "policy" compares steps by the policy, which this caller of the credit does not '
            'pass; set credit.equivalence = "state".'
        )
    return policy
