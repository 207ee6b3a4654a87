"""GROVE's credit: recorded cases, graphs worked by hand, limits, and properties."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.base import Advantages
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.credit.grove import (
    ENDED,
    UNVISITED,
    Outcomes,
    Visits,
    back_up,
    baselines,
    limit_layers,
)
from arboretum.trainers.algorithms.credit.grove_credit import Grove, flow_weights
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.algorithms.rewards import Rewards
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.data.rollouts import Redraw, Rollouts
from arboretum.trainers.data.segments import FloatArray, factorize
from support.rollouts import chain_rollouts

PLAIN = Grove(scale="none")


def recorded_cases() -> list[Any]:
    """Return the recorded cases as test parameters; they are stored beside the benchmark data."""
    data = os.environ.get("ARBORETUM_DATA")
    path = Path(data).parent / "golden" / "algorithms" / "grove.json" if data else None
    if path is None or not path.is_file():
        reason = "needs the recorded cases beside the folder ARBORETUM_DATA"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases]


Step = tuple[str, str, float, str | None]
"""State, action, reward, and next state; None where the episode ended."""


def rollouts_of(
    episodes: Sequence[Sequence[Step]],
    groups: Sequence[Any] | None = None,
    *,
    turns: int | None = None,
    actions: int | None = None,
    **fields: Any,
) -> Rollouts:
    """Return unbranched episodes of steps.

    Args:
        episodes: Steps of each episode; an action consists of as many actions as it has letters.
        groups: Key of each episode's group; None for one group.
        turns: Limit of turns.
        actions: Limit of actions.
        fields: Replaced attributes of the rollouts.
    """
    limits = []
    for episode in episodes:
        left = float("inf") if actions is None else float(actions)
        for number, step in enumerate(episode):
            remaining = float("inf") if turns is None else float(turns - number)
            after = left - len(step[1])
            limits.append([[remaining, left], [remaining - 1, after]])
            left = after
    steps = [step for episode in episodes for step in episode]
    values: dict[str, Any] = {
        "turn_actions": tuple(tuple(step[1]) for step in steps),
        "turn_next_state": tuple(step[3] for step in steps),
        "turn_limits": np.array(limits).reshape(-1, 2, 2),
    }
    return chain_rollouts(
        [[step[2] for step in episode] for episode in episodes],
        list(groups or [0] * len(episodes)),
        states=[[step[0] for step in episode] for episode in episodes],
        **(values | fields),
    )


def by_turn(rollouts: Rollouts, result: Advantages) -> FloatArray:
    """Return the advantage of the first copy of each turn's first token, [S]."""
    first = np.unique(rollouts.paths.turn[rollouts.copies.path], return_index=True)[1]
    return result.advantages[first]


# ---------------------------------------------------------------------- recorded cases


@pytest.mark.parametrize("case", recorded_cases())
def test_recorded_case_is_reproduced(case: dict[str, Any]) -> None:
    inputs, tol = case["inputs"], case["tolerance"]
    steps, parent = inputs["steps"], np.array(inputs["prev"], dtype=np.int64)
    count, chains = len(steps), int((parent < 0).sum())
    numbers: dict[Any, int] = {}
    state = np.array([numbers.setdefault(step["key"], len(numbers)) for step in steps])
    action = factorize((step["key"], step["action"]) for step in steps)
    ends = [ENDED if step["next_key"] is None else numbers.get(step["next_key"], UNVISITED) for step in steps]
    rewards, depth = np.array([float(step["reward"]) for step in steps]), np.array([s["t"] for s in steps])
    visits = Visits(np.zeros(count, dtype=np.int64), parent, depth, state, action, np.zeros(count))
    left = np.stack([inputs["horizon"] - depth, np.full(count, np.inf)], axis=1)
    layers = limit_layers(left, np.zeros(count), depth)
    mean = np.array([rewards.sum() / chains])
    values = back_up(
        visits, Outcomes(action, rewards, np.array(ends), np.zeros(count)), layers, mean, inputs["gamma"]
    )
    advantages = values.q - baselines(visits, values, np.array([count / chains]))
    np.testing.assert_allclose(advantages, case["expected"]["advantages_before_std"], rtol=0, atol=tol)


