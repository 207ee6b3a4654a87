"""Trees of episodes, as reports draw them: the episodes of one task, merged where they share a state.

A report's page unpacks one tree at a time and draws it with `templates/trees.js`. All texts are untrusted; the
page inserts them only through `textContent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .page_data import pack
from .tree_layout import Link, lay_out

MAX_BYTES = 8 * 2**20
"""Maximum size of the trees that a page embeds, in bytes; further trees are left out."""

THRESHOLD = 0.3
"""Gap between the values of a node's children from which it is a divergence (T-STAR's δ, arXiv:2604.07165)."""

FOLDED = 3
"""Number of successive nodes without a branch, a merge or an end from which they are drawn as one."""


class Outcome(NamedTuple):
    """One episode of a tree.

    Attributes:
        label: Name to show.
        value: Return or other outcome that the values of the nodes are means of.
        success: True if it solved its task.
    """

    label: str
    value: float
    success: bool


class Step(NamedTuple):
    """Step that leads to a node, of all episodes that took it in the same words.

    Attributes:
        action: Action, or several on a line each.
        thought: Thought or reply before it; empty if there is none.
        observation: Observation after it.
        episodes: Indices of the episodes.
    """

    action: str
    thought: str
    observation: str
    episodes: tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """State that one or several episodes pass through.

    Attributes:
        depth: Number of steps before it, as the tree counts them.
        value: Value of the node.
        episodes: Indices of the episodes through it.
        steps: Steps that lead to it; empty at the root.
        ends: Indices of the episodes that end at it.
        advantage: Advantage of the steps that lead to it; None if there is none.
    """

    depth: int
    value: float
    episodes: tuple[int, ...]
    steps: tuple[Step, ...] = ()
    ends: tuple[int, ...] = ()
    advantage: float | None = None


class Edge(NamedTuple):
    """Edge of a tree.

    Attributes:
        parent: Index of a node.
        child: Index of a node.
        episodes: Indices of the episodes that take it.
    """

    parent: int
    child: int
    episodes: tuple[int, ...]


class Divergence(NamedTuple):
    """Node after which the values of the continuations differ widely.

    Attributes:
        node: Index of the node.
        best: Index of its child with the largest value.
        worst: Index of its child with the smallest value.
        gap: Difference of these values.
    """

    node: int
    best: int
    worst: int
    gap: float


class Graft(NamedTuple):
    """Thought that was rewritten after a divergence.

    Attributes:
        node: Index of the divergence's node.
        chosen: Rewritten thought.
        rejected: Thought of the failed branch.
        valid: True if the rewritten thought is used.
        reason: Reason for which it is not; empty if it is.
    """

    node: int
    chosen: str
    rejected: str
    valid: bool
    reason: str = ""


@dataclass(frozen=True)
class Tree:
    """Episodes of one task, merged. It is a graph where merged nodes have several parents.

    Attributes:
        task: Name or text of the task.
        value_name: Meaning of the values, for the legend.
        observation: First observation.
        episodes: Outcomes of the episodes.
        nodes: Nodes, the root first.
        edges: Edges; parents precede their children.
        divergences: Nodes with a wide gap between their continuations.
        grafts: Rewritten thoughts.
        notes: Remarks for the reader, one sentence each.
    """

    task: str
    value_name: str
    observation: str
    episodes: tuple[Outcome, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    divergences: tuple[Divergence, ...] = ()
    grafts: tuple[Graft, ...] = ()
    notes: tuple[str, ...] = ()


class Place(NamedTuple):
    """Place of a tree in the selections of a page.

    Attributes:
        first: Label of the first selection.
        second: Label of the second selection.
        third: Label of the third selection.
    """

    first: str
    second: str
    third: str


class PackedTree(NamedTuple):
    """A tree of a page: its place in the selections and its packed record."""

    place: Place
    data: str


def pack_trees(trees: Iterable[tuple[Place, Tree]], max_bytes: int = MAX_BYTES) -> tuple[list[PackedTree], int]:
    """Pack trees for a page, in their order.

    Args:
        trees: Trees with their places.
        max_bytes: Maximum size of all packed trees together.

    Returns:
        The packed trees, and the number of those that are left out for their size.
    """
    packed: list[PackedTree] = []
    size = left_out = 0
    for place, tree in trees:
        data = pack(tree_record(tree))
        if size + len(data) > max_bytes:
            left_out += 1
            continue
        size += len(data)
        packed.append(PackedTree(place, data))
    return packed, left_out


def tree_record(tree: Tree) -> dict[str, Any]:
    """Return a tree as plain data for the page: runs of nodes folded, and every node at its place."""
    runs = _fold_runs(tree)
    place_of = {node: index for index, run in enumerate(runs) for node in run}
    edges = [edge for edge in tree.edges if place_of[edge.parent] != place_of[edge.child]]
    links = [Link(place_of[edge.parent], place_of[edge.child], len(edge.episodes)) for edge in edges]
    layout = lay_out(len(runs), links)
    values = [node.value for node in tree.nodes] + [episode.value for episode in tree.episodes]
    return {
        "task": tree.task,
        "value": tree.value_name,
        "range": [min(values, default=0.0), max(values, default=0.0)],
        "observation": tree.observation,
        "notes": list(tree.notes),
        "episodes": [list(episode) for episode in tree.episodes],
        "nodes": [
            {
                "at": [layout.layer[index], layout.lane[index]],
                "depth": tree.nodes[run[0]].depth,
                "episodes": list(tree.nodes[run[0]].episodes),
                "q": tree.nodes[run[0]].value,
                "a": tree.nodes[run[0]].advantage,
                "ends": list(tree.nodes[run[-1]].ends),
                "steps": [[list(step) for step in tree.nodes[node].steps] for node in run],
            }
            for index, run in enumerate(runs)
        ],
        "edges": [
            [link.source, link.target, list(edge.episodes), route]
            for edge, link, route in zip(edges, links, layout.routes, strict=True)
        ],
        "divergences": [
            [place_of[one.node], place_of[one.best], place_of[one.worst], one.gap] for one in tree.divergences
        ],
        "grafts": [[place_of[one.node], *one[1:]] for one in tree.grafts],
    }


def _fold_runs(tree: Tree) -> list[list[int]]:
    """Return the nodes in their order, those without a branch, a merge or an end folded into one run.

    The first node after a branch stays on its own, since it is what the branches differ in.
    """
    parents: list[list[int]] = [[] for _ in tree.nodes]
    children: list[list[int]] = [[] for _ in tree.nodes]
    for edge in tree.edges:
        parents[edge.child].append(edge.parent)
        children[edge.parent].append(edge.child)
    marked = {graft.node for graft in tree.grafts}

    def is_plain(node: int) -> bool:
        if len(parents[node]) != 1 or len(children[node]) != 1 or tree.nodes[node].ends or node in marked:
            return False
        return len(children[parents[node][0]]) == 1 and len(parents[children[node][0]]) == 1

    runs: list[list[int]] = []
    folded: set[int] = set()
    for node in range(len(tree.nodes)):
        if node in folded:
            continue
        run = [node]
        while is_plain(run[-1]) and is_plain(children[run[-1]][0]):
            run.append(children[run[-1]][0])
        if len(run) < FOLDED:
            run = [node]
        folded.update(run)
        runs.append(run)
    return runs


def find_divergences(
    edges: Sequence[Edge], values: Sequence[float], threshold: float, tie: float = 1e-9
) -> tuple[Divergence, ...]:
    """Return the nodes whose children's values differ by more than a threshold.

    Args:
        edges: Edges.
        values: Value of each node.
        threshold: Difference that must be exceeded.
        tie: Tolerance of the comparison.
    """
    children: dict[int, list[Edge]] = {}
    for edge in edges:
        children.setdefault(edge.parent, []).append(edge)
    found = []
    for node, group in children.items():
        best = max(group, key=lambda edge: (values[edge.child], len(edge.episodes))).child
        worst = min(group, key=lambda edge: values[edge.child]).child
        if values[best] - values[worst] > threshold + tie:
            found.append(Divergence(node, best, worst, values[best] - values[worst]))
    return tuple(found)


def interest(tree: Tree) -> tuple[int, ...]:
    """Return a key that sorts the trees that show most first: mixed outcomes, then divergences, then branches."""
    solved = sum(episode.success for episode in tree.episodes)
    return (-min(solved, len(tree.episodes) - solved), -len(tree.divergences), -len(tree.edges))
