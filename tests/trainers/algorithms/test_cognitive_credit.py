"""T-STAR's credit on rollouts: which turns merge, what merging does to values and gradients, and bad input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.anchor import Anchor
from arboretum.trainers.algorithms.credit.base import Advantages
from arboretum.trainers.algorithms.credit.cognitive_credit import Cognitive
from arboretum.trainers.algorithms.credit.cognitive_steps import describe_steps, undecided_steps
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.data.cognitive_graph import DivergencePair
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.data.segments import FloatArray, IntArray
from support.rollouts import walk_rollouts

STATE = Cognitive(equivalence="state")
Walk = Sequence[tuple[str, Any]]


def walks(*texts: str) -> list[list[tuple[str, str]]]:
    """Return walks from texts such as "aX bY": action a to state X, then action b to state Y."""
    return [[(word[0], word[1:]) for word in text.split()] for text in texts]


def by_turn(rollouts: Rollouts, result: Advantages) -> FloatArray:
    """Return the advantage of the first copy of each turn's first token, [S]."""
    first = np.unique(rollouts.paths.turn[rollouts.copies.path], return_index=True)[1]
    return result.advantages[first]


def merged_turns(result: Advantages) -> set[frozenset[int]]:
    """Return the sets of merged turns of all graphs."""
    return {frozenset(node.turns) for graph in result.graphs for node in graph.nodes if node.turns}


class TablePolicy:
    """Policy with a table of action probabilities for each state; the context ends with the state's token."""

    def __init__(self, table: dict[int, dict[str, float]]) -> None:
        self.table = table
        self.scored: list[int] = []
        self.contexts: set[tuple[int, ...]] = set()

    def action_logprobs(
        self, contexts: Sequence[IntArray], actions: Sequence[Sequence[str]], *, normalize: bool = True
    ) -> list[FloatArray]:
        self.scored += [int(context[-1]) for context in contexts]
        self.contexts |= {tuple(context.tolist()) for context in contexts}
        return [
            np.log([self.table[int(context[-1])].get(action, 1e-12) for action in texts])
            for context, texts in zip(contexts, actions, strict=True)
        ]

    def sample_actions(self, contexts: Sequence[IntArray], count: int, seed: int) -> list[list[str]]:
        rng = np.random.default_rng(seed)
        drawn = []
        for context in contexts:
            texts, weights = zip(*self.table[int(context[-1])].items(), strict=True)
            drawn.append([texts[i] for i in rng.choice(len(texts), size=count, p=weights)])
        return drawn


# ---------------------------------------------------------------------- merging


def test_turns_to_one_state_at_equal_depth_merge_whatever_their_pasts() -> None:
    """p and q meet in M, so both share its value; only their last turns differ."""
    rollouts = walk_rollouts(walks("aP bM cG", "aQ bM dH"), [1.0, 0.0])
    result = STATE.assign(rollouts)
    assert merged_turns(result) == {frozenset(s) for s in ({0}, {3}, {1, 4}, {2}, {5})}
    half = 0.5 / (np.sqrt(0.5) + 1e-6)
    np.testing.assert_allclose(by_turn(rollouts, result), [0, 0, half, 0, 0, -half], atol=1e-12)
    prefix = Cognitive(equivalence="state", merging="prefix").assign(rollouts)
    np.testing.assert_allclose(by_turn(rollouts, prefix), np.repeat([half, -half], 3), atol=1e-12)
    assert merged_turns(prefix) == {frozenset({turn}) for turn in range(6)}


def test_turns_to_one_state_at_different_depth_or_in_different_groups_do_not_merge() -> None:
    rollouts = walk_rollouts(walks("aM cG", "aQ bM cG", "aM cG"), [1.0, 0.0, 1.0], ["x", "x", "y"])
    assert merged_turns(STATE.assign(rollouts)) == {frozenset({turn}) for turn in range(7)}


