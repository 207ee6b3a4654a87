"""Layered layout of an acyclic graph (Sugiyama et al., 1981): layers, order within layers, coordinates.

A graph of merged episodes has one source and at most as many nodes in a layer as episodes, so that a few sweeps of
the barycenter heuristic are enough.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

SWEEPS = 12
"""Passes over all layers, in alternating directions, to order nodes and again to place them."""


class Link(NamedTuple):
    """An edge to lay out.

    Attributes:
        source: Index of a node.
        target: Index of another node.
        weight: Positive weight: how strongly the edge is kept straight.
    """

    source: int
    target: int
    weight: float = 1.0


class Layout(NamedTuple):
    """Places of a graph's nodes and edges, in units of layers and lanes.

    Attributes:
        layer: Layer of each node, 0 for sources: the number of edges on the longest way to it.
        lane: Position of each node across its layer, from 0; nodes of a layer are at least 1 apart.
        routes: Of each edge the places (layer, lane) that it passes, its two ends included.
    """

    layer: list[int]
    lane: list[float]
    routes: list[list[tuple[int, float]]]


def lay_out(nodes: int, links: Sequence[Link]) -> Layout:
    """Return the places of the nodes and edges of an acyclic graph.

    Args:
        nodes: Number of nodes.
        links: Edges. Equal graphs have equal layouts.

    Raises:
        ValueError: The graph has a cycle.
    """
    layer = _assign_layers(nodes, links)
    # A place in every layer that an edge passes, so that edges, too, are ordered and kept apart.
    layer_of = list(layer)
    chains: list[list[int]] = []
    neighbors: list[tuple[dict[int, float], dict[int, float]]] = [({}, {}) for _ in range(nodes)]
    for link in links:
        chain = [link.source]
        for between in range(layer[link.source] + 1, layer[link.target]):
            chain.append(len(layer_of))
            layer_of.append(between)
            neighbors.append(({}, {}))
        chain.append(link.target)
        chains.append(chain)
        for before, after in itertools.pairwise(chain):
            neighbors[before][1][after] = neighbors[before][1].get(after, 0.0) + link.weight
            neighbors[after][0][before] = neighbors[after][0].get(before, 0.0) + link.weight
    layers = _order(layer_of, neighbors)
    lane = _place(layers, neighbors)
    routes = [[(layer_of[place], lane[place]) for place in chain] for chain in chains]
    return Layout(layer, lane[:nodes], routes)


def _assign_layers(nodes: int, links: Sequence[Link]) -> list[int]:
    """Return the length of the longest way to each node."""
    targets: list[list[int]] = [[] for _ in range(nodes)]
    waiting = [0] * nodes
    for link in links:
        targets[link.source].append(link.target)
        waiting[link.target] += 1
    layer = [0] * nodes
    ready = [node for node in range(nodes) if waiting[node] == 0]
    for node in ready:  # It grows while it is read.
        for target in targets[node]:
            layer[target] = max(layer[target], layer[node] + 1)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    if len(ready) < nodes:
        raise ValueError("the graph has a cycle, so that its nodes have no layers")
    return layer


_Neighbors = list[tuple[dict[int, float], dict[int, float]]]


def _order(layer_of: Sequence[int], neighbors: _Neighbors) -> list[list[int]]:
    """Return the places of each layer in an order with few crossings."""
    layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    seen: set[int] = set()
    stack = [place for place in range(len(layer_of)) if layer_of[place] == 0][::-1]
    while stack:  # In the order of a depth-first walk, a tree has no crossings.
        place = stack.pop()
        if place not in seen:
            seen.add(place)
            layers[layer_of[place]].append(place)
            stack.extend(reversed(neighbors[place][1]))
    best = [list(layer) for layer in layers]
    fewest = _crossings(best, neighbors)
    for sweep in range(SWEEPS):
        if fewest == 0:
            break
        side = sweep % 2
        for layer in layers if side == 0 else reversed(layers):
            rank = {place: index for one in layers for index, place in enumerate(one)}
            layer.sort(key=lambda place: _mean(neighbors[place][side], rank, rank[place]))
        crossings = _crossings(layers, neighbors)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    return best


def _mean(weights: dict[int, float], values: dict[int, int] | Sequence[float], default: float) -> float:
    """Return the weighted mean of the values of some places, or the default if there are none."""
    total = sum(weights.values())
    return sum(weight * values[place] for place, weight in weights.items()) / total if total else default


def _crossings(layers: Sequence[Sequence[int]], neighbors: _Neighbors) -> int:
    """Return the number of pairs of edges that cross."""
    crossings = 0
    for upper, lower in itertools.pairwise(layers):
        rank = {place: index for index, place in enumerate(lower)}
        ends = [rank[target] for place in upper for target in sorted(neighbors[place][1], key=rank.__getitem__)]
        crossings += sum(later < earlier for index, earlier in enumerate(ends) for later in ends[index + 1 :])
    return crossings


def _place(layers: Sequence[Sequence[int]], neighbors: _Neighbors) -> list[float]:
    """Return the lane of each place: near its neighbors, in the order of its layer, at least 1 from the next."""
    lane = [0.0] * len(neighbors)
    for layer in layers:
        for index, place in enumerate(layer):
            lane[place] = index - (len(layer) - 1) / 2
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = []
            for place in layer:
                before, after = neighbors[place]
                both = {**before, **after} if sweep >= SWEEPS - 2 else neighbors[place][sweep % 2]
                wanted.append(_mean(both, lane, lane[place]))
            for place, value in zip(layer, _spread(wanted), strict=True):
                lane[place] = value
    least = min(lane, default=0.0)
    return [round(value - least, 3) for value in lane]


def _spread(wanted: Sequence[float]) -> list[float]:
    """Return the positions nearest to the wanted ones (least squares) that ascend by at least 1.

    With y_i = z_i + i this is isotonic regression of z, by pooling adjacent violators.
    """
    pools: list[tuple[float, int]] = []
    for index, value in enumerate(wanted):
        total, count = value - index, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, size = pools.pop()
            total, count = total + before, count + size
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    return [mean + index for index, mean in enumerate(means)]
