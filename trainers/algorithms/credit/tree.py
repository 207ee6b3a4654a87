"""Tree-GRPO's credit: leaves against those of their tree, and of their prompt (Ji et al., arXiv:2509.21240).

A prompt has M trees. Every leaf is a whole episode with one score. Its advantage is the sum of two GRPO
advantages: among the leaves of its own tree (intra) and among all leaves of its prompt (inter). In a prefix that
all leaves of a tree share the intra parts cancel, so that they bear on what came after the branching: a preference
between steps.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, TypeVar

from ...data.segments import FloatArray, IntArray, factorize
from .group import Singleton, group_advantages

Estimator = Literal["total", "inter", "intra", "cascaded"]
Node = TypeVar("Node", bound=Hashable)


def tree_advantages(
    scores: FloatArray,
    prompts: IntArray,
    trees: IntArray,
    estimator: Estimator = "total",
    *,
    eps: float = 1e-6,
    singleton: Singleton = "zero",
) -> FloatArray:
    """The advantage of every leaf.

    Args:
        scores: shape [E].
        prompts: prompt of each leaf, numbered from 0, shape [E].
        trees: tree of each leaf within its prompt, shape [E]; trees of different prompts are different.
        estimator: "total" = inter + intra; either alone; or "cascaded": normalised by prompt, then by tree, which
            undoes the first step.
        eps: added to deviations.
        singleton: what a leaf that is alone gets from that level; the released code takes its score ("return").

    Returns:
        Advantages, shape [E].
    """
    of_tree = factorize(zip(prompts.tolist(), trees.tolist(), strict=True))
    inter = group_advantages(scores, prompts, eps=eps, singleton=singleton)
    if estimator == "inter":
        return inter
    if estimator == "cascaded":
        return group_advantages(inter, of_tree, eps=eps, singleton=singleton)
    intra = group_advantages(scores, of_tree, eps=eps, singleton=singleton)
    return intra if estimator == "intra" else inter + intra