@pytest.mark.parametrize(("history", "merges"), [("order", False), ("set", True)])
def test_different_order_of_effects_merges_only_as_a_set(history: Any, merges: bool) -> None:
    effects = (("Push A",), ("push  b",), (), ("push b",), ("push a",), ())
    rollouts = walk_rollouts(walks("aP bM cG", "aQ bM dH"), [1.0, 0.0], turn_effects=effects)
    credit = Cognitive(equivalence="state", history=history)
    assert (frozenset({1, 4}) in merged_turns(credit.assign(rollouts))) == merges


def test_last_turns_merge_below_one_node_with_equal_action_and_return() -> None:
    rollouts = walk_rollouts(walks("aM gX", "bM gX", "aM gX", "aM hX", "aN gX"), [1.0, 1.0, 0.0, 1.0, 1.0])
    ends = {turns for turns in merged_turns(STATE.assign(rollouts)) if turns & {1, 3, 5, 7, 9}}
    assert ends == {frozenset({1, 3}), frozenset({5}), frozenset({7}), frozenset({9})}


def test_observations_identify_contexts_where_asked() -> None:
    rollouts = walk_rollouts(
        walks("aP cG", "aQ cG"),
        [1.0, 0.0],
        turn_observation=("start", "nothing happens", "start", "nothing happens"),
    )
    assert frozenset({0, 2}) not in merged_turns(STATE.assign(rollouts))
    credit = Cognitive(equivalence="state", identity="observation")
    assert frozenset({0, 2}) in merged_turns(credit.assign(rollouts))


random_walks = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("MNO")), min_size=1, max_size=4),
        st.sampled_from([0.0, 1.0]),
        st.sampled_from("xy"),
    ),
    min_size=2,
    max_size=8,
)


@given(random_walks, st.randoms(use_true_random=False), st.sampled_from(["layered", "prefix"]))
def test_merging_depends_on_the_order_neither_of_episodes_nor_of_groups(
    episodes: list[Any], random: Any, merging: Any
) -> None:
    def nodes(order: Sequence[int]) -> tuple[set[frozenset[Any]], dict[Any, float]]:
        chosen = [episodes[i] for i in order]
        rollouts = walk_rollouts(
            [walk for walk, _, _ in chosen], [r for _, r, _ in chosen], [g for *_, g in chosen]
        )
        rollouts = replace(rollouts, turn_choices=(("a", "b"),) * rollouts.turns)
        result = Cognitive(merging=merging).assign(rollouts, policy=TablePolicy(BY_STATE))
        # The name of a turn that does not depend on the order: its episode and depth.
        names = [(order[e], int(rollouts.turn_depth[t])) for t, e in np.stack(rollouts.paths, axis=1).tolist()]
        sets = {frozenset(names[turn] for turn in turns) for turns in merged_turns(result)}
        return sets, dict(zip(names, by_turn(rollouts, result).tolist(), strict=True))

    shuffled = list(range(len(episodes)))
    random.shuffle(shuffled)
    (sets, values), (same_sets, same_values) = nodes(range(len(episodes))), nodes(shuffled)
    assert sets == same_sets
    assert same_values == {name: pytest.approx(value, abs=1e-9) for name, value in values.items()}


# ---------------------------------------------------------------------- equivalence by the policy

BY_STATE = {
    0: {"a": 0.5, "b": 0.5},
    1: {"a": 0.55, "b": 0.45},
    2: {"a": 0.95, "b": 0.05},
    3: {"a": 0.99, "b": 0.01},
}
"""Probabilities of actions by the number of the state, which `walk_rollouts` numbers alphabetically."""


def meeting(choices: tuple[str, ...] | None, *later: str, **fields: Any) -> Rollouts:
    """Return three episodes that are in the states M, N and O after their first turns."""
    rollouts = walk_rollouts(
        walks("aM aG", "aN aG", "aO aG", *later), [1.0, 0.0, 0.0] + [0.0] * len(later), **fields
    )
    return replace(rollouts, turn_choices=(choices,) * rollouts.turns)


