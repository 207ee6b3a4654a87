"""Optimal plans against breadth-first search and against PlanBench's recorded plan lengths."""

import random
from collections import deque
from itertools import product

import gymnasium as gym
import pytest

import arboretum  # noqa: F401
from arboretum.envs.blocksworld.rules import HAND, TABLE, Goal, legal_actions, reached, successor, unmet
from arboretum.envs.blocksworld.solver import contradiction, optimal_plan


@pytest.fixture
def planbench(data):
    if not (data / "blocksworld").is_dir():
        pytest.skip("the data has no blocksworld/ folder")
    return data


def arrangements(blocks):
    """Return all arrangements, found by moving blocks."""
    start = (TABLE,) * blocks
    seen, queue = {start}, deque([start])
    while queue:
        state = queue.popleft()
        for action in legal_actions(state):
            after = successor(action, state)
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return sorted(seen)


def distances_to(goal, states):
    """Return the distance of every state by breadth-first search from the goals; operators have inverses."""
    distance = {state: 0 for state in states if reached(goal, state)}
    queue = deque(distance)
    while queue:
        state = queue.popleft()
        for action in legal_actions(state):
            after = successor(action, state)
            if after not in distance:
                distance[after] = distance[state] + 1
                queue.append(after)
    return distance


def check_plan(state, goal, length):
    plan = optimal_plan(state, goal)
    assert plan is not None and len(plan) == length, (state, goal, plan)
    for action in plan:
        assert unmet(action, state) is None
        state = successor(action, state)
    assert reached(goal, state)


def goals(blocks, states, rng, count):
    """Yield satisfiable goals: random subsets of the facts of a random arrangement."""
    for _ in range(count):
        final = rng.choice(states)
        kept = rng.choice((0.3, 0.6, 1.0))
        keep = [b for b in range(blocks) if rng.random() < kept]
        yield Goal(
            on=tuple((b, final[b]) for b in keep if final[b] >= 0),
            table=tuple(b for b in keep if final[b] == TABLE and rng.random() < 0.5),
            clear=tuple(b for b in range(blocks) if b not in final and final[b] != HAND and rng.random() < 0.3),
            hand_empty=HAND not in final and rng.random() < 0.3,
        )


def test_number_of_arrangements_matches_oeis():
    # Sets of lists (OEIS A000262): 13 and 73 with an empty hand. With one of n blocks in the hand there are n
    # times the arrangements of n - 1 blocks: 3·3 and 4·13.
    assert len(arrangements(3)) == 13 + 3 * 3
    assert len(arrangements(4)) == 73 + 4 * 13


@pytest.mark.parametrize(("blocks", "count"), [(1, 20), (2, 100), (3, 300), (4, 150), (5, 25)])
def test_plans_are_shortest_from_every_arrangement(blocks, count):
    states = arrangements(blocks)
    for goal in goals(blocks, states, random.Random(blocks), count):
        distance = distances_to(goal, states)
        for state in states:
            check_plan(state, goal, distance[state])


def test_plans_are_shortest_for_all_full_goals_of_four_blocks():
    states = arrangements(4)
    for final in states:
        goal = Goal(on=tuple((b, s) for b, s in enumerate(final) if s >= 0))
        distance = distances_to(goal, states)
        for state in states:
            assert len(optimal_plan(state, goal)) == distance[state]


def test_plans_are_shortest_for_six_blocks():
    states = arrangements(6)
    rng = random.Random(6)
    for goal in goals(6, states, rng, 8):
        distance = distances_to(goal, states)
        for state in rng.sample(states, 200):
            check_plan(state, goal, distance[state])


def test_exactly_the_contradictory_goals_have_no_plan():
    impossible = [
        Goal(on=((0, 1), (1, 0))),
        Goal(on=((0, 1), (1, 2), (2, 0))),
        Goal(on=((0, 0),)),
        Goal(on=((0, 1), (2, 1))),
        Goal(on=((0, 1), (0, 2))),
        Goal(on=((0, 1),), table=(0,)),
        Goal(on=((0, 1),), clear=(1,)),
    ]
    for goal in impossible:
        assert optimal_plan((TABLE,) * 3, goal) is None
    # No other goal is contradictory: all goals of up to four atoms over three blocks.
    states = arrangements(3)
    on = [(b, s) for b, s in product(range(3), repeat=2)]
    for first, second in product(on, repeat=2):
        for table, clear in product((None, 0, 1, 2), repeat=2):
            goal = Goal(
                tuple(sorted({first, second})),
                () if table is None else (table,),
                () if clear is None else (clear,),
            )
            assert (contradiction(goal) is None) == any(reached(goal, state) for state in states), goal


# ---------------------------------------------------------------------- PlanBench

# Fast Downward's optimal lengths in PlanBench's info.json for the hard set: 20, 22, … 40 in turn, except for 43.
HARD = {number: 20 + 2 * ((number - 1) % 11) for number in range(1, 111)} | {43: 40}
# The same for the first instances of the basic set, whose plans are published with PlanBench's results.
BASIC = {1: 4, 2: 4, 3: 10, 4: 10}


def test_planbench_plans_have_the_recorded_optimal_lengths(planbench):
    env = gym.make("TextBlocksworld-v0", split="planbench", data=planbench).unwrapped
    lengths: dict[str, list[int]] = {}
    for task in env.tasks:
        env.reset(seed=0, options={"task": task})
        plan = env.expert_actions()
        for place, action in enumerate(plan):
            _, reward, terminated, truncated, info = env.step(action)
            assert info["valid"] and not truncated
            assert terminated is (place == len(plan) - 1)
        assert info["success"] and reward == 1.0
        folder, _, number = task.rpartition("/instance-")
        lengths.setdefault(folder, []).append(len(plan))
        if folder.startswith("blocksworld_hard"):
            assert len(plan) == HARD[int(number)], task
        elif folder.endswith("generated_basic"):
            assert len(plan) == BASIC.get(int(number), len(plan))
    for folder, found in lengths.items():
        assert all(length % 2 == 0 for length in found), folder
        bounds = {"generated_basic": (2, 16), "generated_basic_3": (2, 8), "generated": (20, 40)}
        low, high = bounds.get(folder.rpartition("/")[2], (1, 10_000))
        assert low <= min(found) and max(found) <= high


def test_planbench_basic_plans_are_as_short_as_breadth_first_search(planbench):
    env = gym.make("TextBlocksworld-v0", split="planbench/blocksworld", data=planbench).unwrapped
    states = {n: arrangements(n) for n in (3, 4, 5)}
    for number, task in enumerate(env.tasks):
        env.reset(seed=0, options={"task": task})
        names, init, goal = env.problem
        if len(names) == 5 and number % 4:
            continue  # a quarter of the largest instances is enough
        assert len(env.expert_actions()) == distances_to(goal, states[len(names)])[init], task
