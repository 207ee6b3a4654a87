"""Tree of episodes that branch off each other, and the arithmetic of tree sampling (Tree-GRPO, arXiv:2509.21240).

The nodes of a tree are its root, which is the start of the task, and the turns of its episodes. A turn that
several episodes share is one node. An episode is a path from the root to a leaf.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ...agents.episode import Episode, Turn
from ..data.episodes import Branch

NodeT = TypeVar("NodeT", bound=Hashable)

ROOT = 0
"""Number of the root."""


class Node(NamedTuple):
    """Place in a tree at which a further episode may begin.

    Attributes:
        number: Number of the node; 0 is the root.
        branch: An episode that passes the node, and the number of its turns up to the node.
        next_turns: Turns that follow the node in the episodes so far.
    """

    number: int
    branch: Branch
    next_turns: tuple[Turn, ...]


class Tree:
    """Complete episodes of one tree, in the order in which they were added.

    Attributes:
        episodes: The episodes.
        paths: Numbers of the nodes of each episode's turns, without the root.
    """

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.paths: list[list[int]] = []
        self._turns: list[Turn | None] = [None]  # by node; the root has none
        self._children: dict[int, list[int]] = {ROOT: []}

    def add(self, episode: Episode, branch: Branch | None = None) -> None:
        """Add a complete episode.

        Args:
            episode: The episode.
            branch: Earlier episode of this tree from which it branched off, and the number of turns that the two
                share; None if it began at the root.
        """
        path = [] if branch is None else self.paths[branch.episode][: branch.turns]
        node = path[-1] if path else ROOT
        for turn in episode.turns[len(path) :]:
            parent, node = node, len(self._turns)
            self._turns.append(turn)
            self._children[node] = []
            self._children[parent].append(node)
            path.append(node)
        self.episodes.append(episode)
        self.paths.append(path)

    def expandable(self) -> list[Node]:
        """Return the nodes from which an episode may begin, parents before children; see `expandable_nodes`.

        A node is left out if nothing was sampled in any turn after it, since a prompt that did not fit into the
        context window the first time will not fit again. The root is always there.
        """
        places: dict[int, Branch] = {ROOT: Branch(0, 0)}
        for number, path in enumerate(self.paths):
            for length, node in enumerate(path, 1):
                if node not in places:
                    places[node] = Branch(number, length)
        ended = [path[-1] for path in self.paths if path]
        nodes = []
        for node in expandable_nodes(self._children, ROOT, ended):
            turns = [turn for child in self._children[node] if (turn := self._turns[child]) is not None]
            if node == ROOT or any(turn.moves or any(turn.loss_mask or ()) for turn in turns):
                nodes.append(Node(node, places[node], tuple(turns)))
        return nodes


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


def keep_leaves(paths: Sequence[Sequence[int]], kept: Sequence[int]) -> list[Branch | None]:
    """Return the branches of some of a tree's episodes relative to each other.

    Args:
        paths: Nodes of each episode, see `Tree.paths`.
        kept: Indices of the episodes to keep, ascending.

    Returns:
        For each kept episode, the earlier kept one with which it shares the most turns (the first of several), as
        an index into `kept`; None if it shares none.
    """
    branches: list[Branch | None] = []
    for place, index in enumerate(kept):
        best = None
        for earlier in range(place):
            shared = _common_length(paths[kept[earlier]], paths[index])
            if shared > (best.turns if best is not None else 0):
                best = Branch(earlier, shared)
        branches.append(best)
    return branches


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of equal nodes at the beginning of two paths."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def leaves_per_prompt(trees: int, expansions: int, rounds: int) -> int:
    """Return M (L·N + 1), the episodes of a prompt with M trees, N expansions a round and L rounds."""
    return trees * (rounds * expansions + 1)


def expected_budget(trees: int, expansions: int, rounds: int) -> float:
    """Return M + M·L·N / 2, the expected episodes per prompt: a branch starts half way on average."""
    return trees + trees * rounds * expansions / 2