@pytest.mark.parametrize("choices", [("a", "b"), None], ids=["exact", "sampled"])
def test_contexts_merge_where_the_policy_acts_alike(choices: Any) -> None:
    """M and N differ by a divergence of 0.005, either of them and O by more than 0.4."""
    policy = TablePolicy(BY_STATE)
    result = Cognitive(kl_samples=200).assign(meeting(choices), policy=policy)
    assert {s for s in merged_turns(result) if s & {0, 2, 4}} == {frozenset({0, 2}), frozenset({4})}
    assert sorted(policy.scored) == [0, 1, 2]  # each context once, and no context before an end
    assert result.metrics["graph/pairs_policy"] == 1.0


def test_exact_threshold_is_the_published_divergence() -> None:
    kl = 0.55 * np.log(0.55 / 0.95) + 0.45 * np.log(0.45 / 0.05), 0.95 * np.log(0.95 / 0.55) + 0.05 * np.log(1 / 9)
    for threshold, merges in ((max(kl) - 1e-6, False), (max(kl) + 1e-6, True)):
        credit = Cognitive(kl_threshold=threshold)
        result = credit.assign(meeting(("a", "b")), policy=TablePolicy(BY_STATE))
        assert (frozenset({0, 2, 4}) in merged_turns(result)) == merges  # through N, which is alike to both
    one_way = Cognitive(kl_threshold=min(kl) + 1e-6, kl_symmetrize="mean")
    assert frozenset({0, 2, 4}) not in merged_turns(
        one_way.assign(meeting(("a", "b")), policy=TablePolicy(BY_STATE))
    )


def test_policy_is_not_asked_where_states_or_histories_decide() -> None:
    policy = TablePolicy(BY_STATE)
    same = walk_rollouts(walks("aM aG", "bM bG"), [1.0, 0.0], turn_choices=(("a", "b"),) * 4)
    assert frozenset({0, 2}) in merged_turns(Cognitive().assign(same, policy=policy))
    other = meeting(("a", "b"), turn_effects=(("x",), (), ("y",), (), ("z",), ()))
    result = Cognitive().assign(other, policy=policy)
    assert policy.scored == [] and result.metrics["graph/pairs_history"] == 1.0
    assert result.metrics["graph/merge_ratio"] == 0.0


def test_contexts_with_different_choices_do_not_merge() -> None:
    rollouts = replace(meeting(("a", "b")), turn_choices=((), ("b", "a"), (), ("a", "b"), (), ("a", "b", "c")))
    policy = TablePolicy({state: {"a": 0.5, "b": 0.5} for state in range(3)})
    result = Cognitive().assign(rollouts, policy=policy)
    assert {s for s in merged_turns(result) if s & {0, 2, 4}} == {frozenset({0, 2}), frozenset({4})}
    assert result.metrics["graph/pairs_choices"] == pytest.approx(2 / 3)


def test_context_is_the_conversation_up_to_the_next_reply() -> None:
    """Of one conversation it holds all replies before; where the history was cut, only what remains."""
    rollouts = meeting(("a", "b"))
    kept = replace(rollouts, turn_restart=np.array([False, False] * 3))
    start = 3  # number of the state "start", which comes after M, N and O
    policy = TablePolicy(BY_STATE)
    Cognitive().assign(kept, policy=policy)
    assert policy.contexts == {(start, 1000, 1000, state) for state in (0, 1, 2)}
    policy = TablePolicy(BY_STATE)
    Cognitive().assign(rollouts, policy=policy)
    assert policy.contexts == {(0,), (1,), (2,)}


def test_one_context_of_each_state_is_compared_where_asked() -> None:
    """Two episodes are in M, with different tokens before it."""
    rollouts = meeting(("a", "b"), "bM aG")
    tokens = list(rollouts.turn_tokens)
    tokens[7] = np.array([9, 0, 1000, 1000])
    rollouts = replace(
        rollouts, turn_tokens=tuple(tokens), action_offset=rollouts.action_offset + np.repeat(np.arange(8) == 7, 2)
    )
    for contexts, count in (("all", 4), ("undecided", 4), ("one", 3)):
        policy = TablePolicy(BY_STATE)
        result = Cognitive(kl_contexts=contexts).assign(rollouts, policy=policy)  # type: ignore[arg-type]
        assert result.metrics["graph/contexts"] == len(policy.scored) == count
        assert frozenset({0, 2, 6}) in merged_turns(result)