@pytest.mark.parametrize("case", recorded_cases())
def test_recorded_case_is_reproduced_from_rollouts(case: dict[str, Any]) -> None:
    """Every case twice in one update, as two groups that must not mix."""
    inputs = case["inputs"]
    episodes: list[list[Step]] = []
    for step, before in zip(inputs["steps"], inputs["prev"], strict=True):
        if before < 0:
            episodes.append([])
        episodes[-1].append((step["key"], str(step["action"]), step["reward"], step["next_key"]))
    rollouts = rollouts_of(episodes * 2, [0] * len(episodes) + [1] * len(episodes), turns=inputs["horizon"])
    credit = Grove(scale="none", before="unchanged", gamma=inputs["gamma"])
    found = by_turn(rollouts, credit.assign(rollouts))
    np.testing.assert_allclose(
        found, case["expected"]["advantages_before_std"] * 2, rtol=0, atol=case["tolerance"]
    )


# ---------------------------------------------------------------------- worked by hand

MEETING = [
    [("s", "a", 0.0, "m"), ("m", "c", 1.0, None)],
    [("s", "b", 0.0, "m"), ("m", "d", 0.0, None)],
    [("s", "b", 0.0, "x"), ("x", "c", 0.0, None)],
]
"""The first two episodes meet in m, where c succeeds and d fails; b leads to m or to x."""


def test_episodes_that_meet_share_the_value_of_the_state() -> None:
    """V(m) = 1/2, V(x) = 0; Q(s, a) = 1/2, Q(s, b) = (1/2 + 0) / 2 = 1/4, V(s) = (1/2 + 2/4) / 3 = 1/3.

    Baselines at s: (3 · 1/3 - 1/2) / 2 = 1/4 for a, and (1 - 1/4) / 2 = 3/8 for b. L = 2. At m, n = 2: b of c is
    (1 - 1 + 2 · 1/4) / (1 + 2) = 1/6, and that of d (1 - 0 + 2 · 3/8) / 3 = 7/12; at x it is 3/8, that of before.
    """
    rollouts = rollouts_of(MEETING, turns=2)
    found = by_turn(rollouts, PLAIN.assign(rollouts))
    np.testing.assert_allclose(found, [1 / 4, 5 / 6, -1 / 8, -7 / 12, -1 / 8, -3 / 8], atol=1e-12)
    scaled = by_turn(rollouts, Grove(eps=0.0).assign(rollouts))
    np.testing.assert_allclose(scaled, found / np.std([1, 0, 0], ddof=1), atol=1e-12)


def test_state_with_fewer_turns_left_is_worth_less() -> None:
    """Waiting in x once leaves one turn, in which the solution x → y → end does not fit."""
    episodes = [
        [("x", "g", 0.0, "y"), ("y", "g", 1.0, None)],
        [("x", "w", 0.0, "x"), ("x", "g", 0.0, "y")],
    ]
    rollouts = rollouts_of(episodes, turns=2)
    found = by_turn(rollouts, PLAIN.assign(rollouts))
    # V_1(x) = 0 and V_1(y) = 1, so Q_2(x, g) = 1, Q_2(x, w) = 0 and V_2(x) = (2 · 1 + 1 · 0) / 3.
    first = (3 * 2 / 3 - 1) / 2
    assert found[0] == pytest.approx(1 - first)
    assert found[2] == pytest.approx(0 - (2 - 0) / 2)
    careful = by_turn(rollouts, Grove(scale="none", key="step_state").assign(rollouts))
    assert careful[0] == pytest.approx(1.0) and careful[2] == pytest.approx(-1.0)


