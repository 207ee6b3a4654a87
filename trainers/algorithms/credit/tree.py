"""Tree-GRPO's credit: leaves relative to their tree and to their prompt (Ji et al., arXiv:2509.21240).

A prompt has M trees. Every leaf is a complete episode with one score. Its advantage is the sum of two GRPO
advantages: among the leaves of its own tree (intra-tree) and among all leaves of its prompt (inter-tree). On a
prefix shared by all leaves of a tree the intra-tree advantages cancel, so that they act only after the
branching, as a preference between steps.

A token before a branch belongs to several leaves. The released code trains on every leaf as a sequence of its own,
so such a token counts for each of its k leaves, with the gradient of the sum of their advantages. `prefix_weights`
has two alternatives in which it counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from ....envs.checks import at_least, one_of
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray, factorize
from .base import Advantages, Credit
from .group import Singleton, group_advantages

Estimator = Literal["total", "inter", "intra", "cascaded"]
PrefixWeighting = Literal["duplicate", "mean", "once"]


def tree_advantages(
    scores: FloatArray,
    prompts: IntArray,
    trees: IntArray,
    estimator: Estimator = "total",
    *,
    eps: float = 1e-6,
    singleton: Singleton = "zero",
) -> FloatArray:
    """Return the advantage of every leaf.

    Args:
        scores: Score of each leaf, shape [E].
        prompts: Prompt of each leaf, numbered from 0, shape [E].
        trees: Tree of each leaf within its prompt, shape [E]; trees of different prompts are different.
        estimator: "total" is inter + intra; "inter" and "intra" are one of the two alone; "cascaded" normalizes by
            prompt, then by tree, where the second step undoes the first.
        eps: ε added to standard deviations.
        singleton: Advantage of a leaf that is alone on a level: "zero", or "return" for its score, as in the
            released code.

    Returns:
        Advantages, shape [E].
    """
    tree_ids = factorize(zip(prompts.tolist(), trees.tolist(), strict=True))
    inter = group_advantages(scores, prompts, eps=eps, singleton=singleton)
    if estimator == "inter":
        return inter
    if estimator == "cascaded":
        return group_advantages(inter, tree_ids, eps=eps, singleton=singleton)
    intra = group_advantages(scores, tree_ids, eps=eps, singleton=singleton)
    return intra if estimator == "intra" else inter + intra


def prefix_weights(
    rollouts: Rollouts, weighting: PrefixWeighting, in_loss: BoolArray | None = None
) -> FloatArray | None:
    """Return the weight of each copy of a sampled token in the loss, shape [M]; None where all weights are 1.

    Args:
        rollouts: Episodes that may share turns.
        weighting: For a token with k copies in the loss: "duplicate" gives each of them weight 1, as if all
            episodes were separate sequences (Tree-GRPO's released code); "mean" gives each of them 1/k, so that
            the token counts once, with the mean advantage of its leaves; "once" gives weight 1 to the copy of the
            first episode, which sampled the token unless that one was dropped, and 0 to the others.
        in_loss: Mask of the copies in the loss, shape [M]; None for all. The others have weight 0.
    """
    copied = rollouts.copies.action
    if weighting == "duplicate" or len(copied) == rollouts.actions:
        return None
    kept = np.arange(len(copied)) if in_loss is None else np.flatnonzero(in_loss)
    weights = np.zeros(len(copied))
    if weighting == "mean":
        weights[kept] = 1.0 / np.bincount(copied[kept])[copied[kept]]
    else:
        # Episodes are in the order in which they branch off each other, so the first copy is the one that was
        # sampled.
        weights[kept[np.unique(copied[kept], return_index=True)[1]]] = 1.0
    return weights


@dataclass(frozen=True)
class TreeCredit(Credit):
    """One advantage per leaf of a tree, on all tokens of its path (Tree-GRPO).

    Attributes:
        estimator: "total" adds the advantage within the prompt (inter-tree) and within the tree (intra-tree);
            "inter" and "intra" are one of the two alone; "cascaded" normalizes within the prompt, then within the
            tree, which equals "intra" up to ε.
        eps: ε added to standard deviations.
        singleton: Advantage of a leaf that is alone in its tree or prompt: "zero", or "return" for its return, as
            in the released code.
        prefix_weighting: Weight of a token that k leaves share: "duplicate" counts it for each of them, as in the
            released code; "mean" once, with the mean of their advantages; "once" once, with the advantage of the
            leaf that sampled it (the first one that was kept). Leaves that are not in the loss do not count.
    """

    estimator: Estimator = "total"
    eps: float = 1e-6
    singleton: Singleton = "zero"
    prefix_weighting: PrefixWeighting = "duplicate"

    name: ClassVar[str] = "tree"
    needs_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        one_of("credit.estimator", self.estimator, get_args(Estimator))
        one_of("credit.singleton", self.singleton, get_args(Singleton))
        one_of("credit.prefix_weighting", self.prefix_weighting, get_args(PrefixWeighting))
        at_least("credit.eps", self.eps, 0.0)

    @property
    def needs_trees(self) -> bool:
        return self.estimator in ("intra", "cascaded")

    def assign(
        self, rollouts: Rollouts, values: FloatArray | None = None, in_loss: BoolArray | None = None
    ) -> Advantages:
        advantages = tree_advantages(
            rollouts.returns(penalties=True),
            rollouts.group,
            rollouts.tree,
            self.estimator,
            eps=self.eps,
            singleton=self.singleton,
        )
        return Advantages(
            advantages[rollouts.copies.episode],
            multiplicity=prefix_weights(rollouts, self.prefix_weighting, in_loss),
        )