def test_turns_after_which_nothing_is_earned_are_not_compared() -> None:
    """Of three episodes one succeeds, at depth 2; what the others do from then on is worth 0 in any case."""
    rollouts = walk_rollouts(walks("aM aM aG", "aN aN aN aN aG", "aO aO aO aO aG"), [1.0, 0.0, 0.0])
    rollouts = replace(rollouts, turn_choices=(("a", "b"),) * rollouts.turns)
    steps = describe_steps(rollouts)
    # The contexts after depth 0 and 1, where the successful episode still is; the last turns are ends.
    assert undecided_steps(rollouts, steps).tolist() == [
        *(True, True, False),
        *(True, True, False, False, False),
        *(True, True, False, False, False),
    ]
    policy = TablePolicy({state: {"a": 0.5, "b": 0.5} for state in range(3)})
    for contexts, depths in (("undecided", {0, 1}), ("all", {0, 1, 2, 3, 4})):
        result = Cognitive(kl_contexts=contexts).assign(rollouts, policy=policy)  # type: ignore[arg-type]
        merged = {frozenset(int(rollouts.turn_depth[t]) for t in s) for s in merged_turns(result) if len(s) > 1}
        assert merged == {frozenset({depth}) for depth in depths}


@pytest.mark.parametrize("baseline", ["group", "depth_matched"])
@given(random_walks, st.floats(0.5, 1.0), st.floats(-0.5, 0.5))
def test_comparing_undecided_turns_only_changes_no_advantage(
    baseline: Any, episodes: list[Any], gamma: float, penalty: float
) -> None:
    rollouts = walk_rollouts(
        [walk for walk, _, _ in episodes], [r for _, r, _ in episodes], [g for *_, g in episodes]
    )
    # A penalty on the way: of every third turn.
    on_the_way = np.where(np.arange(rollouts.turns) % 3 == 0, penalty, 0.0)
    for penalties in (np.zeros(rollouts.turns), on_the_way):
        played = replace(rollouts, turn_choices=(("a", "b"),) * rollouts.turns, turn_penalty=penalties)
        found = [
            Cognitive(kl_contexts=contexts, gamma=gamma, baseline=baseline).assign(  # type: ignore[arg-type]
                played, policy=TablePolicy(BY_STATE)
            )
            for contexts in ("undecided", "all")
        ]
        np.testing.assert_allclose(found[0].advantages, found[1].advantages, atol=1e-9)
        gaps = [sorted(pair.gap for pair in result.divergences) for result in found]
        np.testing.assert_allclose(gaps[0], gaps[1], atol=1e-9)


def test_large_groups_are_compared_below_equal_first_actions_only() -> None:
    rollouts = meeting(("a", "b"), "bN aG")
    policy = TablePolicy({state: {"a": 0.5, "b": 0.5} for state in range(3)})
    # 6 is in the state of 2, so that no comparison is needed.
    assert frozenset({0, 2, 4, 6}) in merged_turns(Cognitive().assign(rollouts, policy=policy))
    apart = Cognitive(max_compared=3, identity="none").assign(rollouts, policy=policy)
    assert {s for s in merged_turns(apart) if s & {0, 2, 4, 6}} == {frozenset({0, 2, 4}), frozenset({6})}


# ---------------------------------------------------------------------- values and gradients

trees = st.lists(
    st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), st.floats(0, 1)), min_size=2, max_size=10
)


def prefix_walks(forest: Sequence[tuple[Sequence[str], float]]) -> Rollouts:
    """Return episodes whose states are the actions so far, so that they form a tree."""
    return walk_rollouts(
        [[(a, "".join(actions[: i + 1])) for i, a in enumerate(actions)] for actions, _ in forest],
        [reward for _, reward in forest],
    )