def test_layers_are_in_the_unit_of_the_limit_that_binds() -> None:
    """Plans of up to two actions: a turn's layer is what is left of turns, of actions, or of both."""
    depth = np.array([0, 1, 0])
    spent = np.array([2.0, 1.0, 1.0])
    turns_only = limit_layers(np.array([[3, np.inf], [2, np.inf], [3, np.inf]]), 0 * spent, depth)
    assert turns_only.row.tolist() == [3, 2, 3] and set(turns_only.row_cost.tolist()) == {1}
    ample = limit_layers(np.array([[3.0, 9], [2, 7], [3, 9]]), spent, depth)
    assert ample.row.tolist() == [3, 2, 3] and not ample.column.any()
    actions = limit_layers(np.array([[9.0, 3], [8, 1], [9, 3]]), spent, depth)
    assert actions.row.tolist() == [3, 1, 3] and actions.row_cost.tolist() == [2, 1, 1]
    unlimited_turns = limit_layers(np.array([[np.inf, 3], [np.inf, 1], [np.inf, 3]]), spent, depth)
    assert unlimited_turns.row.tolist() == [3, 1, 3] and unlimited_turns.row_cost.tolist() == [2, 1, 1]
    both = limit_layers(np.array([[3.0, 4], [2, 2], [3, 4]]), spent, depth)
    assert both.row.tolist() == [3, 2, 3] and both.column.tolist() == [4, 2, 4]
    assert both.column_cost.tolist() == [2, 1, 1] and set(both.row_cost.tolist()) == {1}
    none = limit_layers(np.full((3, 2), np.inf), 0 * spent, depth)
    assert none.row.tolist() == [2, 1, 2]


@pytest.mark.parametrize("turns", [5, 2, None])
def test_plan_that_the_actions_left_do_not_allow_is_worth_nothing(turns: int | None) -> None:
    """From y the goal takes two more actions. Whoever comes to y with one action left does not reach it."""
    episodes = [
        [("x", "a", 0.0, "y"), ("y", "gg", 1.0, None)],
        [("x", "ww", 0.0, "y"), ("y", "g", 0.0, "z")],
    ]
    rollouts = rollouts_of(episodes, turns=turns, actions=3)
    found = by_turn(rollouts, PLAIN.assign(rollouts))
    # Q_3(x, a) = V_2(y) = (1 + V_1(z)) / 2 and Q_3(x, ww) = V_1(y), z being worth the mean return 1/2 while an
    # action is left. At y with one action left, gg is still tried by half of the visits and worth its reward.
    q_a, q_w = (1 + (0.0 if turns == 2 else 0.5)) / 2, (1 + 0) / 2
    assert found[0] == pytest.approx(q_a - q_w) and found[2] == pytest.approx(q_w - q_a)


def test_episode_that_the_context_window_ended_is_worth_its_reward() -> None:
    """A limit of turns cuts the second episode in u, where nobody acted; the context ends the third there."""
    episodes = [
        [("s", "a", 1.0, None)],
        [("s", "b", 0.0, "t"), ("t", "b", 0.0, "u")],
        [("s", "c", 0.0, "u")],
    ]
    limits = rollouts_of(episodes, turns=2).turn_limits
    assert limits is not None
    rollouts = rollouts_of(episodes, turns=2)
    advantages = by_turn(rollouts, PLAIN.assign(rollouts))
    assert advantages[3] == pytest.approx(0 - (1 + 0) / 2)
    # Without a record of limits, u is worth the mean return, 1/3, while the longest episode has a further turn.
    unknown = replace(rollouts, turn_limits=None)
    assert by_turn(unknown, PLAIN.assign(unknown))[3] == pytest.approx(1 / 3 - (1 + 0) / 2)


def test_penalty_belongs_to_its_own_turn_and_not_to_turns_of_equal_action() -> None:
    """Two turns with the same state and action, of which one was malformed."""
    episodes = [[("s", "a", 1.0, None)], [("s", "a", 1.0, None)], [("s", "b", 0.0, None)]]
    rollouts = rollouts_of(episodes, turns=1, turn_penalty=np.array([0.0, -0.3, 0.0]))
    found = by_turn(rollouts, PLAIN.assign(rollouts))
    np.testing.assert_allclose(found, [1 - 0.35, 0.7 - 0.5, 0 - 0.85], atol=1e-12)


