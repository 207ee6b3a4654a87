"""Trees of a run's updates for people to read: `trees.jsonl`, one group of episodes a line.

A tree is the cognitive graph of a group with the texts of its turns, which the graph refers to by index.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...envs.files import read_jsonl, write_atomic
from ...eval import trees as drawn
from ...eval.trees import Divergence, Edge, Node, Outcome, PackedTree, Place, Step, Tree, pack_trees
from ..algorithms.credit.base import Advantages
from ..config.run import TrainingConfig
from ..data.cognitive_graph import CognitiveGraph, Graft
from ..data.rollouts import Rollouts
from .forest_graphs import forest_graphs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..sampling.grafting import GraftText  # It needs PyTorch, which reports do not.

FILE = "trees.jsonl"

GROUPS = 4
"""Groups of an update that are kept, those with divergences first."""

MAX_TEXT = 4000
"""Length to which the texts of a turn are cut, in characters."""


@dataclass(frozen=True, slots=True)
class TurnText:
    """Texts of a turn.

    Attributes:
        node: Position of its node in the graph's nodes.
        episodes: Episodes that pass the turn, as positions in the graph's episodes.
        action: Actions parsed from the reply, one a line.
        reply: Reply, decoded from its tokens.
        observation: Observation after the turn; empty where no turn follows.
    """

    node: int
    episodes: tuple[int, ...]
    action: str
    reply: str
    observation: str


@dataclass(frozen=True)
class StoredTree:
    """A tree of an update.

    Attributes:
        update: Number of the update, from 1.
        graph: Cognitive graph of a group.
        turns: Texts of the turns of its nodes.
    """

    update: int
    graph: CognitiveGraph
    turns: tuple[TurnText, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as plain data."""
        return {
            "update": self.update,
            "graph": self.graph.to_dict(),
            "turns": [asdict(turn) for turn in self.turns],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> StoredTree:
        """Return the tree of a record written by `to_dict`."""
        names = [field.name for field in fields(TurnText)]
        turns = tuple(
            TurnText(**{name: turn[name] for name in names} | {"episodes": tuple(turn["episodes"])})
            for turn in record["turns"]
        )
        return cls(int(record["update"]), CognitiveGraph.from_dict(record["graph"]), turns)


class TreeFile:
    """File of a run's trees, of its first update, the last planned one, and those with a planned validation.

    Args:
        config: Configuration of the run.
        tokenizer: Tokenizer of the model.
    """

    def __init__(self, config: TrainingConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self._path = config.out / FILE
        self._tokenizer = tokenizer
        self._every = config.validation.every

    def truncate(self, update: int) -> None:
        """Drop the trees of updates after an update, which will be made again."""
        if self._path.exists():
            kept = [record for record in _read_records(self._path.parent) if record["update"] <= update]
            write_atomic(self._path, "".join(json.dumps(record) + "\n" for record in kept))

    def add(
        self,
        update: int,
        rollouts: Rollouts,
        credit: Advantages,
        grafts: Sequence[GraftText] = (),
        *,
        is_last: bool = False,
    ) -> None:
        """Append the trees of an update that show most, if they are due.

        Args:
            update: Number of the update, from 1.
            rollouts: Rollouts of the update.
            credit: Its credit. Without graphs of merged turns, episodes that branch off each other are drawn as
                they were sampled; independent episodes make no tree.
            grafts: Rewritten thoughts of the update.
            is_last: True if the run ends with the update.
        """
        is_due = update == 1 or is_last or (self._every > 0 and update % self._every == 0)
        if not is_due:
            return
        graphs = credit.graphs or forest_graphs(rollouts, credit.advantages)
        graphs = [attach_grafts(graph, grafts) for graph in graphs]
        lines = [json.dumps(self._describe(update, rollouts, one).to_dict()) for one in choose_graphs(graphs)]
        if lines:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(line + "\n" for line in lines))

    def _describe(self, update: int, rollouts: Rollouts, graph: CognitiveGraph) -> StoredTree:
        """Return a graph with the texts of its turns."""
        position = {episode.index: place for place, episode in enumerate(graph.episodes)}
        through: dict[int, list[int]] = {}
        for turn, episode in zip(*(axis.tolist() for axis in rollouts.paths), strict=True):
            if episode in position:
                through.setdefault(turn, []).append(position[episode])
        following = {
            int(rollouts.turn_parent[turn]): rollouts.turn_observation[turn]
            for turn in sorted(through, reverse=True)
        }
        turns = [
            TurnText(
                node=index,
                episodes=tuple(through.get(turn, ())),
                action=_cut("\n".join(rollouts.turn_actions[turn])),
                reply=_cut(self._decode(rollouts, turn)),
                observation=_cut(following.get(turn, "")),
            )
            for index, node in enumerate(graph.nodes)
            for turn in node.turns
        ]
        return StoredTree(update, graph, tuple(turns))

    def _decode(self, rollouts: Rollouts, turn: int) -> str:
        places = rollouts.action_offset[np.flatnonzero(rollouts.action_turn == turn)]
        ids = rollouts.turn_tokens[turn][places]
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=True))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT} more characters)"