@settings(max_examples=300)
@given(trees, st.floats(0.5, 1.0))
def test_graph_of_a_tree_has_the_closed_form_of_q(forest: list[Any], gamma: float) -> None:
    """Q(v) = 1/k_v Σ_{i through v} γ^(T_i - d(v)) R_i."""
    graph = Cognitive(equivalence="state", gamma=gamma).assign(prefix_walks(forest)).graphs[0]
    for node in graph.nodes:
        ends = [(len(forest[i][0]), forest[i][1]) for i in node.episodes]
        assert node.q == pytest.approx(np.mean([gamma ** (end - node.depth) * reward for end, reward in ends]))


@given(trees)
def test_undiscounted_advantage_of_a_node_is_the_mean_over_its_episodes(forest: list[Any]) -> None:
    """Lemma 1, and its consequence: on identical prefixes, merging leaves the sum of advantages unchanged."""
    rollouts = prefix_walks(forest)
    alone = by_turn(rollouts, Group().assign(rollouts))
    result = STATE.assign(rollouts)
    merged = by_turn(rollouts, result)
    for turns in merged_turns(result):
        members = sorted(turns)
        np.testing.assert_allclose(merged[members], alone[members].mean(), atol=1e-6)
        assert merged[members].sum() == pytest.approx(alone[members].sum(), abs=1e-6)


def test_lemma_1_fails_with_discount_and_where_pasts_differ() -> None:
    rollouts = walk_rollouts(walks("aP bM cG", "aQ bM dH"), [1.0, 0.0])
    alone = by_turn(rollouts, Group().assign(rollouts))
    assert by_turn(rollouts, STATE.assign(rollouts))[0] == 0.0 != alone[0]
    discounted = Cognitive(equivalence="state", merging="none", gamma=0.9).assign(rollouts)
    values = by_turn(rollouts, discounted)
    assert values[0] < values[1] < values[2] == pytest.approx(alone[2])


def test_merging_pasts_changes_the_gradient_and_its_variance_but_not_its_direction() -> None:
    """2000 groups of 8 episodes on a layered graph of width 3 and depth 5 under a uniform policy.

    The gradient of a tabular softmax policy at (state, action) is the sum of A over its occurrences, minus its
    probability times the sum over the state. Merging identical prefixes leaves every group's gradient as it is
    (different actions lead to different states); merging equal states of different pasts keeps the direction of
    its mean and lowers its variance.
    """
    rng = np.random.default_rng(0)
    groups, size, depth, width = 2000, 8, 5, 3
    target = np.stack([rng.permutation(width) for _ in range(depth * width)]).reshape(depth, width, width)
    actions = rng.integers(width, size=(groups * size, depth))
    state = np.zeros(groups * size, dtype=np.int64)
    rows = np.zeros((groups * size, depth), dtype=np.int64)
    texts: list[list[tuple[str, Any]]] = [[] for _ in range(groups * size)]
    for d in range(depth):
        rows[:, d] = (d * width + state) * width + actions[:, d]
        state = target[d, state, actions[:, d]]
        for episode in range(groups * size):
            texts[episode].append((str(actions[episode, d]), (d, int(state[episode]))))
    returns = (state == 0).astype(np.float64)
    rollouts = walk_rollouts(texts, returns.tolist(), np.repeat(np.arange(groups), size).tolist())

    def gradients(credit: Any) -> FloatArray:
        advantages = by_turn(rollouts, credit.assign(rollouts)).reshape(groups, size * depth)
        places = rows.reshape(groups, size * depth)
        table = np.zeros((groups, depth * width * width))
        np.add.at(table, (np.arange(groups)[:, None], places), advantages)
        by_state = table.reshape(groups, depth * width, width)
        return (by_state - by_state.mean(axis=2, keepdims=True)).reshape(groups, -1)

    alone = gradients(Group())
    prefix = gradients(Cognitive(equivalence="state", merging="prefix"))
    layered = gradients(STATE)
    np.testing.assert_allclose(prefix, alone, atol=1e-5)
    assert np.abs(layered - alone).max() > 1
    mean, other = alone.mean(axis=0), layered.mean(axis=0)
    assert mean @ other / np.linalg.norm(mean) / np.linalg.norm(other) > 0.98
    assert layered.var(axis=0).sum() < 0.7 * alone.var(axis=0).sum()


