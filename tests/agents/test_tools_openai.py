"""Function calls over HTTP: what a server receives and what becomes of its replies."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs the extra openai")
pytest.importorskip("stamina", reason="needs the extra openai")

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.engines.openai import OpenAIEngine
from arboretum.agents.episode import Episode
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.agents.language import LanguageAgent
from arboretum.agents.play import Job, play
from arboretum.envs.registry import make_env
from arboretum.envs.tools import find_call
from arboretum.eval.bench.endpoint import Endpoint, ScriptedResponse
from support.openai import Make, calls, says


def episode_of(engine: OpenAIEngine, env_id: str, **options: Any) -> Episode:
    agent = LanguageAgent("direct", engine, make_dialogue("tools", options))
    (episode,) = play(agent, [make_env(env_id)], [Job(None, 1)])
    return episode


def plan_as_calls(env_id: str) -> list[ScriptedResponse]:
    env = make_env(env_id)
    env.reset(seed=1)
    found = [find_call(env.tools, action) for action in env.expert_actions() or ()]
    return [calls((call[0].name, call[1]), reasoning_content=f"step {n}") for n, call in enumerate(found) if call]


@pytest.mark.parametrize("env_id", ["TextSokoban-v0", "TextBlocksworld-v0", "TextWebShop-v0", "TextSearchQA-v0"])
def test_model_that_calls_the_experts_plan_solves_the_task(env_id: str, endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend(plan_as_calls(env_id))
    steps = len(endpoint.script)
    episode = episode_of(make(), env_id)
    assert episode.success and episode.steps == steps and episode.invalid == 0 and episode.total_penalty == 0
    assert [turn.thought for turn in episode.turns] == [f"step {n}" for n in range(steps)]
    bodies = [body for _, _, body in endpoint.requests]
    assert all(body["tools"] == bodies[0]["tools"] for body in bodies)  # constant, so that prompts are append-only
    assert bodies[0]["tools"][0]["type"] == "function" and "stop" not in bodies[0]
    for before, after in pairwise(bodies):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assistant, answer = after["messages"][len(before["messages"]) :]
        (made,) = assistant["tool_calls"]
        assert assistant["content"] is None and assistant["reasoning_content"].startswith("step")
        assert made["id"] == answer["tool_call_id"] == f"call-{made['function']['name']}-0"
        assert answer["role"] == "tool" and isinstance(json.loads(made["function"]["arguments"]), dict)
    assert Episode.from_dict(json.loads(json.dumps(episode.to_dict()))).exchanges == episode.exchanges


def test_broken_calls_are_answered_counted_and_sent_back_as_valid_requests(endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend(
        [
            calls(("act", '{"action": "Up')),
            calls(("go fast!", {"action": "Up"})),
            calls(("act", {"action": "Up"}), ("act", {})),
            says("I would go up."),
            calls(("act", {"action": "Up"})),
        ]
    )
    episode = episode_of(make(), "TextSokoban-v0", max_turns=5, max_actions_per_turn=2)
    assert [turn.well_formed for turn in episode.turns] == [False, False, False, False, True]
    assert episode.total_penalty == pytest.approx(-0.4)
    assert '"arguments": "{\\"action\\": \\"Up"' in episode.turns[0].reply  # as the model wrote it
    *_, (_, _, body) = endpoint.requests
    answers = [message["content"] for message in body["messages"] if message["role"] in ("tool", "user")][1:]
    assert "the arguments of act are not a JSON object" in answers[0]
    assert "there is no function 'go fast!'; the functions are act" in answers[1]
    assert answers[2] == "Done." and "act needs the argument 'action'" in answers[3]
    assert answers[4].startswith("Your reply called no function.")
    sent = [call["function"] for message in body["messages"] for call in message.get("tool_calls", ())]
    assert [one["name"] for one in sent] == ["act", "go_fast_", "act", "act"]
    assert all(isinstance(json.loads(one["arguments"]), dict) for one in sent)


def test_cached_calls_are_played_again_without_requests_and_replayed_from_the_record(
    endpoint: Endpoint, make: Make, tmp_path: Path
) -> None:
    endpoint.script.extend(plan_as_calls("TextSokoban-v0"))
    options: dict[str, Any] = {"cache": tmp_path / "replies.sqlite", "prices": {"input": 10, "output": 20}}
    first = episode_of(make(**options), "TextSokoban-v0")
    requests = len(endpoint.requests)
    engine = make(**options)
    second = episode_of(engine, "TextSokoban-v0")
    assert len(endpoint.requests) == requests == engine.cache_hits and engine.usage.cost == 0
    replies = [turn.reply for turn in first.turns]
    assert [turn.reply for turn in second.turns] == replies
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("tools"))
    chat.open(seed=1)
    for reply in replies:
        chat.hear(reply)
    assert chat.episode.success and chat.episode.exchanges == first.exchanges


def test_schemas_count_towards_the_largest_cost_of_a_request(endpoint: Endpoint, make: Make) -> None:
    from arboretum.agents.base import Stop

    engine = make(prices={"input": 1e6, "output": 0}, cost_limit=1.0)
    with pytest.raises(Stop) as raised:
        episode_of(engine, "TextBlocksworld-v0")
    cost = float(str(raised.value).split("cost up to $")[1].split(";")[0])
    schemas = [tool.schema() for tool in make_env("TextBlocksworld-v0").tools]
    assert cost > len(json.dumps(schemas)) and not endpoint.requests


@pytest.mark.parametrize("tool_calls", ["x", [{}], [{"function": None}], 3])
def test_malformed_response_is_retried(tool_calls: Any, endpoint: Endpoint, make: Make) -> None:
    endpoint.script.extend([calls(tool_calls=tool_calls), calls(("act", {"action": "Up"}))])
    engine = make()
    episode = episode_of(engine, "TextSokoban-v0", max_turns=1)
    assert engine.retries == 1 and episode.turns[0].moves[0].action == "Up"


def test_server_without_functions_stops_the_run_with_its_own_words(endpoint: Endpoint, make: Make) -> None:
    from arboretum.agents.base import Stop

    reason = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    endpoint.script.append(ScriptedResponse(status=400, body={"error": {"message": reason, "code": 400}}))
    with pytest.raises(Stop, match="--enable-auto-tool-choice"):
        episode_of(make(), "TextSokoban-v0")


def test_calls_as_plain_text_of_a_server_without_a_parser_are_understood(endpoint: Endpoint, make: Make) -> None:
    text = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "act", "arguments": {"action": "Up"}}\n</tool_call>'
    endpoint.script.append(says(text))
    episode = episode_of(make(), "TextSokoban-v0", max_turns=1)
    assert episode.turns[0].well_formed and episode.turns[0].thought == "hm"
