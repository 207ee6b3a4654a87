"""Trees of episodes: their nodes, the rules that choose which to expand, the leaves kept, and what they cost."""

from __future__ import annotations

import random
from collections import Counter
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.trainers.algorithms.samplers import NodeChoice
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.sampling.budget import Budget
from arboretum.trainers.sampling.node_choice import NODE_RULES, return_spreads
from arboretum.trainers.sampling.tree import Tree, expected_budget, keep_leaves


def turn(state: str = "", reward: float = 0.0, *, surprisal: float = 1.0, tokens: int = 2) -> Turn:
    """Return a turn of one prompt token and some sampled ones."""
    return Turn(
        state,
        "reply",
        moves=[Move("go", reward, True, True)],
        token_ids=[0] * (1 + tokens),
        logprobs=[0.0] + [-surprisal] * tokens,
        loss_mask=[0] + [1] * tokens,
        state_key=state,
    )


def episode(turns: list[Turn], seed: int = 0) -> Episode:
    return Episode("Env", "t", seed, "model", turns=turns)


def chain(*states: str, reward: float = 0.0) -> Episode:
    """Return an episode that visits states, with a reward in the last turn."""
    return episode([turn(state, reward * (i == len(states) - 1)) for i, state in enumerate(states)])


def grow(*episodes: tuple[Episode, Branch | None]) -> Tree:
    tree = Tree()
    for one, branch in episodes:
        tree.add(one, branch)
    return tree


