"""Environments in SkyRL gym, made by its own registry."""

from __future__ import annotations

from typing import Any

import pytest

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env
from support.chat_server import model_replies
from support.evaluators import LAKE

REPLIES = ["<think>a</think><answer>Up || Left</answer>", "?", "<think>b</think><answer>Down</answer>"]


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SkyRL gym with our environment, in a registry of its own, since an example of the pages registers it."""
    gym = pytest.importorskip("skyrl_gym", reason="needs skyrl-gym: pip install arboretum-rl[skyrl]")
    monkeypatch.setattr(gym.envs.registration, "registry", {})
    gym.register("arboretum", entry_point="arboretum.agents.adapters.skyrl:SkyRLEnv")
    return gym


@pytest.mark.heavy
def test_members_of_a_group_play_the_episode_of_the_conversation(gym: Any) -> None:
    from arboretum.agents.adapters.skyrl import rows

    options = {"max_turns": 3}
    (row,) = rows("TextSokoban-v0", 1, dialogue_options=options, env_options=None)
    chat = EpisodeChat(make_env("TextSokoban-v0"), make_dialogue("think", options))
    chat.open(row["task"], row["seed"])
    members = [gym.make(row["env_class"], env_config={}, extras=row) for _ in range(2)]
    for env in members:
        messages, info = env.init(row["prompt"])
        assert messages == row["prompt"] and info == {"task": row["task"], "seed": row["seed"]}
    for number, reply in enumerate(REPLIES):
        heard = chat.hear(reply)
        outputs = [env.step(reply) for env in members]
        assert outputs[0] == outputs[1]
        assert outputs[0]["reward"] == heard.reward + heard.penalty
        assert outputs[0]["done"] is heard.done is (number == 2)
        assert [m["content"] for m in outputs[0]["observations"]] == [m.content for m in heard.messages]
    assert members[0].get_metrics() == {"success": 0.0, "turns": 3, "invalid_actions": chat.episode.invalid}
    assert type(members[0]).aggregate_metrics([members[0].get_metrics()])["turns"] == 3


@pytest.mark.heavy
def test_bad_rows_are_rejected_in_one_sentence(gym: Any) -> None:
    extras = {"env": "TextSokoban-v0", "dialogue_options": {"history": "single"}}
    with pytest.raises(ConfigurationError, match='set history="full"'):
        gym.make("arboretum", env_config={}, extras=extras)
    env = gym.make("arboretum", env_config={}, extras={"env": "TextBandit-v0", "task": "nowhere"})
    with pytest.raises(ConfigurationError, match="nowhere"):
        env.init([])


@pytest.mark.heavy
def test_episodes_are_played_by_a_model(gym: Any) -> None:
    from arboretum.agents.adapters.skyrl import rows

    dialogue = make_dialogue("no_think")
    sample = model_replies("sapling", dialogue, 32)
    gathered = []
    for row in rows("TextFrozenLake-v0", 4, "no_think", env_options=LAKE):
        env = gym.make(row["env_class"], env_config={}, extras=row)
        messages, _ = env.init(row["prompt"])
        chat = EpisodeChat(make_env("TextFrozenLake-v0", **LAKE), dialogue)
        chat.open(row["task"], row["seed"])
        rewards, done = 0.0, False
        while not done:
            assert messages == [{"role": message.role, "content": message.content} for message in chat.prompt]
            reply = sample(messages).text or ""
            chat.hear(reply)
            # A server that knows no stop texts returns what the model goes on to write.
            output = env.step(reply + " and so on")
            rewards, done = rewards + output["reward"], output["done"]
            messages = [*messages, {"role": "assistant", "content": reply}, *output["observations"]]
        assert chat.done and rewards == chat.score
        gathered.append(env.get_metrics())
    assert gym.envs.base_text_env.BaseTextEnv.aggregate_metrics(gathered)["success"] == 1.0