def test_redrawn_outcomes_that_end_or_lead_to_visited_states_count_like_observed_ones() -> None:
    """Q(s, b) is the mean over m, x, two ends with 0 and 0.5, and m again; the unvisited z is left out."""
    drawn = (Redraw(0.0, None, 1, 1), Redraw(0.5, None, 1, 1), Redraw(0.0, "m", 1, 1), Redraw(0.0, "z", 1, 1))
    redraws = ((), (), drawn, (), drawn, ())
    rollouts = rollouts_of(MEETING, turns=2, turn_redraws=redraws)
    result = PLAIN.assign(rollouts)
    q_a, q_b = 1 / 2, (1 / 2 + 0 + 0 + 1 / 2 + 1 / 2) / 5
    found = by_turn(rollouts, result)
    assert found[0] == pytest.approx(q_a - q_b) and found[2] == pytest.approx(q_b - (q_a + q_b) / 2)
    assert result.metrics["grove/redrawn"] == pytest.approx(3 / 6)
    scaled = Rewards(scale=10.0).apply(rollouts)
    np.testing.assert_allclose(by_turn(scaled, PLAIN.assign(scaled)), 10 * found, atol=1e-12)


# ---------------------------------------------------------------------- properties


@st.composite
def trees_of_states(draw: Any) -> list[list[Step]]:
    """Draw episodes that never share a state: every turn has a state of its own, or none."""
    rewards = st.sampled_from([0.0, 1.0, -0.1])
    lengths = draw(st.lists(st.integers(1, 4), min_size=2, max_size=6))
    common = draw(st.booleans())
    return [
        [
            (
                "start" if common and t == 0 else f"{e}-{t}",
                f"{chr(97 + e)}",
                draw(rewards),
                f"{e}-{t + 1}" if t + 1 < length else None,
            )
            for t in range(length)
        ]
        for e, length in enumerate(lengths)
    ]


@given(trees_of_states(), st.sampled_from(["state", "step_state"]), st.booleans())
def test_without_shared_states_the_advantages_are_those_of_rloo(
    episodes: list[list[Step]], key: Any, keyless: bool
) -> None:
    rollouts = rollouts_of(episodes, turns=9)
    if keyless:
        rollouts = replace(rollouts, turn_state=(None,) * rollouts.turns, turn_next_state=(None,) * rollouts.turns)
    penalties = np.random.default_rng(0).choice([0.0, -0.1], rollouts.turns)
    rollouts = replace(rollouts, turn_penalty=penalties)
    rloo = Group(leave_one_out=True, scale="none").assign(rollouts)
    found = Grove(key=key, scale="none").assign(rollouts)
    np.testing.assert_allclose(found.advantages, rloo.advantages, atol=1e-9)
    n = len(episodes)
    grpo = Group().assign(rollouts)
    if np.std(rollouts.returns(penalties=True)) > 1e-9:
        scaled = Grove(key=key).assign(rollouts)
        np.testing.assert_allclose(scaled.advantages, grpo.advantages * n / (n - 1), atol=1e-9)


random_episodes = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("sMNO")), min_size=1, max_size=5),
        st.sampled_from([0.0, 1.0]),
        st.sampled_from("xy"),
    ),
    min_size=2,
    max_size=8,
)


def steps_of(walk: Sequence[tuple[str, str]], reward: float) -> list[Step]:
    """Return the steps of a walk from s, which ends in success or at the limit."""
    before = ["s", *(state for _, state in walk)]
    last = len(walk) - 1
    return [
        (before[t], action, reward if t == last else 0.0, None if t == last and reward else state)
        for t, (action, state) in enumerate(walk)
    ]


