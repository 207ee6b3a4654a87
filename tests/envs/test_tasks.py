"""Environments may have no state keys: nothing then counts as a repetition of anything."""

from __future__ import annotations

import pytest

from arboretum.agents.play import Job, play
from arboretum.agents.registry import make_agent
from arboretum.envs.open_episode import own_class
from arboretum.envs.registry import make_env
from arboretum.envs.tasks import distinct_tasks
from arboretum.eval.decisions import EpisodeDecisions, label_episode


def test_tasks_without_state_keys_all_are_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env("TextSokoban-v0", split="test")
    monkeypatch.setattr(own_class(type(env)), "state_key", lambda self: None)
    assert distinct_tasks(env, 5) == list(env.tasks[:5])


def test_decisions_without_state_keys_have_the_same_regrets_and_no_repetitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = make_env("TextBlocksworld-v0", blocks=3)
    episodes = list(play(make_agent("random"), [env], [Job(None, seed) for seed in range(8)]))
    expected = [label_episode(env, episode) for episode in episodes]
    monkeypatch.setattr(own_class(type(env)), "state_key", lambda self: None)
    found = [label_episode(env, episode) for episode in episodes]
    repeated = 0
    for before, after in zip(expected, found, strict=True):
        assert isinstance(before, EpisodeDecisions) and isinstance(after, EpisodeDecisions)
        regrets = [[(one.value_regret, one.step_regret) for one in labels.decisions] for labels in (before, after)]
        assert regrets[0] == regrets[1]
        repeated += sum(one.repeated or one.returned for one in before.decisions)
        assert not any(one.repeated or one.returned for one in after.decisions)
    assert repeated > 0
