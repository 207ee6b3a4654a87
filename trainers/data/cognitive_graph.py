"""Cognitive graphs as data: the merged turns of one group of episodes, for reports.

A graph begins at its root, the start that all episodes of the group share. Every other node is a set of turns
that were merged, because the situations after them are equivalent. An edge leads from a node to a node that an
episode reached with its next turn. Without merges across different pasts the graph is a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class DivergencePair(NamedTuple):
    """Two branches of different value from equivalent situations, the material of a correction.

    The context of the correction is the conversation before `worst`.

    Attributes:
        group: Group, as numbered in the update's rollouts.
        best: Turn that begins the better branch, as an index on the turn axis of the update's rollouts.
        worst: Turn that begins the worse branch.
        gap: Difference of the values of the two branches, ΔV.
    """

    group: int
    best: int
    worst: int
    gap: float


@dataclass(frozen=True, slots=True)
class GraphNode:
    """Set of merged turns, or the root.

    Attributes:
        depth: Number of turns from the start; 0 at the root.
        turns: Merged turns, as indices on the turn axis of the update's rollouts, ascending; empty at the root. A
            turn that several episodes share is one turn.
        episodes: Episodes that pass the node, as positions in `CognitiveGraph.episodes`, ascending. Their number
            is k.
        q: Value Q.
        advantage: Advantage of the node's turns; their mean over episodes where they differ.
        actions: Distinct texts of the turns' actions, the most frequent first; those of one turn are separated by
            "; ".
        observation: Observation after the node's first turn, or of the start; None where no turn follows.
    """

    depth: int
    turns: tuple[int, ...]
    episodes: tuple[int, ...]
    q: float
    advantage: float
    actions: tuple[str, ...]
    observation: str | None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Step from a node to one of its children.

    Attributes:
        parent, child: Positions in `CognitiveGraph.nodes`.
        episodes: Number of episodes that take the step.
        weight: Fraction of the parent's episodes that take the step, w.
    """

    parent: int
    child: int
    episodes: int
    weight: float


@dataclass(frozen=True, slots=True)
class GraphDivergence:
    """Node whose children differ widely in value.

    Attributes:
        node: Position in `CognitiveGraph.nodes`.
        best, worst: Positions of the children with the largest and the smallest Q.
        gap: Difference of the two values, ΔV.
    """

    node: int
    best: int
    worst: int
    gap: float


@dataclass(frozen=True, slots=True)
class GraphEpisode:
    """Episode of the group.

    Attributes:
        index: Index on the episode axis of the update's rollouts.
        reward: Undiscounted return R, with the penalties of training.
        success: True if the episode solved its task.
        path: Nodes that it passes, as positions in `CognitiveGraph.nodes`, from the root on.
    """

    index: int
    reward: float
    success: bool
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Graft:
    """Thought that was rewritten for the failed branch of a divergence.

    Attributes:
        node: Position of the divergence's node in `CognitiveGraph.nodes`.
        chosen: Rewritten thought, z_rect.
        rejected: Thought of the failed branch, z⁻.
        valid: True if the pair is trained on.
        reason: Reason for which it is not; empty if it is.
    """

    node: int
    chosen: str
    rejected: str
    valid: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CognitiveGraph:
    """Cognitive graph of one group.

    Attributes:
        group: Group, as numbered in the update's rollouts.
        task: Observation of the start, as text.
        mean: Mean return of the episodes.
        std: Sample standard deviation of the returns; 0 if all are nearly equal.
        nodes: Nodes, the root first and parents before children.
        edges: Edges, by parent.
        divergences: Divergences, by node.
        episodes: Episodes, in the order of the rollouts.
        grafts: Rewritten thoughts, by node; empty where none were generated.
    """

    group: int
    task: str
    mean: float
    std: float
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    divergences: tuple[GraphDivergence, ...]
    episodes: tuple[GraphEpisode, ...]
    grafts: tuple[Graft, ...] = ()

    def find_divergence(self, pair: DivergencePair) -> GraphDivergence | None:
        """Return the divergence whose best and worst child contain the turns of a pair; None if there is none."""
        for one in self.divergences:
            if pair.best in self.nodes[one.best].turns and pair.worst in self.nodes[one.worst].turns:
                return one
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as plain data, which JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> CognitiveGraph:
        """Return the graph of a record written by `to_dict`, also after a way through JSON."""
        parts: dict[str, Callable[..., Any]] = {
            "nodes": GraphNode,
            "edges": GraphEdge,
            "divergences": GraphDivergence,
            "episodes": GraphEpisode,
            "grafts": Graft,
        }
        fields = dict(record)
        for name, part in parts.items():
            fields[name] = tuple(part(**_with_tuples(entry)) for entry in record.get(name, ()))
        return cls(**fields)


def _with_tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with tuples in place of JSON's lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