@given(random_episodes, st.randoms(use_true_random=False), st.sampled_from(["state", "step_state"]))
def test_order_of_episodes_does_not_matter(episodes: list[Any], random: Any, key: Any) -> None:
    def advantages(order: Sequence[int]) -> dict[tuple[int, int], float]:
        chosen = [steps_of(*episodes[i][:2]) for i in order]
        rollouts = rollouts_of(chosen, [episodes[i][2] for i in order], turns=5)
        names = [(order[e], int(rollouts.turn_depth[t])) for t, e in np.stack(rollouts.paths, axis=1).tolist()]
        return dict(zip(names, by_turn(rollouts, Grove(key=key).assign(rollouts)).tolist(), strict=True))

    shuffled = list(range(len(episodes)))
    random.shuffle(shuffled)
    expected = advantages(range(len(episodes)))
    assert advantages(shuffled) == {name: pytest.approx(value, abs=1e-9) for name, value in expected.items()}


@given(random_episodes)
def test_groups_do_not_depend_on_each_other(episodes: list[Any]) -> None:
    """As with a selector that drops groups, or with groups of other sizes beside."""
    rollouts = rollouts_of([steps_of(*one[:2]) for one in episodes], [one[2] for one in episodes], turns=5)
    together = Grove().assign(rollouts).advantages
    for group in range(rollouts.groups):
        alone = Grove().assign(rollouts.select([group])).advantages
        np.testing.assert_allclose(together[rollouts.group[rollouts.copies.episode] == group], alone, atol=1e-12)


