"""Arithmetic of tree sampling (Tree-GRPO, Ji et al., arXiv:2509.21240): nodes to expand, leaves and budgets.

The tree sampler of the next milestone stands on these functions; until then only tests call them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

NodeT = TypeVar("NodeT", bound=Hashable)


def expandable_nodes(
    children: Mapping[NodeT, Sequence[NodeT]], root: NodeT, leaves: Sequence[NodeT]
) -> list[NodeT]:
    """Return the nodes from which a new branch may start: the root and every descendant that ends no episode.

    Args:
        children: Children of each node.
        root: Root of the tree.
        leaves: Nodes at which an episode ended.

    Returns:
        Nodes, parents before children. Drawing is uniform, with replacement.
    """
    ended = set(leaves)
    nodes = [root]
    stack = list(reversed(children.get(root, ())))
    while stack:
        node = stack.pop()
        if node not in ended:
            nodes.append(node)
            stack += reversed(children.get(node, ()))
    return nodes


def leaves_per_prompt(trees: int, expansions: int, rounds: int) -> int:
    """Return M (L·N + 1), the episodes of a prompt with M trees, N expansions a round and L rounds."""
    return trees * (rounds * expansions + 1)


def expected_budget(trees: int, expansions: int, rounds: int) -> float:
    """Return M + M·L·N / 2, the expected episodes per prompt: a branch starts half way on average."""
    return trees + trees * rounds * expansions / 2
