"""Tree-GRPO's credit: leaves against those of their tree, and of their prompt (Ji et al., arXiv:2509.21240).

A prompt has M trees. Every leaf is a whole episode with one score. Its advantage is the sum of two GRPO
advantages: among the leaves of its own tree (intra) and among all leaves of its prompt (inter). In a prefix that
all leaves of a tree share the intra parts cancel, so that they bear on what came after the branching: a preference
between steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, TypeVar

from ...data.segments import FloatArray, IntArray, codes
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
    of_tree = codes(zip(prompts.tolist(), trees.tolist(), strict=True))
    inter = group_advantages(scores, prompts, eps=eps, singleton=singleton)
    if estimator == "inter":
        return inter
    if estimator == "cascaded":
        return group_advantages(inter, of_tree, eps=eps, singleton=singleton)
    intra = group_advantages(scores, of_tree, eps=eps, singleton=singleton)
    return intra if estimator == "intra" else inter + intra


def expandable(children: Mapping[Node, Sequence[Node]], root: Node, leaves: Sequence[Node]) -> list[Node]:
    """The nodes that a new branch may start from: the root and every descendant at which no episode ended.

    Args:
        children: of each node.
        root: of the tree.
        leaves: nodes at which an episode ended.

    Returns:
        Nodes, parents before children; each is as likely as any other, and may be drawn more than once.
    """
    ended = set(leaves)
    found = [root]
    waiting = list(reversed(children.get(root, ())))
    while waiting:
        node = waiting.pop()
        if node not in ended:
            found.append(node)
            waiting += reversed(children.get(node, ()))
    return found


def leaves_per_prompt(trees: int, expansions: int, rounds: int) -> int:
    """M (L·N + 1) episodes from M trees, N expansions a round, L rounds."""
    return trees * (rounds * expansions + 1)


def expected_budget(trees: int, expansions: int, rounds: int) -> float:
    """Expected cost of a prompt in whole episodes, M + M·L·N / 2: a branch starts half way on average."""
    return trees + trees * rounds * expansions / 2
