"""Environments in SkyRL gym, made by its own registry, and in a step of SkyRL's trainer."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.adapters.rows import as_dicts, metrics
from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.engines.shipped_models import model_source
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env
from support.chat_server import model_replies
from support.evaluators import LAKE
from support.neighbours import ROOT, neighbour

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
    with pytest.raises(ConfigurationError, match="the row has no column `env`"):
        gym.make("arboretum", env_config={}, extras={"task": "nowhere"})
    env = gym.make("arboretum", env_config={}, extras={"env": "TextBandit-v0", "task": "nowhere"})
    with pytest.raises(ConfigurationError, match="nowhere"):
        env.init([])


@pytest.mark.heavy
def test_rows_are_refused_that_could_not_be_played(gym: Any) -> None:
    from arboretum.agents.adapters.skyrl import rows

    with pytest.raises(ConfigurationError, match="this adapter sends no function schemas"):
        rows("TextSokoban-v0", 1, "tools")
    with pytest.raises(TypeError, match="dialogue_option"):
        rows("TextSokoban-v0", 1, dialogue_option={"max_turns": 3})


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


@pytest.mark.heavy
@pytest.mark.timeout(1000)
@pytest.mark.usefixtures("gym")
def test_skyrl_trains_a_model_for_one_step_on_groups_of_episodes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    skyrl = neighbour("verl", tmp_path)
    from arboretum.agents.adapters.skyrl import rows

    options, env_options, model = {"max_turns": 4}, {"split": "train"}, model_source("sapling")
    given = rows("TextFrozenLake-v0", 4, "no_think", dialogue_options=options, env_options=env_options)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, given)), encoding="utf-8")
    program = ROOT / "tests" / "support" / "skyrl_step.py"
    arguments = [model, tmp_path / "rows.jsonl", tmp_path / "out.json"]
    # The library that reads the rows writes to the home folder.
    variables = {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    skyrl.run("python", "-P", program, *arguments, cwd=tmp_path, timeout=900, **variables)
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    assert Counter(map(tuple, result["rows"])) == {(row["task"], row["seed"]): 8 for row in given}
    names = ("rows", "prompts", "responses", "mask", "rewards", "metrics")
    for (task, seed), prompt, response, mask, rewards, figures in zip(*map(result.get, names), strict=True):
        chat = EpisodeChat(make_env("TextFrozenLake-v0", **env_options), make_dialogue("no_think", options))
        messages, expected = as_dicts(chat.open(task, seed)), []
        for sampled, part in groupby(zip(response, mask, strict=True), key=lambda token: token[1]):
            ids = [token for token, _ in part]
            if sampled:
                reply = tokenizer.decode(ids)
                heard = chat.hear(reply)
                messages += [{"role": "assistant", "content": reply}, *as_dicts(heard.messages)]
                expected += [0.0] * len(ids)
            else:
                # SkyRL ends the turn of a reply that ends at the stop text, and gives its reward to this token.
                assert ids[0] == tokenizer.eos_token_id
                expected += [heard.reward + heard.penalty] + [0.0] * (len(ids) - 1)
        assert chat.done and rewards == pytest.approx(expected) and figures == metrics(chat.episode)
        assert tokenizer.decode(prompt + response) == tokenizer.apply_chat_template(messages, tokenize=False)
    assert max(figures["turns"] for figures in result["metrics"]) > 1
    assert result["steps"] == 1 and result["masked"] == sum(map(sum, result["mask"]))
    # The model assigns the log-probabilities of sampling to the tokens of the batch.
    assert result["difference"] < 1e-4
    assert any(result["advantages"]) and result["gain"] > 0
