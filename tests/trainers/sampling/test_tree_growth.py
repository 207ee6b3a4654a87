"""Growth of trees in real environments: independent of order and concurrency, and defined where episodes fail."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from arboretum.agents.base import Agent, Reply
from arboretum.agents.episode import Episode
from arboretum.agents.forks import Keep
from arboretum.agents.play import play
from arboretum.agents.reference import RandomAgent
from arboretum.envs.core import TextEnv
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake import FrozenLake
from arboretum.trainers.algorithms.samplers import Trees
from arboretum.trainers.data.episodes import from_episodes
from arboretum.trainers.sampling.rollout_plan import plan_chains
from arboretum.trainers.sampling.tree_growth import (
    Prompt,
    TreeEpisode,
    TreeGrowth,
    arrange_forest,
    tree_metrics,
)
from support.environments import make

LAKE = {"size": 6, "max_steps": 12, "split": "train"}
KEEP: tuple[Keep, ...] = ("forks", "states")


def lakes(count: int, **options: Any) -> list[TextEnv[Any]]:
    return [make("TextFrozenLake-v0", **{**LAKE, **options}) for _ in range(count)]


def prompts_of(env: TextEnv[Any], count: int) -> list[Prompt]:
    return [Prompt((3, number), env.tasks[number]) for number in range(count)]


def grow(
    settings: Trees, *, prompts: int = 4, at_once: int = 5, agent: Agent | None = None, **options: Any
) -> list[TreeEpisode]:
    """Return the episodes of trees that a random agent plays."""
    envs = lakes(at_once, **options)
    growth = TreeGrowth(prompts_of(envs[0], prompts), settings, seed=0)
    for episode in play(agent or RandomAgent(), envs, growth.jobs, keep=KEEP):
        growth.add(episode)
    return growth.episodes()


def contents(played: list[TreeEpisode]) -> list[Any]:
    """Return what identifies the episodes, without times."""
    return [
        (
            *one._replace(episode=None),  # type: ignore[arg-type]
            one.episode.seed,
            one.episode.error,
            [(turn.observation, [dataclasses.astuple(move) for move in turn.moves]) for turn in one.episode.turns],
        )
        for one in played
    ]


@pytest.mark.parametrize("choice", ["random", "entropy", "value"])
def test_episodes_depend_neither_on_concurrency_nor_on_the_other_prompts(choice: Any) -> None:
    settings = Trees(trees=2, expansions=3, rounds=2, choice=choice)
    reference = contents(grow(settings, at_once=1))
    assert contents(grow(settings, at_once=7)) == reference
    assert contents(grow(settings, prompts=2)) == reference[: len(reference) // 2]
    assert len(reference) == 4 * settings.rollouts


def test_initial_episodes_are_those_of_chains() -> None:
    env = lakes(1)[0]
    plan = plan_chains([env.tasks[0], env.tasks[1]], 2, batch=3, seed=0)
    chains, _ = plan.arrange(play(RandomAgent(), lakes(2), plan.jobs))
    initial = [one.episode for one in grow(Trees(), prompts=2) if one.number == 0]
    assert [[m.action for t in e.turns for m in t.moves] for e in initial] == [
        [m.action for t in e.turns for m in t.moves] for e in chains
    ]


def test_branches_share_the_turns_before_the_branch_and_nothing_after_it() -> None:
    played = grow(Trees(trees=2, expansions=3, rounds=2))
    shared = [one.shared for one in played if one.number]
    assert 0 in shared and max(shared) > 2
    forest = arrange_forest(played)
    for index, (episode, branch) in enumerate(zip(forest.episodes, forest.branches, strict=True)):
        turns = 0 if branch is None else branch.turns
        if branch is not None:
            other = forest.episodes[branch.episode]
            assert all(a is b for a, b in zip(episode.turns[:turns], other.turns, strict=False))
            assert branch.episode < index and forest.groups[branch.episode] == forest.groups[index]
            assert forest.trees[branch.episode] == forest.trees[index]
        assert all(turn.fork is None for turn in episode.turns)
    distinct = len({id(turn) for one in played for turn in one.episode.turns})
    assert distinct == sum(len(one.episode.turns) - one.shared for one in played)


def test_rounds_of_a_prompt_begin_when_its_own_round_has_ended() -> None:
    """A slow prompt does not delay the others: with one environment, prompts are finished one after the other."""
    envs = lakes(1)
    growth = TreeGrowth(prompts_of(envs[0], 3), Trees(expansions=2, rounds=2), seed=0)
    tasks = []
    for episode in play(RandomAgent(), envs, growth.jobs, keep=KEEP):
        growth.add(episode)
        tasks.append(episode.task)
    assert [task for task, _ in itertools.groupby(tasks)] == list(dict.fromkeys(tasks))


def test_kept_leaves_are_a_random_subset_and_the_others_leave_the_forest() -> None:
    whole = grow(Trees(trees=2, expansions=4, rounds=1))
    pruned = grow(Trees(trees=2, expansions=4, rounds=1, leaves=2))
    assert [one.episode.seed for one in pruned] == [one.episode.seed for one in whole]
    by_tree = [
        [one.number for one in tree if one.kept]
        for _, tree in itertools.groupby(pruned, key=lambda one: (one.key, one.tree))
    ]
    assert all(len(kept) == 2 for kept in by_tree) and len(set(map(tuple, by_tree))) > 2
    forest = arrange_forest(pruned)
    assert len(forest.episodes) == 4 * 2 * 2
    # The first leaf of a tree branches off nothing, even if it was sampled as a branch of one that is gone.
    assert forest.branches[::2] == [None] * 8
    assert tree_metrics(pruned)["leaves"] == 2 and tree_metrics(pruned)["expansions"] == 4 * 2 * 4


def test_environment_draws_new_randomness_after_a_branch_unless_told_otherwise() -> None:
    class Down(Agent):
        """Agent whose episodes differ by the slipping of the ice only."""

        name = "down"

        def act(self, seats: Any) -> list[Reply]:
            return [Reply(("Down",)) for _ in seats]

    options: dict[str, Any] = {"success_rate": 0.4}
    repeated = grow(Trees(trees=3, expansions=4, redraw=False), agent=Down(), **options)
    redrawn = grow(Trees(trees=3, expansions=4), agent=Down(), **options)

    def distinct(played: list[TreeEpisode]) -> int:
        return len({(one.key, one.tree, str([turn.observation for turn in one.episode.turns])) for one in played})

    assert distinct(repeated) == 4 * 3
    assert distinct(redrawn) > 2 * 4 * 3


# ---------------------------------------------------------------------- failures


def fail(monkeypatch: pytest.MonkeyPatch, which: Any) -> None:
    """Let the environment raise in the steps of episodes for which `which(env)` is true."""
    working = FrozenLake.step

    def step(self: Any, action: str) -> Any:
        if which(self):
            raise RuntimeError("the ice machine is out of order")
        return working(self, action)

    monkeypatch.setattr(FrozenLake, "step", step)


def test_tree_whose_initial_episode_failed_grows_from_its_root(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(10**6))
    fail(monkeypatch, lambda env: next(steps) == 0)  # the very first step
    played = grow(Trees(trees=2, expansions=2), prompts=2, at_once=1)
    first = [one for one in played if (one.key, one.tree) == ((3, 0), 0)]
    assert [one.episode.error is not None for one in first] == [True, False, False]
    assert [one.kept for one in first] == [False, True, True] and [one.shared for one in first] == [0, 0, 0]
    forest = arrange_forest(played)
    assert len(forest.episodes) == 2 * 2 * 3 - 1


def test_branch_that_fails_is_left_out_and_its_cost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    restored: set[int] = set()
    working, resetting = FrozenLake.restore, FrozenLake.reset

    def restore(self: Any, snapshot: Any, seed: int | None = None) -> None:
        working(self, snapshot, seed)
        restored.add(id(self))

    def reset(self: Any, **options: Any) -> Any:
        restored.discard(id(self))
        return resetting(self, **options)

    monkeypatch.setattr(FrozenLake, "restore", restore)
    monkeypatch.setattr(FrozenLake, "reset", reset)
    fail(monkeypatch, lambda env: id(env) in restored)
    played = grow(Trees(trees=2, expansions=3, rounds=2), at_once=40)
    failed = [one for one in played if one.episode.error is not None]
    assert failed and all(one.shared > 0 and one.number > 0 and not one.kept for one in failed)
    assert len(played) == 4 * 2 * 7
    forest = arrange_forest(played)
    assert len(forest.episodes) == len(played) - len(failed)


def test_prompt_without_a_complete_episode_is_an_empty_group(monkeypatch: pytest.MonkeyPatch) -> None:
    env = lakes(1)[0]
    fail(monkeypatch, lambda one: one.task == env.tasks[1])
    played = grow(Trees(), prompts=3)
    assert sum(one.kept for one in played) == 2 * 6 and len(played) == 3 * 6
    assert {one.key for one in played if one.kept} == {(3, 0), (3, 2)}


def test_fork_that_cannot_be_restored_fails_its_branch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(self: Any, snapshot: Any, seed: int | None = None) -> None:
        raise ConfigurationError("the snapshot is from another winter.")

    monkeypatch.setattr(FrozenLake, "restore", restore)
    played = grow(Trees(trees=1, expansions=4))
    for one in played:
        assert (one.episode.error is None) == (one.shared == 0)
        assert one.kept == (one.shared == 0)


def test_episode_of_another_plan_is_rejected() -> None:
    growth = TreeGrowth([Prompt((0, 0), "t")], Trees(), seed=0)
    with pytest.raises(ConfigurationError, match="does not belong to these trees"):
        growth.add(Episode("Env", "t", 1, "m"))
    with pytest.raises(ConfigurationError, match="2 episodes of trees have not been played"):
        growth.episodes()


def test_single_turn_episodes_make_independent_trees() -> None:
    played = grow(Trees(), max_steps=1)
    assert all(one.shared == 0 and one.kept and one.branch is None for one in played)


def sizes(played: list[TreeEpisode]) -> Iterator[int]:
    for _, tree in itertools.groupby(played, key=lambda one: (one.key, one.tree)):
        yield sum(1 for _ in tree)


def test_every_tree_has_its_episodes_by_number() -> None:
    played = grow(Trees(trees=3, expansions=2, rounds=3), prompts=2)
    assert list(sizes(played)) == [7] * 6
    assert [one.number for one in played] == list(range(7)) * 6


def test_arranged_forest_is_a_batch_of_rollouts() -> None:
    """A random agent has no tokens, so turns get some."""
    played = grow(Trees(trees=2, expansions=3, rounds=2))
    for turn in {id(t): t for one in played for t in one.episode.turns}.values():
        turn.token_ids, turn.logprobs, turn.loss_mask = [1, 2, 3], [0.0, -1.0, -1.0], [0, 1, 1]
    forest = arrange_forest(played)
    rollouts = from_episodes(forest.episodes, forest.groups, trees=forest.trees, branches=forest.branches)
    assert (rollouts.episodes, rollouts.groups, len(set(rollouts.tree.tolist()))) == (4 * 2 * 7, 4, 8)
    assert rollouts.turns == sum(len(one.episode.turns) - one.shared for one in played)
    assert rollouts.success.tolist() == [one.episode.success for one in played]
