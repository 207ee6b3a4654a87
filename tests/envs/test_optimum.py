"""`optimum()` against exhaustive searches that use only the environments' steps, or Gymnasium's own table."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import arboretum  # noqa: F401
from arboretum.envs import ConfigurationError, Optimum, TextEnv
from arboretum.envs.open_episode import own_class
from arboretum.envs.registry import ENVS
from arboretum.envs.retrieval import Document
from arboretum.envs.retrieval.bm25 import BM25
from support.environments import embedded_data, make  # noqa: F401 (a fixture for all tests here)

IDS = [spec.id for spec in ENVS]
DETERMINISTIC = [id for id in IDS if not id.startswith(("TextBandit", "TextFrozenLake"))]


def search(env: TextEnv[Any], depth: int) -> Optimum:
    """Return the optimum of a deterministic environment by breadth-first search over its steps."""
    start = env.snapshot()
    frontier, seen = [start], {env.state_key()}
    for steps in range(1, depth + 1):
        following = []
        for snapshot in frontier:
            env.restore(snapshot)
            for action in env.admissible_actions() or ():
                env.restore(snapshot)
                _, _, terminated, truncated, info = env.step(action)
                if terminated and info["success"]:
                    env.restore(start)
                    return Optimum(1.0, steps)
                if not (terminated or truncated) and env.state_key() not in seen:
                    seen.add(env.state_key())
                    following.append(env.snapshot())
        frontier = following
    env.restore(start)
    return Optimum(0.0, None)


@pytest.mark.parametrize("id", IDS)
def test_optimum_after_the_end_is_what_was_reached(id: str) -> None:
    env = make(id)
    for seed in range(20):
        env.reset(seed=seed)
        while env.expert_actions():
            env.step((env.expert_actions() or [""])[0])
        solved = env.snapshot().success
        if id.startswith("TextBandit"):
            assert env.optimum().value in (0.0, 1.0) and env.optimum().steps in (0, None)  # the payment
        elif solved or id != "TextWebShop-v0":
            assert env.optimum() == (Optimum(1.0, 0) if solved else Optimum(0.0, None))
    limited = make(id, max_steps=1)
    limited.reset(seed=0)
    limited.step("no environment has this action")
    assert limited.optimum() == Optimum(0.0, None)


@pytest.mark.parametrize("id", DETERMINISTIC)
def test_expert_attains_the_optimum_step_by_step(id: str) -> None:
    env = make(id)
    for seed in range(5):
        env.reset(seed=seed)
        first = env.optimum()
        assert first is not None and first.value > 0.5 and first.steps is not None
        total = 0.0
        for done in range(int(first.steps)):
            assert env.optimum() == Optimum(first.value, first.steps - done)
            _, reward, terminated, _, info = env.step((env.expert_actions() or [""])[0])
            total += reward
        assert terminated and env.optimum() == Optimum(first.value, 0)
        assert info["success"] or total == pytest.approx(first.value)


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("TextSokoban-v0", {"size": 5}),
        ("TextSokoban-v0", {"size": 6, "max_steps": 9}),
        ("TextLargeSokoban-v0", {"max_steps": 6}),
        ("TextBlocksworld-v0", {"blocks": 3, "family": "mixed"}),
        ("TextBlocksworld-v0", {"blocks": 3, "family": "unstack", "max_steps": 5}),
        ("TextBlocksworld-v0", {"blocks": 4, "family": "stack"}),
    ],
    ids=str,
)
def test_optimum_equals_breadth_first_search(id: str, kwargs: dict[str, Any]) -> None:
    env, searched = make(id, **kwargs), make(id, **kwargs)
    rng = random.Random(5)
    found = set()
    for seed in range(8):
        env.reset(seed=seed)
        for _ in range(6):
            searched.restore(env.snapshot())
            depth = 40 if env.max_steps is None else env.max_steps - env.steps
            best = search(searched, depth)
            assert env.optimum() == best, (env.task, env.steps)
            found.add(best.value)
            _, _, terminated, truncated, _ = env.step(rng.choice(env.admissible_actions() or ("",)))
            if terminated or truncated:
                break
    assert 1.0 in found and (found == {0.0, 1.0} or "max_steps" not in kwargs)


def test_optimum_of_a_household_near_its_end_equals_breadth_first_search() -> None:
    env, searched = make("TextALFWorld-v0"), make("TextALFWorld-v0")
    for seed in range(6):
        env.reset(seed=seed)
        plan = env.expert_actions() or []
        for action in plan[:-2]:
            env.step(action)
        searched.restore(env.snapshot())
        assert env.optimum() == search(searched, 2) == Optimum(1.0, 2)
        for action in ("look", "inventory"):
            env.step(action)
        assert env.optimum() == Optimum(1.0, 2)
    late = make("TextALFWorld-v0", max_steps=3)
    late.reset(seed=0)
    assert late.optimum() == Optimum(0.0, None)


@pytest.mark.parametrize("rate", [1 / 3, 0.8, 1.0])
@pytest.mark.parametrize("desc", [("SFF", "FHF", "FFG"), ("SFH", "FFF", "HFG"), ("SFFF", "FHFH", "FFFH", "HFFG")])
def test_optimum_on_a_lake_equals_recursion_over_gymnasium_table(desc: tuple[str, ...], rate: float) -> None:
    table = gym.make("FrozenLake-v1", desc=list(desc), success_rate=rate).unwrapped.P

    @cache
    def best(cell: int, left: int) -> tuple[float, float]:
        """Return the probability of the goal and the negative expected time, the best pair over all actions."""
        if left == 0:
            return 0.0, 0.0
        options = []
        for outcomes in table[cell].values():
            win, time = 0.0, 1.0
            for probability, after, reward, ends in outcomes:
                rest = (reward, 0.0) if ends else best(after, left - 1)
                win += probability * rest[0]
                time -= probability * rest[1]
            options.append((round(win, 12), -time))
        return max(options)

    limit = 7
    env = make("TextFrozenLake-v0", map=desc, success_rate=rate, max_steps=limit)
    rng = random.Random(2)
    for seed in range(10):
        env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            win, negative_time = best(env.snapshot().state, limit - env.steps)
            optimum = env.optimum()
            assert optimum is not None and optimum.value == pytest.approx(win, abs=1e-9)
            assert optimum.steps == (pytest.approx(-negative_time, abs=1e-9) if win else None)
            _, _, terminated, truncated, _ = env.step(rng.choice(env.admissible_actions() or ("",)))
    for left in range(300):  # without recursing 300 levels deep
        for cell in table:
            best(cell, left)
    values = []
    for max_steps in (300, None):
        longer = make("TextFrozenLake-v0", map=desc, success_rate=rate, max_steps=max_steps)
        longer.reset(seed=0)
        optimum = longer.optimum()
        assert optimum is not None
        values.append(optimum.value)
    assert values[0] == pytest.approx(best(0, 300)[0], abs=1e-9) and values[0] - 1e-9 <= values[1] <= 1.0


def test_optimum_after_an_action_prints_nothing_and_returns_to_the_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = make("TextSokoban-v0", render_mode="human")
    env.reset(seed=0)
    before, plan = env.state_key(), env.expert_actions()
    capsys.readouterr()
    after = env.optimum_after((plan or [""])[0])
    assert after is not None and after.steps == len(plan or ()) - 1
    assert capsys.readouterr().out == "" and env.state_key() == before and env.steps == 0
    env.step("Up")
    assert capsys.readouterr().out.startswith("> Up")


@pytest.mark.parametrize("id", ["TextBandit-v0", "TextBanditRev-v0"])
def test_optimum_of_a_bandit_is_the_mean_payment_of_the_risky_arm(id: str) -> None:
    env = make(id)
    env.reset(seed=0)
    risky = (env.expert_actions() or [""])[0]
    safe = next(arm for arm in env.admissible_actions() or () if arm != risky)
    assert env.optimum() == Optimum(0.25, 1)
    assert env.optimum_after(risky) == Optimum(0.25, 0) and env.optimum_after(f" {safe.upper()} ") == (0.15, 0)
    assert env.optimum_after("no arm") == Optimum(0.25, 1) and env.steps == 0
    env.step(safe)
    assert env.optimum() == Optimum(0.15, 0)
    free = make(id, low_reward=0)
    free.reset(seed=0)
    assert type(free.step(safe)[1]) is float
    sparse = make(id, reward_mode="sparse")
    sparse.reset(seed=0)
    assert sparse.optimum() == sparse.optimum_after(risky)._replace(steps=1) == Optimum(1.0, 1)
    assert sparse.optimum_after(safe) == Optimum(0.0, None)


def test_blocksworld_plan_mode_needs_one_plan() -> None:
    env = make("TextBlocksworld-v0", mode="plan", max_steps=2)
    env.reset(seed=0)
    assert env.optimum() == Optimum(1.0, 1)
    env.step("nothing")
    assert env.optimum() == Optimum(1.0, 1)
    env.step("nothing")
    assert env.optimum() == Optimum(0.0, None)


def test_optimum_of_a_question_without_a_published_answer_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"id": "q", "question": "Who knows?", "golden_answers": []}) + "\n")
    env = make("TextSearchQA-v0", data=path, retriever=BM25.of([Document("0", '"Paris"\nParis is a city.')]))
    env.reset(seed=0)
    assert env.optimum() is None


def test_optimum_of_a_shopper_shrinks_with_the_steps_left() -> None:
    values = []
    for limit in range(1, 8):
        env = make("TextWebShop-v0", max_steps=limit)
        env.reset(seed=3, options={"task": 7})
        optimum = env.optimum()
        assert optimum is not None and (optimum.steps is None or optimum.steps <= limit)
        values.append(optimum.value)
    assert values[0] == 0.0 and values == sorted(values) and values[-1] > 0.0


@pytest.mark.parametrize("limit", [4, 6, 9])
def test_known_optimum_of_a_shopper_is_never_below_a_purchase_that_is_one_click_away(limit: int) -> None:
    """Nor below a purchase of a listed product, or with one more option."""
    env, bought = make("TextWebShop-v0", max_steps=limit), 0
    for seed in range(12):
        env.reset(seed=seed)
        rng = random.Random(seed)
        while True:
            optimum = env.optimum()
            assert optimum is not None
            start = env.snapshot()
            for action in env.admissible_actions() or ():
                _, reward, terminated, _, _ = env.step(action)
                if terminated:
                    assert action == "click[buy now]" and optimum.value >= reward
                elif env.steps_left() and "click[buy now]" in (env.admissible_actions() or ()):
                    _, reward, _, _, _ = env.step("click[buy now]")
                    assert optimum.value >= reward
                    bought += 1
                env.restore(start)
            _, reward, terminated, truncated, _ = env.step(env.random_action(rng))
            if terminated or truncated:
                break
    assert bought > 100


@pytest.mark.parametrize("id", DETERMINISTIC)
def test_expert_plan_attains_the_optimum_within_the_steps_left_or_is_none_with_it(id: str) -> None:
    """In random states, with step limits about the length of the first plan."""
    rng, found, unlimited = random.Random(4), set(), make(id, max_steps=None)
    for seed in range(8 if id == "TextBoxoban-v0" else 24):  # whose plans take long to find
        unlimited.reset(seed=seed)
        env = make(id, max_steps=max(1, len(unlimited.expert_actions() or ()) + rng.randint(-4, 8)))
        env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            start, optimum, plan = env.snapshot(), env.optimum(), env.expert_actions()
            assert optimum is not None
            assert optimum.steps == (None if plan is None else max(1, len(plan))), (env.task, start)
            assert (optimum.value == 0.0) is (plan is None)
            found.add(plan is None)
            if plan:
                assert len(plan) <= env.steps_left()
                rewards = []
                for action in plan:
                    _, reward, terminated, _, info = env.step(action)
                    rewards.append(reward)
                assert terminated
                assert info["success"] if optimum.value == 1.0 else rewards[-1] == pytest.approx(optimum.value)
                env.restore(start)
            _, _, terminated, truncated, _ = env.step(env.random_action(rng))
    assert False in found and (True in found or id == "TextSearchQA-v0")  # A question can be answered at any time.


def test_actions_that_were_not_played_need_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("TextBlocksworld-v0")
    env.reset(seed=1)
    monkeypatch.setattr(own_class(type(env)), "snapshot", None)
    with pytest.raises(ConfigurationError, match="it has no snapshots, so actions that were not played"):
        env.optimum_after("anything")