def test_rewards_of_one_past_are_not_credited_to_another() -> None:
    """Both episodes pass M and then earn 1; the first had a penalty of 0.4 in its first turn."""
    rollouts = walk_rollouts(
        walks("aP bM cG", "aQ bM cG"), [1.0, 1.0], turn_penalty=np.array([-0.4, 0, 0, 0, 0, 0])
    )
    graph = STATE.assign(rollouts).graphs[0]
    assert {(*node.actions, node.q) for node in graph.nodes if node.depth == 1} == {("a", 0.6), ("a", 1.0)}
    merged = Cognitive(equivalence="state", past="merged").assign(rollouts).graphs[0]
    assert {node.q for node in merged.nodes if node.depth == 1} == {0.8}


@given(trees, st.floats(0.5, 1.0))
def test_own_and_merged_pasts_agree_where_only_ends_are_rewarded(forest: list[Any], gamma: float) -> None:
    rollouts = prefix_walks(forest)
    own, merged = (
        Cognitive(equivalence="state", gamma=gamma, past=past).assign(rollouts) for past in ("own", "merged")
    )
    np.testing.assert_allclose(own.advantages, merged.advantages, atol=1e-6)


def test_omega_adds_the_step_advantage_of_gigpo() -> None:
    rollouts = walk_rollouts(walks("aP bM cG", "aQ bM dH", "aM cG"), [1.0, 0.0, 1.0])
    plain, added = STATE.assign(rollouts), Cognitive(equivalence="state", omega=0.5).assign(rollouts)
    gigpo = Anchor(omega=0.5).assign(rollouts).advantages - Anchor(omega=0.0).assign(rollouts).advantages
    assert np.abs(gigpo).max() > 0
    np.testing.assert_allclose(added.advantages - plain.advantages, gigpo, atol=1e-12)


# ---------------------------------------------------------------------- divergences


def test_divergence_names_the_turns_that_begin_its_branches() -> None:
    rollouts = walk_rollouts(walks("aM bG", "aM cX", "aM dX", "aM bG"), [1.0, 0.0, 0.5, 1.0])
    result = STATE.assign(rollouts)
    assert result.divergences == [DivergencePair(0, best=1, worst=3, gap=1.0)]
    graph = result.graphs[0]
    (found,) = graph.divergences
    assert (graph.nodes[found.node].depth, found.gap) == (1, 1.0)
    assert (graph.nodes[found.best].actions, graph.nodes[found.best].turns) == (("b",), (1, 7))
    assert (graph.nodes[found.worst].actions, graph.nodes[found.worst].q) == (("c",), 0.0)


def test_outcomes_that_differ_by_chance_are_divergences_without_a_pair() -> None:
    """One action, two outcomes: the environment decided."""
    result = STATE.assign(walk_rollouts(walks("aM bG", "aN bH"), [1.0, 0.0]))
    assert len(result.graphs[0].divergences) == 1 and result.divergences == []


@pytest.mark.parametrize(("floor", "count"), [(0.0, 0), (None, 1), (-1.0, 1)])
def test_two_failures_diverge_only_below_the_floor(floor: float | None, count: int) -> None:
    rollouts = walk_rollouts(walks("aM", "bN"), [-1.0, -0.5])
    assert len(Cognitive(equivalence="state", floor=floor).assign(rollouts).divergences) == count


def test_group_of_equal_returns_has_no_advantage_and_no_divergence() -> None:
    """Discounting alone separates the values of a long and a short success."""
    rollouts = walk_rollouts(walks("aM bN cO dP", "eG"), [1.0, 1.0])
    result = Cognitive(equivalence="state", gamma=0.5, delta=0.1).assign(rollouts)
    assert not result.advantages.any() and result.divergences == [] and result.graphs[0].divergences == ()


# ---------------------------------------------------------------------- graphs and metrics


