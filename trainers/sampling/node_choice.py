"""Choice of the nodes at which trees are expanded. All functions are pure; randomness comes from the `rng` given.

A further choice is a function of the type `NodeRule`, a line in `NODE_RULES`, and a name in `samplers.NodeChoice`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from ...agents.episode import Turn
from ..algorithms.samplers import NodeChoice
from .tree import Node, Tree

NodeRule = Callable[[Sequence[Tree], int, int, random.Random], list[Node]]
"""Function of the trees of a prompt, the index of the tree to expand, the number of expansions and a generator; it
returns the nodes to expand, one for each expansion."""

_DIGITS = 6
"""Decimal digits in which scores are compared. The batch size changes log-probabilities in later ones."""


def choose_random(trees: Sequence[Tree], index: int, count: int, rng: random.Random) -> list[Node]:
    """Draw nodes uniformly, with replacement (Tree-GRPO, arXiv:2509.21240, sec. 3.2)."""
    return rng.choices(trees[index].expandable(), k=count)


def choose_uncertain(trees: Sequence[Tree], index: int, count: int, rng: random.Random) -> list[Node]:
    """Return the nodes whose next turns were the most uncertain.

    The score of a node is the mean surprisal -log π, in nats, of the tokens sampled in the turns after it, which
    estimates the policy's entropy per token there without bias.
    """
    nodes = trees[index].expandable()
    return best_nodes(nodes, [mean_surprisal(node.next_turns) for node in nodes], count, rng)


def choose_by_spread(trees: Sequence[Tree], index: int, count: int, rng: random.Random) -> list[Node]:
    """Return the nodes in whose state the further returns differ most between episodes of the prompt.

    The score of a node is the standard deviation (n - 1) of the returns from its state on, over all visits of that
    state in all trees of the prompt; 0 for a state that was visited once. States are compared by `state_key()`.
    """
    spreads = return_spreads(trees)
    nodes = trees[index].expandable()
    scores = [max((spreads.get(turn.state_key, 0.0) for turn in node.next_turns), default=0.0) for node in nodes]
    return best_nodes(nodes, scores, count, rng)


NODE_RULES: Mapping[NodeChoice, NodeRule] = {
    "random": choose_random,
    "entropy": choose_uncertain,
    "value": choose_by_spread,
}
"""Rules by the value of `sampler.choice`."""


def best_nodes(nodes: Sequence[Node], scores: Sequence[float], count: int, rng: random.Random) -> list[Node]:
    """Return the nodes of highest score, each once before any is repeated; ties are broken by the generator."""
    order = list(range(len(nodes)))
    rng.shuffle(order)
    order.sort(key=lambda i: -round(scores[i], _DIGITS))  # stable
    return [nodes[order[i % len(order)]] for i in range(count)]


def mean_surprisal(turns: Sequence[Turn]) -> float:
    """Return the mean of -log π over the sampled tokens of some turns, in nats; 0 without any."""
    surprisals = [
        -logprob
        for turn in turns
        for logprob, sampled in zip(turn.logprobs or (), turn.loss_mask or (), strict=True)
        if sampled
    ]
    return float(np.mean(surprisals)) if surprisals else 0.0


def return_spreads(trees: Sequence[Tree]) -> dict[Hashable, float]:
    """Return the standard deviation (n - 1) of the undiscounted returns from every state on, by state key."""
    returns: dict[Hashable, list[float]] = defaultdict(list)
    for tree in trees:
        for episode in tree.episodes:
            remaining = 0.0
            for turn in reversed(episode.turns):
                remaining += sum(move.reward for move in turn.moves)
                if turn.state_key is not None:
                    returns[turn.state_key].append(remaining)
    return {key: float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for key, values in returns.items()}
