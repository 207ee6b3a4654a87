"""Cognitive graphs as plain data."""

from __future__ import annotations

import json
from dataclasses import replace

from arboretum.trainers.data.cognitive_graph import (
    CognitiveGraph,
    DivergencePair,
    Graft,
    GraphDivergence,
    GraphEdge,
    GraphEpisode,
    GraphNode,
)


def test_graph_survives_json() -> None:
    graph = CognitiveGraph(
        group=3,
        task="P _ G",
        mean=0.5,
        std=0.7071,
        nodes=(
            GraphNode(0, (), (0, 1), 0.5, 0.0, (), "P _ G"),
            GraphNode(1, (4,), (0,), 1.0, 0.7, ("Right; Right",), None),
            GraphNode(1, (7, 9), (1,), 0.0, -0.7, ("Left",), "P _ G"),
        ),
        edges=(GraphEdge(0, 1, 1, 0.5), GraphEdge(0, 2, 1, 0.5)),
        divergences=(GraphDivergence(0, 1, 2, 1.0),),
        episodes=(GraphEpisode(6, 1.0, True, (0, 1)), GraphEpisode(7, 0.0, False, (0, 2))),
        grafts=(
            Graft(0, "The goal is to the right.", "I go left.", True),
            Graft(0, "", "I go left.", False, "empty"),
        ),
    )
    assert CognitiveGraph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph
    assert graph.find_divergence(DivergencePair(3, 4, 9, 1.0)) == graph.divergences[0]
    assert graph.find_divergence(DivergencePair(3, 9, 4, 1.0)) is None
    record = graph.to_dict()
    del record["grafts"]
    assert CognitiveGraph.from_dict(record) == replace(graph, grafts=())