def attach_grafts(graph: CognitiveGraph, grafts: Sequence[GraftText]) -> CognitiveGraph:
    """Return a graph with the rewritten thoughts of its divergences."""
    found = []
    for text in grafts:
        divergence = graph.find_divergence(text.pair) if text.pair.group == graph.group else None
        if divergence is not None:
            sides = _cut(text.chosen), _cut(text.rejected)
            found.append(Graft(divergence.node, *sides, valid=not text.fault, reason=text.fault))
    return replace(graph, grafts=tuple(found))


def choose_graphs(graphs: Sequence[CognitiveGraph], count: int = GROUPS) -> list[CognitiveGraph]:
    """Return the graphs that show most: rewritten thoughts, then divergences, then returns that differ."""
    order = sorted(graphs, key=lambda graph: (-len(graph.grafts), -len(graph.divergences), -graph.std))
    return order[:count]


def _read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's file, leaving out damaged ones."""
    found = read_jsonl(folder / FILE, damaged="skip")
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("update"), int)]


def read_trees(folder: Path) -> list[StoredTree]:
    """Return the trees of a run, oldest first, leaving out those that are damaged or of another version."""
    trees = []
    for record in _read_records(folder):
        try:
            trees.append(StoredTree.from_dict(record))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return sorted(trees, key=lambda tree: tree.update)


def pack_stored_trees(folder: Path) -> tuple[list[PackedTree], int]:
    """Return the trees of a run for its page, and the number of those that are left out for their size.

    Trees of the first and the last update are the last to be left out.
    """
    trees = read_trees(folder)
    placed = [(_place(tree), to_tree(tree)) for tree in trees]
    ends = {trees[0].update, trees[-1].update} if trees else set()
    by_rank = sorted(range(len(placed)), key=lambda index: trees[index].update not in ends)
    packed, left_out = pack_trees(placed[index] for index in by_rank)
    order = [place for place, _ in placed]
    return sorted(packed, key=lambda tree: order.index(tree.place)), left_out


def _place(tree: StoredTree) -> Place:
    solved = sum(episode.success for episode in tree.graph.episodes)
    group = f"group {tree.graph.group + 1}: {solved} of {len(tree.graph.episodes)} solved"
    return Place(f"update {tree.update}", "policy", group)


def to_tree(stored: StoredTree) -> Tree:
    """Return a tree as pages draw it."""
    graph = stored.graph
    paths = [episode.path for episode in graph.episodes]
    ends = [path[-1] if path else 0 for path in paths]
    taken: dict[tuple[int, int], list[int]] = {}
    for episode, path in enumerate(paths):
        for pair in pairwise(path):
            taken.setdefault(pair, []).append(episode)
    by_node: dict[int, list[TurnText]] = {}
    for turn in stored.turns:
        by_node.setdefault(turn.node, []).append(turn)
    nodes = tuple(
        Node(
            depth=node.depth,
            value=node.q,
            episodes=node.episodes,
            steps=tuple(_steps(by_node.get(index, ()))),
            ends=tuple(episode for episode in node.episodes if ends[episode] == index),
            advantage=node.advantage if index else None,
        )
        for index, node in enumerate(graph.nodes)
    )
    return Tree(
        task=graph.task,
        value_name="Q",
        observation=graph.nodes[0].observation or graph.task,
        episodes=tuple(
            Outcome(f"episode {number}", episode.reward, episode.success)
            for number, episode in enumerate(graph.episodes, 1)
        ),
        nodes=nodes,
        edges=tuple(Edge(*pair, tuple(episodes)) for pair, episodes in sorted(taken.items())),
        divergences=tuple(Divergence(*_values(one)) for one in graph.divergences),
        grafts=tuple(drawn.Graft(*_values(one)) for one in graph.grafts),
        notes=(f"Returns: mean {graph.mean:.3g}, standard deviation {graph.std:.3g}.",),
    )


def _values(record: Any) -> Iterator[Any]:
    return (getattr(record, field.name) for field in fields(record))


def _steps(turns: Sequence[TurnText]) -> list[Step]:
    """Return the distinct steps among the turns of a node, the most frequent first."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for turn in turns:
        found.setdefault((turn.action, turn.reply, turn.observation), []).extend(turn.episodes)
    steps = [Step(*texts, tuple(sorted(set(episodes)))) for texts, episodes in found.items()]
    return sorted(steps, key=lambda step: -len(step.episodes))
