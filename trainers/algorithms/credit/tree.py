"""Tree-GRPO's credit: leaves relative to their tree and to their prompt (Ji et al., arXiv:2509.21240).

A prompt has M trees. Every leaf is a complete episode with one score. Its advantage is the sum of two GRPO
advantages: among the leaves of its own tree (intra-tree) and among all leaves of its prompt (inter-tree). On a
prefix shared by all leaves of a tree the intra-tree advantages cancel, so that they act only after the
branching, as a preference between steps.

The tree sampler and T-STAR recipe of the next milestone use this module; until then only tests do.
"""

from __future__ import annotations

from typing import Literal

from ...data.segments import FloatArray, IntArray, factorize
from .group import Singleton, group_advantages

Estimator = Literal["total", "inter", "intra", "cascaded"]


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
