"""Rollouts of tables: the same arrays as those of text episodes, and trees grown by the sampler of training."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.trainers.algorithms.samplers import Chains, Sampler, Trees
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.laboratory.forest import Steps, build_rollouts
from arboretum.trainers.laboratory.mdp import Mdp
from arboretum.trainers.laboratory.sampling import TableSampler
from arboretum.trainers.laboratory.table_policy import action_probabilities
from arboretum.trainers.laboratory.tasks import make_panel
from arboretum.trainers.sampling.tree import expected_budget, leaves_per_prompt


def make_episode(mdp: Mdp, log_policy: np.ndarray, steps: list[tuple[int, int, int, float]]) -> Episode:
    """Return an episode as `play` records it, with one prompt token and one action token per turn."""
    width = mdp.valid.shape[1]
    turns = [
        Turn(
            "",
            "",
            moves=[Move("", reward, True, True)],
            token_ids=[row, action],
            logprobs=[0.0, float(log_policy[row, action])],
            loss_mask=[0, 1],
            actions=(mdp.names[row * width + action],),
            state_key=row,
            next_state_key=None if after == mdp.rows else after,
            choices=tuple(name for name in mdp.names[row * width : (row + 1) * width] if name),
            effects=(mdp.names[row * width + action],) if mdp.effects[row, action] else (),
        )
        for row, action, after, reward in steps
    ]
    for depth, turn in enumerate(turns):
        turn.limits, turn.limits_after = (mdp.horizon - depth, None), (mdp.horizon - depth - 1, None)
    ended = steps[-1][2] == mdp.rows
    return Episode("", "t", 0, "table", success=steps[-1][3] > 0, truncated=not ended, turns=turns)


def paths_of(rollouts: Rollouts, steps: Steps) -> list[list[tuple[int, int, int, float]]]:
    turns, episodes = rollouts.paths
    columns = [column.tolist() for column in steps[:4]]
    return [
        [tuple(column[turn] for column in columns) for turn in turns[episodes == index].tolist()]
        for index in range(rollouts.episodes)
    ]


def assert_equal(one: Rollouts, other: Rollouts) -> None:
    for field in fields(Rollouts):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name == "turn_tokens":
            mine, theirs = [ids.tolist() for ids in mine], [ids.tolist() for ids in theirs]
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype and mine.tolist() == theirs.tolist(), field.name
        else:
            assert mine == theirs, field.name


@pytest.mark.parametrize("name", ["lake4", "sokoban"])
@pytest.mark.parametrize("branched", [False, True])
def test_rollouts_equal_those_of_recorded_episodes(name: str, branched: bool) -> None:
    panel = make_panel(name, 1)
    mdp, policy = panel.mdp, action_probabilities(panel.logits)
    sampler = TableSampler(mdp, policy, np.random.default_rng(0))
    with np.errstate(divide="ignore"):
        log_policy = np.log(policy)
    sampler.play(mdp.starts, np.full(len(mdp.starts), mdp.horizon))
    parts, trees, branches = [sampler.play(mdp.starts[:2], np.full(2, mdp.horizon))], [0, 0], [None, None]
    if branched:  # Two further episodes of the first tree: one shares two turns, one begins at the root.
        again = sampler.play(parts[0].rows[2:3], np.array([mdp.horizon - 2]))
        parts += [again, sampler.play(mdp.starts[:1], np.array([mdp.horizon]))]
        trees, branches = [0, 0, 0, 0], [None, None, Branch(0, 2), None]
    steps = Steps.concatenate(parts)
    groups = np.array([0, 1, 0, 0])[: len(trees)]
    built = build_rollouts(mdp, steps, groups, log_policy, trees, branches)
    episodes = [make_episode(mdp, log_policy, path) for path in paths_of(built, steps)]
    assert_equal(built, from_episodes(episodes, groups.tolist(), trees=trees, branches=branches))


@pytest.mark.parametrize(
    "settings", [Trees(trees=2), Trees(trees=1, expansions=2, rounds=3), Trees(choice="value")]
)
def test_trees_have_the_published_shape_and_share_what_they_branch_from(settings: Trees) -> None:
    panel = make_panel("graph10w8s", 0)
    sampler = TableSampler(panel.mdp, action_probabilities(panel.logits), np.random.default_rng(0))
    rollouts, rows = sampler.roll_out(settings, 0, 0)
    leaves = leaves_per_prompt(settings.trees, settings.expansions, settings.rounds)
    assert np.bincount(rollouts.group).tolist() == [leaves] * panel.mdp.groups
    assert rollouts.tree.max() + 1 == panel.mdp.groups * settings.trees
    assert rollouts.has_branches
    assert np.bincount(rollouts.paths.episode).tolist() == [10] * rollouts.episodes
    starts = rows[rollouts.turn_parent < 0]
    assert set(starts.tolist()) == set(panel.mdp.starts.tolist())
    inner = np.flatnonzero(rollouts.turn_parent >= 0)
    assert [rollouts.turn_next_state[turn] for turn in rollouts.turn_parent[inner]] == rows[inner].tolist()


def test_trees_cost_as_many_steps_as_the_papers_expectation() -> None:
    """A node is drawn uniformly from the root and the D - 1 inner turns, so a branch adds (D + 1) / 2 steps."""
    panel = make_panel("lock12f1", 0)
    sampler = TableSampler(panel.mdp, action_probabilities(panel.logits), np.random.default_rng(0))
    turns = [sampler.roll_out(Trees(trees=4), 0, update)[0].turns for update in range(20)]
    per_prompt = np.mean(turns) / panel.mdp.groups
    assert per_prompt == pytest.approx(4 * 12 + 4 * 2 * 13 / 2, rel=0.02)
    assert per_prompt == pytest.approx(12 * expected_budget(4, 2, 1), rel=0.06)


@pytest.mark.parametrize("settings", [Chains(rollouts=3), Trees(trees=1)])
def test_sampling_is_a_function_of_seed_and_update(settings: Sampler) -> None:
    panel = make_panel("lake4s", 0)

    def roll_out(update: int) -> Rollouts:
        sampler = TableSampler(panel.mdp, action_probabilities(panel.logits), np.random.default_rng(5))
        return sampler.roll_out(settings, 1, update)[0]

    assert_equal(roll_out(0), roll_out(0))
    if isinstance(settings, Trees):
        assert roll_out(0).turn_parent.tolist() != roll_out(1).turn_parent.tolist()


def test_chance_after_a_branch_is_drawn_anew() -> None:
    """On slippery ice, equal actions from one branch lead to different cells in some sibling episodes."""
    panel = make_panel("lake4s", 0)
    sampler = TableSampler(panel.mdp, action_probabilities(panel.logits), np.random.default_rng(0))
    found = False
    for update in range(5):
        rollouts, rows = sampler.roll_out(replace(Trees(trees=1), expansions=6), 0, update)
        by_place: dict[tuple[int, int, int], set[object]] = {}
        for turn, parent in enumerate(rollouts.turn_parent.tolist()):
            place = parent, int(rows[turn]), int(rollouts.action_tokens[turn])
            by_place.setdefault(place, set()).add(rollouts.turn_next_state[turn])
        found |= any(parent >= 0 and len(after) > 1 for (parent, _, _), after in by_place.items())
    assert found
