"""Actions as functions: schemas, and the way from an action to a call and back."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.envs.core import TextEnv
from arboretum.envs.registry import ENVS, make_env
from arboretum.envs.tools import ANY_ACTION, Parameter, Tool, find_call

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((spec.id, {"homes": "full"} if spec.id == "TextALFWorld-v0" else {}) for spec in ENVS),
    ("TextBlocksworld-v0", {"notation": "pddl"}),
    ("TextBlocksworld-v0", {"mode": "plan"}),
    ("TextSearchQA-v0", {"protocol": "react"}),
]


@pytest.mark.parametrize(("env_id", "options"), OPTIONS)
def test_plans_of_the_expert_are_calls_and_play_the_same(env_id: str, options: dict[str, Any]) -> None:
    env: TextEnv[Any] = make_env(env_id, **options)
    for seed in range(3):
        env.reset(seed=seed)
        tools = env.tools
        for _ in range(12):
            plan = env.expert_actions()
            if not plan:
                break
            for action in plan:
                found = find_call(tools, action)
                assert found is not None, action
                assert found[0].action(found[1]) == action
            assert env.step(plan[0])[-1]["valid"]
            assert env.tools == tools  # constant within an episode


@pytest.mark.parametrize(("env_id", "options"), OPTIONS)
def test_admissible_actions_are_calls_within_the_listed_choices(env_id: str, options: dict[str, Any]) -> None:
    env: TextEnv[Any] = make_env(env_id, **options)
    before = env.tools
    env.reset(seed=5)
    for action in env.admissible_actions() or ():
        found = find_call(env.tools, action)
        assert found is not None, action
        tool, arguments = found
        for parameter in tool.parameters:
            assert not parameter.choices or arguments[parameter.name] in parameter.choices
    # A task changes the listed choices only.
    assert [(tool.name, tool.form) for tool in before] == [(tool.name, tool.form) for tool in env.tools]


def test_functions_are_named_after_the_verbs_of_the_environment() -> None:
    named = {spec.id: [tool.name for tool in make_env(spec.id).tools] for spec in ENVS}
    assert named["TextSokoban-v0"] == named["TextFrozenLake-v0"] == named["TextBandit-v0"] == ["act"]
    assert named["TextBlocksworld-v0"] == ["pick_up", "put_down", "stack", "unstack"]
    assert named["TextWebShop-v0"] == ["search", "click"]
    assert named["TextSearchQA-v0"] == ["search", "answer"]
    assert {"look", "go_to", "open", "take", "move", "examine", "use"} <= {*named["TextALFWorld-v0"]}


def test_schema_lists_the_actions_as_an_enum() -> None:
    (tool,) = make_env("TextSokoban-v0").tools
    parameters = tool.schema()["function"]["parameters"]
    assert parameters["properties"]["action"]["enum"] == ["Up", "Down", "Left", "Right"]
    assert parameters["required"] == ["action"] and parameters["additionalProperties"] is False
    bandit = make_env("TextBandit-v0")
    bandit.reset(seed=0)
    assert bandit.tools[0].parameters[0].choices == ("Pharmacist", "Musician")


def test_an_environment_without_functions_of_its_own_takes_any_action() -> None:
    class Plugin(type(make_env("TextBandit-v0"))):  # type: ignore[misc]
        tools = TextEnv.tools

    assert isinstance(Plugin(), gym.Env) and Plugin().tools == (ANY_ACTION,)


PUT = Tool("put", "Put.", "put {thing} in {place}", (Parameter("thing", "It."), Parameter("place", "Where.")))


@given(thing=st.text(max_size=8), place=st.text(max_size=8))
def test_a_call_found_for_an_action_is_that_action(thing: str, place: str) -> None:
    action = PUT.action({"thing": thing, "place": place})
    found = PUT.arguments(action)
    assert found is not None and PUT.action(found) == action
    assert PUT.arguments(f"take {thing}") is None and PUT.arguments(f"put {thing}"[:5]) is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"thing": "cup"}, "put needs the argument 'place'"),
        ({"thing": 3, "place": "sink"}, "the argument 'thing' of put must be a string"),
        ({"thing": "a", "place": "b", "how": "c"}, "put has no argument 'how'; its arguments are thing, place"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as raised:
        PUT.action(arguments)
    assert str(raised.value) == sentence