@pytest.mark.parametrize(("turns", "actions"), [(None, None), (9, None), (None, 9), (5, 6), (3, 4)])
def test_environments_of_a_mixture_do_not_depend_on_each_others_limits(
    turns: int | None, actions: int | None
) -> None:
    limited = [
        [("x", "a", 0.0, "y"), ("y", "gg", 1.0, None)],
        [("x", "ww", 0.0, "y"), ("y", "g", 0.0, "z")],
    ]
    other = [
        [("p", "a", 0.0, "q"), ("q", "b", 0.0, "p"), ("p", "c", 1.0, None)],
        [("p", "c", 0.0, "q"), ("q", "a", 0.0, None)],
    ]
    alone = [rollouts_of(limited, turns=5, actions=3), rollouts_of(other, turns=turns, actions=actions)]
    limits = np.concatenate([one.turn_limits for one in alone if one.turn_limits is not None])
    together = rollouts_of(
        [*limited, *other], [0, 0, 1, 1], turn_limits=limits, episode_env=np.array([0, 0, 1, 1])
    )
    expected = np.concatenate([by_turn(one, Grove().assign(one)) for one in alone])
    np.testing.assert_allclose(by_turn(together, Grove().assign(together)), expected, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_rounding_errors_are_no_advantage(value: float) -> None:
    """Equal returns of equal walks: nothing is better than anything else."""
    walk = [("s", "a", 0.0, "m"), ("m", "b", 0.0, "n"), ("n", "c", value / 3, None)]
    rollouts = rollouts_of([walk] * 7, turns=3)
    assert not Grove().assign(rollouts).advantages.any()


def test_lone_episode_and_episodes_without_turns_have_defined_results() -> None:
    lonely = rollouts_of([MEETING[0]], turns=2)
    assert not Grove().assign(lonely).advantages.any()
    turnless = rollouts_of([MEETING[0], []], turns=2)
    # The mean return counts both, the start has one visit and no other first turn: no advantage there.
    assert np.isfinite(Grove().assign(turnless).advantages).all()


def test_metrics_describe_the_graph() -> None:
    metrics = Grove().assign(rollouts_of(MEETING, turns=2)).metrics
    assert metrics["grove/states"] == 3
    assert metrics["grove/recurring"] == pytest.approx(2 / 3)  # m twice, x once
    assert metrics["grove/shared_actions"] == pytest.approx(2 / 6)  # (s, b) twice
    assert metrics["grove/unvisited"] == 0.0 and metrics["grove/value_abs"] == pytest.approx((3 / 3 + 2 / 2) / 6)
    assert 0 < metrics["grove/correlation"] < 1


def test_credit_of_256_episodes_takes_milliseconds() -> None:
    """About 6 ms on one core; the bound leaves room for slow machines."""
    rng = np.random.default_rng(0)
    episodes: list[list[Step]] = []
    for _ in range(256):
        walk = [("abcd"[int(rng.integers(4))], f"cell {rng.integers(16)}") for _ in range(15)]
        episodes.append(steps_of(walk, float(rng.random() < 0.5)))
    rollouts = rollouts_of(episodes, [episode // 8 for episode in range(256)], turns=15)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        Grove().assign(rollouts)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.05


# ---------------------------------------------------------------------- trees


def test_turns_of_a_tree_count_once_and_divide_the_weight_of_their_parent() -> None:
    """Episode 1 branches off episode 0 after its first turn; episode 2 is a chain."""
    weights = flow_weights(np.array([-1, 0, 1, 0, 3, -1]), np.array([0, 1, 2, 1, 2, 0]))
    assert weights.tolist() == [1, 0.5, 0.5, 0.5, 0.5, 1]


def tree_turn(state: str, action: str, next_state: str | None, reward: float = 0.0) -> Turn:
    return Turn(
        state,
        action,
        moves=[Move(action, reward, True, True)],
        token_ids=[1, 2],
        logprobs=[0.0, -1.0],
        loss_mask=[0, 1],
        actions=(action,),
        state_key=state,
        next_state_key=next_state,
    )


def test_tree_shares_the_values_of_its_turns() -> None:
    """The branch point m is visited twice after one visit of s, and counts as two visits."""
    first = tree_turn("s", "a", "m")
    paths = [
        [first, tree_turn("m", "c", None, 1.0)],
        [first, tree_turn("m", "d", None)],
        [tree_turn("s", "b", None)],
    ]
    episodes = [Episode("Env", "t", seed, "model", turns=turns) for seed, turns in enumerate(paths)]
    rollouts = from_episodes(episodes, [0, 0, 0], branches=[None, Branch(0, 1), None])
    result = PLAIN.assign(rollouts)
    # Q(s, a) = V(m) = 1/2, Q(s, b) = 0, V(s) = 1/4. L = 5/3, the mean length of the three episodes.
    found = by_turn(rollouts, result)
    length = 5 / 3
    np.testing.assert_allclose(
        found,
        [0.5, 1 - (0 + 0) / (1 + length), 0 - (1 + 0) / (1 + length), -0.5],
        atol=1e-12,
    )
    assert result.multiplicity is not None
    totals = np.bincount(rollouts.action_turn[rollouts.copies.action], weights=result.multiplicity)
    assert (totals / np.bincount(rollouts.action_turn)).tolist() == [1, 0.5, 0.5, 1]
    once = Grove(branch_weighting="once").assign(rollouts).multiplicity
    assert once is not None
    totals = np.bincount(rollouts.action_turn[rollouts.copies.action], weights=once)
    assert (totals / np.bincount(rollouts.action_turn)).tolist() == [1, 1, 1, 1]


# ---------------------------------------------------------------------- the part in recipes


def test_recipe_differs_from_grpo_in_credit_and_aggregation_only() -> None:
    grove, grpo = RECIPES["grove"], RECIPES["grpo"]
    same = replace(grove, name="grpo", about=grpo.about, credit=grpo.credit, objective=grpo.objective)
    assert same == grpo and replace(grove.objective, aggregation=grpo.objective.aggregation) == grpo.objective
    assert grove.objective.aggregation == "token-mean" and grove.credit == Grove()
    assert grove.credit.keep == {"states", "limits"} and not grove.credit.needs_policy
    assert Grove(redraws=8).keep == {"states", "limits", "snapshots"} and Grove().redraws == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rewards.normalize": "mean"}, "rewards.normalize, which is 'mean', moves all rewards to the last turn"),
        ({"credit.gamma": 0.0}, "credit.gamma must be above 0"),
        ({"credit.key": "observation"}, "choose one of 'state', 'step_state'"),
        ({"sampler.rollouts": 1, "optimization.episodes_per_step": 4}, "compares episodes of one prompt"),
    ],
)
def test_settings_that_cannot_work_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RECIPES["grove"].with_settings(settings)
