"""Tool calls of the environments, and budgets of chains in training metrics."""

from __future__ import annotations

from typing import Any

import pytest

from arboretum.agents.play import Job, play
from arboretum.agents.reference import ExpertAgent
from arboretum.trainers.sampling.budget import Budget
from support.environments import embedded_data, make

__all__ = ["embedded_data"]


@pytest.mark.parametrize(
    ("env", "options", "calls", "others"),
    [
        (
            "TextSearchQA-v0",
            {},
            ["<search>who wrote it</search>", "<think>hm</think><search>x</search>"],
            ["<answer>x</answer>", "search", ""],
        ),
        (
            "TextSearchQA-v0",
            {"protocol": "react"},
            ["search[Milhouse]", "Action: Search[Milhouse]"],
            ["lookup[x]", "finish[x]"],
        ),
        ("TextWebShop-v0", {}, ["search[red shoes]"], ["click[buy now]", "click[search]", "search"]),
        ("TextSokoban-v0", {}, [], ["Up", "search[box]"]),
    ],
    ids=["tags", "react", "webshop", "sokoban"],
)
def test_searches_are_tool_calls(env: str, options: dict[str, Any], calls: list[str], others: list[str]) -> None:
    made = make(env, **options)
    assert all(made.calls_tool(action) for action in calls)
    assert not any(made.calls_tool(action) for action in others)


@pytest.mark.parametrize("env", ["TextSearchQA-v0", "TextWebShop-v0", "TextALFWorld-v0"])
def test_tool_calls_of_an_expert_are_its_searches(env: str) -> None:
    made = make(env)
    (episode,) = play(ExpertAgent(), [made], [Job(None, 0)])
    spent = Budget.spent([(episode, 0)], made.calls_tool)
    searches = sum("search" in move.action for turn in episode.turns for move in turn.moves)
    assert (spent.steps, spent.tool_calls) == (episode.steps, searches)
    assert (searches > 0) == (env != "TextALFWorld-v0")
