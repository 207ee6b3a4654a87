"""Forks of conversations with a model: tokens, histories, the engine's cache, and usage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.base import Stop
from arboretum.agents.episode import Episode
from arboretum.agents.forks import Origin
from arboretum.agents.language import LanguageAgent
from arboretum.agents.play import Job, play
from arboretum.agents.reference import RandomAgent
from arboretum.agents.registry import LANGUAGE_AGENTS, make_agent
from arboretum.envs.registry import make_env

pytestmark = pytest.mark.heavy
pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")


@pytest.fixture
def engine(tiny_model: Path) -> Any:
    from arboretum.agents.engines.registry import make_engine

    engine = make_engine("transformers", str(tiny_model), context=8192, max_batch=8)
    yield engine
    engine.close()


def make(engine: Any, name: str = "think", temperature: float = 0.0, **dialogue: Any) -> LanguageAgent:
    sampling = {"max_tokens": 12, "temperature": temperature}
    agent = make_agent(name, engine=engine, sampling=sampling, dialogue={"max_turns": 6, **dialogue})
    assert isinstance(agent, LanguageAgent)
    agent.hold = True
    return agent


def record(agent: LanguageAgent, env_id: str = "TextSokoban-v0", **options: Any) -> Episode:
    (episode,) = play(agent, [make_env(env_id, **options)], [Job(None, 3)], keep={"forks"})
    assert episode.error is None
    return episode


def branch(agent: LanguageAgent, episode: Episode, turns: list[int], seed: int = 3) -> list[Episode]:
    envs = [make_env(episode.env) for _ in turns]
    jobs = [Job(None, seed, Origin(episode, n, redraw=False)) for n in turns]
    branches = sorted(play(agent, envs, jobs, keep={"forks"}), key=lambda one: one.details["reused_turns"])
    assert [one.details["reused_turns"] for one in branches] == turns
    return branches


def texts(episode: Episode) -> list[Any]:
    return [(turn.token_ids, turn.loss_mask, turn.restart, turn.reply, turn.moves) for turn in episode.turns]


@pytest.mark.parametrize("history", ["full", "window", "single"])
def test_forked_greedy_episode_equals_the_unforked_one_token_for_token(history: str, engine: Any) -> None:
    agent = make(engine, history=history, window=3)
    episode = record(agent)
    assert len(episode.turns) == 6
    for other in branch(agent, episode, [0, 1, 2, 3, 4, 5]):
        assert texts(other) == texts(episode)
        for turn, expected in zip(other.turns, episode.turns, strict=True):
            assert turn.logprobs == pytest.approx(expected.logprobs, abs=2e-4)
        assert [one.messages for one in other.exchanges] == [one.messages for one in episode.exchanges]
        # The record in a file is complete as well.
        assert texts(Episode.from_dict(other.to_dict())) == texts(episode)


@pytest.mark.parametrize("name", [name for name in LANGUAGE_AGENTS if name not in ("best_of_n", "mcts")])
def test_every_language_agent_forks(name: str, engine: Any) -> None:
    agent = make(engine, name)
    (episode,) = play(
        agent, [make_env("TextSearchQA-v0", dataset="encyclopedia", max_steps=4)], [Job(None, 3)], keep={"forks"}
    )
    envs = [make_env("TextSearchQA-v0", dataset="encyclopedia", max_steps=4)]
    turns = len(episode.turns) - 1
    (other,) = play(agent, envs, [Job(None, 3, Origin(episode, turns, redraw=False))])
    assert other.error is None and other.turns[:turns] == episode.turns[:turns]
    # At temperature 0, the fork continues as the original until the environment's success makes it retry.
    assert [turn.reply for turn in other.turns] == [turn.reply for turn in episode.turns]


def test_branches_reuse_the_cached_prefix_and_compute_their_own_tokens_only(engine: Any) -> None:
    agent = make(engine, temperature=1.0)
    episode = record(agent)
    before = engine.computed_tokens
    (one,) = branch(agent, episode, [4], seed=8)
    new = sum(len(turn.token_ids or ()) for turn in one.turns[4:])
    # The last sampled token of the shared turns is encoded again: its keys and values were never needed.
    assert engine.computed_tokens - before <= new + 1
    assert one.turns[4].reply != episode.turns[4].reply
    agent.release_held()
    before = engine.computed_tokens
    (same,) = branch(agent, episode, [4], seed=8)
    assert texts(same) == texts(one)
    assert engine.computed_tokens - before > new + 100


def test_conversations_are_released_unless_they_are_held(engine: Any) -> None:
    agent = make(engine)
    agent.hold = False
    record(agent)
    assert engine._cache.idle_tokens == 0
    agent.hold = True
    record(agent)
    assert engine._cache.idle_tokens > 0
    agent.release_held()
    assert engine._cache.idle_tokens == 0


def test_usage_of_a_branch_counts_its_own_replies_and_names_what_it_reused(engine: Any) -> None:
    agent = make(engine, temperature=1.0)
    episode = record(agent)
    (one,) = branch(agent, episode, [4], seed=8)
    sampled = [sum(turn.loss_mask or ()) for turn in one.turns]
    assert one.details["completion_tokens"] == sum(sampled[4:])
    assert (one.details["reused_turns"], one.details["reused_tokens"]) == (4, sum(sampled[:4]))
    (twig,) = branch(agent, one, [5], seed=9)
    assert twig.details["reused_tokens"] == sum(sampled[:5])
    assert twig.details["completion_tokens"] == sum(sum(turn.loss_mask or ()) for turn in twig.turns[5:])
    # The cached prefix is counted as such.
    assert one.details["cached_tokens"] > 0.8 * one.details["prompt_tokens"]


def test_saving_costs_no_copy_of_the_conversation(engine: Any) -> None:
    agent = make(engine)
    episode = record(agent)
    marks = [turn.fork.memory for turn in episode.turns if turn.fork is not None]
    assert len(marks) == 6
    assert len({id(mark.state.messages) for mark in marks}) == 1
    assert len({id(mark.state.tokens) for mark in marks[1:]}) == 1
    assert [mark.tokens for mark in marks] == sorted(mark.tokens for mark in marks)


@pytest.mark.parametrize("name", ["best_of_n", "mcts"])
def test_episodes_of_a_search_cannot_be_forked(name: str, engine: Any) -> None:
    with pytest.raises(Stop, match=f"episodes of agent {name} cannot be forked"):
        record(make(engine, name, temperature=1.0))


def test_language_agent_refuses_to_continue_an_episode_without_a_conversation(engine: Any) -> None:
    (episode,) = play(RandomAgent(), [make_env("TextSokoban-v0")], [Job(None, 3)], max_turns=4, keep={"forks"})
    with pytest.raises(Stop, match="cannot continue this episode, which has no conversation"):
        list(play(make(engine), [make_env("TextSokoban-v0")], [Job(None, 1, Origin(episode, 2))]))


def test_shared_turns_of_a_forked_retry_keep_its_earlier_trials(engine: Any) -> None:
    agent = make(engine, "reflexion", max_turns=3)
    (episode,) = play(agent, [make_env("TextSokoban-v0")], [Job(None, 3)], keep={"forks"})
    assert len(episode.trials) == 3 and len(episode.turns) == 3
    (other,) = play(agent, [make_env("TextSokoban-v0")], [Job(None, 3, Origin(episode, 1, redraw=False))])
    assert other.trials == episode.trials
    assert texts(other) == texts(episode)
