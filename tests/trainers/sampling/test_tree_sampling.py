"""Trees sampled from a language model: exact tokens whatever the batch, histories that are cut, and the cache."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.engines.base import Sampling
from arboretum.agents.engines.transformers import TransformersEngine
from arboretum.agents.play import play
from arboretum.eval.bench.tiny import make_tiny_model
from arboretum.trainers.algorithms.samplers import Trees
from arboretum.trainers.data.episodes import from_episodes
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.sampling.budget import Budget
from arboretum.trainers.sampling.policy_agent import PolicyAgent
from arboretum.trainers.sampling.tree_growth import Prompt, TreeEpisode, TreeGrowth, arrange_forest, tree_metrics
from support.environments import make

TURNS = 6
SHAPE = Trees(trees=2, expansions=3, rounds=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=64)


@pytest.fixture
def engine(model: Path) -> Iterator[TransformersEngine]:
    made = TransformersEngine(model, device="cpu", max_batch=8, processed_logprobs=True)
    yield made
    made.close()


def grow(
    engine: TransformersEngine,
    settings: Trees = SHAPE,
    *,
    prompts: int = 2,
    at_once: int = 8,
    env: str = "TextSokoban-v0",
    **dialogue: Any,
) -> list[TreeEpisode]:
    """Return the episodes of trees of a model whose replies are random text."""
    limits = {"max_turns": TURNS, "max_actions_per_turn": 1, "max_actions": None, **dialogue}
    agent = PolicyAgent(
        "policy", engine, make_dialogue("no_think", limits), Sampling(temperature=1.0, max_tokens=6)
    )
    envs = [make(env, max_steps=None) for _ in range(at_once)]
    starts = [Prompt((0, number), envs[0].tasks[number]) for number in range(prompts)]
    growth = TreeGrowth(starts, settings, seed=0, release=agent.release_held)
    with agent.holding():
        for episode in play(agent, envs, growth.jobs, keep={"forks", "states"}):
            growth.add(episode)
    return growth.episodes()


def rollouts_of(played: list[TreeEpisode]) -> Rollouts:
    forest = arrange_forest(played)
    return from_episodes(forest.episodes, forest.groups, trees=forest.trees, branches=forest.branches)


def sampled(played: list[TreeEpisode]) -> list[Any]:
    """Return the tokens of every turn of every episode."""
    return [(one.shared, [turn.token_ids for turn in one.episode.turns]) for one in played]


def rescored(engine: TransformersEngine, rollouts: Rollouts) -> list[float]:
    """Return the log-probability of every copy of a sampled token, computed from its whole conversation."""
    scores = []
    with torch.no_grad():
        logps = [
            torch.log_softmax(engine.model(torch.tensor(row)[None]).logits[0].double(), -1)
            for row in rollouts.rows
        ]
    for action, _, _, row in zip(*rollouts.copies, strict=True):
        position = rollouts.action_position[action]
        scores.append(float(logps[row][position - 1, rollouts.rows[row][position]]))
    return scores


@pytest.mark.parametrize("choice", ["random", "entropy", "value"])
def test_tokens_depend_neither_on_the_batch_nor_on_the_other_prompts(engine: Any, choice: Any) -> None:
    settings = Trees(trees=2, expansions=2, rounds=2, choice=choice)
    reference = sampled(grow(engine, settings))
    assert sampled(grow(engine, settings, at_once=1)) == reference
    assert sampled(grow(engine, settings, prompts=1)) == reference[: len(reference) // 2]
    assert any(shared for shared, _ in reference)


@pytest.mark.parametrize("dialogue", [{}, {"history": "window", "window": 2}, {"history": "single"}], ids=str)
def test_log_probabilities_of_branches_are_those_of_their_whole_conversations(
    engine: TransformersEngine, dialogue: dict[str, Any]
) -> None:
    played = grow(engine, **dialogue)
    rollouts = rollouts_of(played)
    assert max(one.shared for one in played) > 1
    # A history that was cut begins a new conversation in every later turn.
    assert rollouts.turn_restart.any() == bool(dialogue)
    found = rollouts.logprobs[rollouts.copies.action]
    np.testing.assert_allclose(found, rescored(engine, rollouts), atol=1e-4)
    assert rollouts.episode_lengths.tolist() == [
        sum(sum(turn.loss_mask or ()) for turn in one.episode.turns) for one in played
    ]


def test_shared_prefixes_are_not_encoded_again(engine: TransformersEngine) -> None:
    engine.end_ids = frozenset()  # All replies have the same length.
    before = engine.computed_tokens
    played = grow(engine)
    new = sum(len(turn.token_ids or ()) for one in played for turn in one.episode.turns[one.shared :])
    again = sum(len(turn.token_ids or ()) for one in played for turn in one.episode.turns[: one.shared])
    assert engine.computed_tokens - before <= 1.1 * new
    assert again > 0.3 * new


def test_held_conversations_are_released_with_their_prompt(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []
    release = engine.release
    monkeypatch.setattr(engine, "release", lambda name: (released.append(name), release(name)))
    seen: list[int] = []
    finish = TreeGrowth._finish

    def counting(self: TreeGrowth, plot: Any) -> None:
        finish(self, plot)
        seen.append(len(released))

    monkeypatch.setattr(TreeGrowth, "_finish", counting)
    played = grow(engine, prompts=3)
    per_prompt = len(played) // 3
    assert seen == [per_prompt, 2 * per_prompt, 3 * per_prompt]
    assert len(set(released)) == len(played)


def test_budget_and_statistics_of_trees(engine: TransformersEngine) -> None:
    played = grow(engine)
    budget = Budget.spent(((one.episode, one.shared) for one in played), lambda action: False)
    rollouts = rollouts_of(played)
    assert budget.tokens == rollouts.actions
    assert budget.tokens + budget.reused_tokens == len(rollouts.copies.action)
    assert budget.steps == len(played) * TURNS - sum(one.shared for one in played)
    found = tree_metrics(played)
    assert (found["trees"], found["leaves"], found["expansions"]) == (4, 7, 24)
    assert found["expansion_depth"] == np.mean([one.shared for one in played if one.number])


def test_context_that_is_full_ends_branches_without_another_attempt(model: Path) -> None:
    """No branch begins before a turn whose prompt did not fit; every branch has a sampled token of its own."""
    engine = TransformersEngine(model, device="cpu", max_batch=8, context=700)
    played = grow(engine, Trees(trees=2, expansions=6), max_turns=50)
    ends = [one.episode.turns[-1] for one in played]
    assert any(turn.cut and not turn.token_ids for turn in ends)
    assert all(any(turn.token_ids for turn in one.episode.turns[one.shared :]) for one in played)
    rollouts = rollouts_of(played)
    assert rollouts.episodes == len(played) and rollouts.cut_off.all()
    engine.close()


def test_random_nodes_of_long_episodes_cost_the_expected_budget(engine: TransformersEngine) -> None:
    """M + M·L·N/2 episodes (Tree-GRPO), where episodes have the same length T; nodes leave (T + 1)/2 turns."""
    engine.end_ids = frozenset()
    shape = Trees(trees=2, expansions=4)
    played = grow(engine, shape, prompts=4)
    budget = Budget.spent(((one.episode, one.shared) for one in played), lambda action: False)
    episodes = budget.tokens / (TURNS * 6) / 4
    exact = 2 + 2 * 4 * (TURNS + 1) / (2 * TURNS)
    drawn = np.std([random.Random(i).randrange(TURNS) for i in range(1000)]) / TURNS
    assert episodes == pytest.approx(exact, abs=3 * drawn * np.sqrt(32) / 4)