def places(tree: Tree, rule: NodeChoice, count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return episode and number of turns of the nodes that a rule expands."""
    nodes = NODE_RULES[rule]([tree], 0, count, random.Random(seed))
    return [tuple(node.branch) for node in nodes]


# ---------------------------------------------------------------------- nodes


def test_every_choice_has_a_rule() -> None:
    assert tuple(NODE_RULES) == get_args(NodeChoice)


def test_root_and_turns_after_which_an_episode_went_on_are_expandable() -> None:
    first = chain("a", "b", "c")
    second = episode([*first.turns[:1], turn("d"), turn("e")])
    tree = grow((first, None), (second, Branch(0, 1)))
    assert [tuple(node.branch) for node in tree.expandable()] == [(0, 0), (0, 1), (0, 2), (1, 2)]
    assert tree.paths == [[1, 2, 3], [1, 4, 5]]


def test_only_the_root_of_a_tree_of_single_turns_is_expandable() -> None:
    """Every other node is at the turn limit; the published code fails there."""
    tree = grow((chain("a"), None), (chain("a"), None))
    for rule in NODE_RULES:
        assert places(tree, rule, 3) == [(0, 0)] * 3
    assert places(Tree(), "random", 2) == [(0, 0)] * 2


def test_turn_before_a_prompt_that_did_not_fit_is_not_expandable() -> None:
    full = Turn("c", "", cut=True)
    tree = grow((episode([turn("a"), turn("b"), full]), None))
    assert [node.branch.turns for node in tree.expandable()] == [0, 1]


# ---------------------------------------------------------------------- rules


def test_random_nodes_are_uniform_with_replacement() -> None:
    tree = grow((chain("a", "b", "c", "d"), None))
    drawn = places(tree, "random", 4000)
    counts = Counter(turns for _, turns in drawn)
    assert sorted(counts) == [0, 1, 2, 3]
    assert all(abs(count - 1000) < 120 for count in counts.values())  # 4.4 standard deviations
    assert drawn != places(tree, "random", 4000, seed=1)
    assert drawn == places(tree, "random", 4000)


def test_entropy_expands_before_the_most_uncertain_turns_first() -> None:
    turns = [turn(str(i), surprisal=surprisal) for i, surprisal in enumerate([0.5, 2.0, 0.1, 1.0])]
    tree = grow((episode(turns), None))
    assert [turns for _, turns in places(tree, "entropy", 6)] == [1, 3, 0, 2, 1, 3]


def test_entropy_of_a_node_is_the_mean_over_all_tokens_after_it() -> None:
    certain, doubtful = turn(surprisal=0.1, tokens=3), turn(surprisal=2.1, tokens=1)
    start = turn(surprisal=0.5)
    tree = grow((episode([start, certain]), None), (episode([start, doubtful]), Branch(0, 1)))
    # After the start: (3 · 0.1 + 2.1) / 4 = 0.6, which exceeds 0.5 at the root.
    assert places(tree, "entropy", 1) == [(0, 1)]


def test_value_expands_where_the_further_returns_of_the_prompt_differ_most() -> None:
    tree = grow((chain("a", "b", "end", reward=1.0), None))
    # The other tree passes b with success and failure, and a once, with success.
    other = grow((chain("x", "b", "end", reward=0.0), None), (chain("x", "b", "end", reward=1.0), None))
    spreads = return_spreads([tree, other])
    assert spreads["b"] == pytest.approx(np.std([1.0, 0.0, 1.0], ddof=1)) and spreads["a"] == 0.0
    nodes = NODE_RULES["value"]([tree, other], 0, 2, random.Random(0))
    assert {node.branch.turns for node in nodes} == {1, 2}  # before b and before end


@pytest.mark.parametrize("rule", ["entropy", "value"])
def test_ties_are_broken_by_the_seed_alone(rule: NodeChoice) -> None:
    tree = grow((chain(*"abcdefgh"), None))
    drawn = {tuple(places(tree, rule, 3, seed)) for seed in range(20)}
    assert len(drawn) > 10
    assert places(tree, rule, 3, 7) == places(tree, rule, 3, 7)
    assert all(len(set(nodes)) == 3 for nodes in drawn)


# ---------------------------------------------------------------------- leaves


@given(st.integers(0, 10_000))
def test_kept_leaves_share_what_they_shared_in_the_whole_tree(seed: int) -> None:
    rng = random.Random(seed)
    tree = Tree()
    for number in range(8):
        nodes = tree.expandable()
        node = rng.choice(nodes) if tree.episodes else None
        shared = tree.episodes[node.branch.episode].turns[: node.branch.turns] if node is not None else []
        own = [turn(f"{number}.{i}") for i in range(rng.randint(1, 4))]
        tree.add(episode([*shared, *own], number), node.branch if node is not None and shared else None)
    kept = sorted(rng.sample(range(8), rng.randint(1, 8)))
    episodes = [tree.episodes[i] for i in kept]
    rollouts = from_episodes(
        episodes, [0] * len(kept), branches=keep_leaves(tree.paths, kept), trees=[0] * len(kept)
    )
    distinct = {id(t) for one in episodes for t in one.turns}
    assert rollouts.turns == len(distinct)
    assert len(rollouts.paths.turn) == sum(len(one.turns) for one in episodes)
    for place, one in enumerate(episodes):
        path = rollouts.paths.turn[rollouts.paths.episode == place]
        assert [rollouts.turn_observation[t] for t in path] == [t.observation for t in one.turns]


# ---------------------------------------------------------------------- budgets


def test_budget_counts_new_turns_and_valid_tool_calls_only() -> None:
    searching = turn(tokens=3)
    searching.moves = [
        Move("search", 0.0, True, True),
        Move("search", 0.0, False, False),
        Move("go", 0, True, True),
    ]
    first = episode([turn(tokens=2), searching])
    branch = episode([*first.turns[:1], searching, turn(tokens=4)])
    spent = Budget.spent([(first, 0), (branch, 1)], lambda action: action == "search")
    assert spent == Budget(tokens=2 + 3 + 3 + 4, steps=1 + 3 + 3 + 1, tool_calls=2, reused_tokens=2)
    assert spent.add(Budget(tokens=1)).tokens == 13


@pytest.mark.parametrize(("trees", "expansions", "rounds"), [(2, 2, 1), (1, 2, 1), (2, 6, 1), (4, 5, 1)])
def test_expected_budget_is_that_of_random_expansions_of_long_episodes(
    trees: int, expansions: int, rounds: int
) -> None:
    """M + M·L·N/2 episodes: a uniformly drawn node of a chain of T turns leaves (T + 1)/2 of them."""
    turns, repeats = 40, 400
    rng = random.Random(0)
    spent = 0
    for _ in range(repeats * trees):
        tree = grow((chain(*map(str, range(turns))), None))
        spent += turns
        for node in NODE_RULES["random"]([tree], 0, expansions * rounds, rng):
            spent += turns - node.branch.turns
    measured = spent / repeats / turns
    exact = trees + trees * rounds * expansions * (turns + 1) / (2 * turns)
    assert measured == pytest.approx(exact, rel=0.02)
    assert measured == pytest.approx(expected_budget(trees, expansions, rounds), rel=0.04)