def test_graph_describes_nodes_edges_and_episodes() -> None:
    graph = STATE.assign(walk_rollouts(walks("aP bM cG", "aQ bM dH"), [1.0, 0.0])).graphs[0]
    assert (graph.task, graph.mean, graph.std) == ("start", 0.5, pytest.approx(np.sqrt(0.5)))
    assert [(node.depth, node.observation, len(node.episodes)) for node in graph.nodes] == [
        (0, "start", 2), (1, "P", 1), (1, "Q", 1), (2, "M", 2), (3, None, 1), (3, None, 1),
    ]  # fmt: skip
    assert [(edge.parent, edge.child, edge.weight) for edge in graph.edges] == [
        (0, 1, 0.5), (0, 2, 0.5), (1, 3, 1.0), (2, 3, 1.0), (3, 4, 0.5), (3, 5, 0.5),
    ]  # fmt: skip
    assert [episode.path for episode in graph.episodes] == [(0, 1, 3, 4), (0, 2, 3, 5)]


def test_metrics_count_nodes_merges_and_divergences() -> None:
    rollouts = walk_rollouts(walks("aP bM cG", "aQ bM dH"), [1.0, 0.0])
    metrics = STATE.assign(rollouts).metrics
    assert metrics["graph/depth"] == 3 and metrics["graph/nodes"] == 5
    assert metrics["graph/merge_ratio"] == pytest.approx(1 / 6)  # 5 nodes of 6 steps
    assert metrics["graph/shared_steps"] == pytest.approx(2 / 6)
    assert metrics["graph/divergences"] == 1 and metrics["graph/gap"] == 1.0
    assert metrics["graph/pairs_identity"] == 0.5  # M and M, but not P and Q


# ---------------------------------------------------------------------- bad input


def test_missing_records_of_play_are_named() -> None:
    rollouts = walk_rollouts(walks("aP bM", "aQ bM"), [1.0, 0.0])
    with pytest.raises(ConfigurationError, match=r"no record of their effects; roll out with keep=\{\"states\"\}"):
        STATE.assign(replace(rollouts, turn_effects=(None,) * 4))
    with pytest.raises(ConfigurationError, match=r"no state keys; roll out with keep=\{\"states\"\}"):
        STATE.assign(replace(rollouts, turn_next_state=(None,) * 4))
    with pytest.raises(ConfigurationError, match="no state keys"):
        step = Cognitive(merging="none", omega=1.0)
        step.assign(replace(rollouts, turn_state=(None,) * 4))


def test_comparison_by_the_policy_without_a_policy_is_rejected() -> None:
    rollouts = walk_rollouts(walks("aP bM", "aQ bM"), [1.0, 0.0])
    with pytest.raises(ConfigurationError, match=r'set credit\.equivalence = "state"'):
        Cognitive().assign(rollouts)


def test_settings_without_effect_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r'but credit\.identity is "none"'):
        Cognitive(equivalence="state", identity="none")
    with pytest.raises(ConfigurationError, match=r"credit\.gamma"):
        Cognitive(gamma=1.5)


@pytest.mark.parametrize(
    "credit", [STATE, Cognitive(equivalence="state", merging="prefix"), Cognitive(merging="none")]
)
def test_unusual_groups_have_defined_results(credit: Cognitive) -> None:
    lonely = walk_rollouts(walks("aP bM"), [1.0])
    assert not credit.assign(lonely).advantages.any()
    turnless = walk_rollouts([*walks("aP"), []], [1.0, 0.0])
    result = credit.assign(turnless)
    assert result.advantages == pytest.approx([np.sqrt(0.5)] * 2, abs=1e-5)
    assert result.graphs[0].nodes[0].q == 0.5 and result.graphs[0].episodes[1].path == (0,)


def test_play_records_what_the_settings_need() -> None:
    assert Cognitive().keep == {"states", "choices"} and Cognitive().needs_policy
    assert STATE.keep == {"states"} and not STATE.needs_policy
    assert Cognitive(merging="none").keep == frozenset()
    assert Cognitive(merging="none", omega=1.0).keep == {"states"}
