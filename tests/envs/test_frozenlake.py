"""FrozenLake against Gymnasium's transition table, and its computed success rates against simulation."""

import itertools
import math
import random
import re
import tracemalloc
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import MAPS, generate_random_map
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import arboretum  # noqa: F401
from arboretum.envs import ConfigurationError
from arboretum.envs.frozenlake import FrozenLake, optimal_success, random_success
from arboretum.envs.frozenlake.lake import ACTIONS, Lake, generated_lake, has_path, random_map
from arboretum.envs.frozenlake.values import Policy


def make(**kwargs):
    return gym.make("TextFrozenLake-v0", **kwargs).unwrapped


MAPS_TO_COMPARE = {
    "4x4": tuple(MAPS["4x4"]),
    "8x8": tuple(MAPS["8x8"]),
    "random 5x5": tuple(generate_random_map(5, 0.7, seed=1)),
    "oblong": ("FFSFH", "HFFFG"),
}


@pytest.mark.parametrize("name", MAPS_TO_COMPARE)
@pytest.mark.parametrize("rate", [1 / 3, 0.8, 0.5, 1.0])
def test_transitions_equal_gymnasium_table(name, rate):
    desc = MAPS_TO_COMPARE[name]
    theirs = gym.make("FrozenLake-v1", desc=list(desc), success_rate=rate).unwrapped.P
    lake = Lake(desc)
    for cell, action in itertools.product(range(len(lake.moves)), range(4)):
        expected: dict[int, float] = {}
        for probability, after, reward, terminated in theirs[cell][action]:
            if probability > 0:
                expected[after] = expected.get(after, 0.0) + probability
            if not lake.terminal[cell]:
                assert terminated == lake.terminal[after]
                assert reward == float(after == lake.goal)
        assert lake.outcomes(cell, action, rate) == pytest.approx(expected)


@pytest.mark.parametrize("rate", [1 / 3, 0.8, 1.0])
def test_sampled_steps_follow_gymnasium_table(rate):
    """Frequencies of the next observation from every cell and action, by chi-square against Gymnasium's table."""
    desc = MAPS["4x4"]
    theirs = gym.make("FrozenLake-v1", desc=desc, success_rate=rate).unwrapped.P
    env = make(map=desc, success_rate=rate, max_steps=None, observation_format="grid")
    env.reset(seed=1)
    draws = 600
    for cell, action in itertools.product(range(16), range(4)):
        if theirs[cell][action][0][3] and len(theirs[cell][action]) == 1:
            continue  # terminal
        expected: Counter[int] = Counter()
        for probability, after, *_ in theirs[cell][action]:
            expected[after] += probability
        snapshot = env.snapshot()._replace(state=cell, terminated=False, success=False)
        seen: Counter[int] = Counter()
        for number in range(draws):
            env.restore(snapshot._replace(rng_state=number * 7919 + cell * 4 + action))
            observation, *_ = env.step(ACTIONS[action])
            board = observation.replace("\n", "")
            seen[next(place for place, symbol in enumerate(board) if symbol in "PX√")] += 1
        assert set(seen) <= {after for after, p in expected.items() if p > 0}
        chi = sum((seen[a] - draws * p) ** 2 / (draws * p) for a, p in expected.items() if p > 0)
        assert chi < 20  # at most 2 degrees of freedom: p < 0.0001


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 8), st.floats(0, 1), st.sampled_from(["corners", "random"]), st.integers(0, 10**6))
def test_every_random_map_has_a_path(size, p_frozen, start_goal, seed):
    desc = random_map(size, p_frozen, start_goal, random.Random(seed))
    cells = "".join(desc)
    assert len(desc) == size and len(cells) == size * size
    assert cells.count("S") == cells.count("G") == 1
    if start_goal == "corners":
        assert cells[0] == "S" and cells[-1] == "G"
    # Without slips and step limit, the optimal policy succeeds exactly if there is a path.
    assert optimal_success(desc, 1.0) == 1.0


@settings(max_examples=200, deadline=None)
@given(st.text("FH", min_size=14, max_size=14))
def test_path_check_agrees_with_gymnasium(inner):
    cells = "S" + inner + "G"
    desc = tuple(cells[i : i + 4] for i in range(0, 16, 4))
    from gymnasium.envs.toy_text.frozen_lake import is_valid

    assert has_path(desc) == is_valid([list(row) for row in desc], 4)


def test_share_of_frozen_cells_is_near_p_frozen():
    inner = "".join("".join(generated_lake(8, 0.8, "corners", f"any/{i}").desc) for i in range(300))
    frozen, holes = inner.count("F"), inner.count("H")
    # Maps without a path are drawn again, so the share is slightly above 0.8.
    assert 0.8 < frozen / (frozen + holes) < 0.84


@pytest.mark.parametrize("preset", ["ragen", "ragen-v1"])
def test_splits_share_no_map(preset):
    found = {}
    for split, size in {"train": 1600, "valid": 512, "test": 512}.items():
        env = make(preset=preset, split=split)
        maps = set()
        for index in range(size):
            env.reset(options={"task": index})
            maps.add(env.map)
        found[split] = maps
    assert not found["train"] & found["valid"]
    assert not found["train"] & found["test"] and not found["valid"] & found["test"]
    assert len(found["test"]) > 300


# ---------------------------------------------------------------------- observations


def test_observations_and_rewards_of_a_known_map():
    desc = ["SFH", "FFG"]
    grid = make(map=desc, success_rate=1.0, observation_format="grid")
    assert grid.reset(seed=0)[0] == "P_O\n__G"
    assert grid.step("Down")[0] == "__O\nP_G"
    assert grid.step("right")[0] == "__O\n_PG"
    observation, reward, terminated, truncated, info = grid.step("RIGHT")
    assert (observation, reward, terminated, truncated) == ("__O\n__√", 1.0, True, False) and info["success"]
    both = make(map=desc, success_rate=1.0)
    first, _ = both.reset(seed=0)
    assert first == (
        "Board: 2 rows, 3 columns; positions are (row, column), counted from 0\n"
        "Start: (0, 0)\nGoal: (1, 2)\nPlayer: (0, 0)\nHoles: (0, 2)\nP_O\n__G"
    )
    both.step("Right")
    fallen, reward, terminated, _, info = both.step("Right")
    assert "Player in hole: (0, 2)" in fallen and fallen.endswith("__X\n__G")
    assert reward == 0.0 and terminated and not info["success"]
    coordinates = make(map=desc, success_rate=1.0, observation_format="coord")
    assert coordinates.reset(seed=0)[0] == first.removesuffix("\nP_O\n__G")


def test_instructions_explain_every_symbol_and_observation_has_the_board_size():
    for size in (3, 4, 7):
        env = make(size=size)
        observation, _ = env.reset(seed=1)
        assert f"Board: {size} rows, {size} columns" in observation
        for symbol in set("".join(observation.split("\n")[-size:])):
            assert f"{symbol} is " in env.instructions
    assert "not slippery" in make(success_rate=1.0).instructions


def test_step_off_the_board_is_valid_and_changes_nothing():
    env = make(map=["SF", "FG"], success_rate=1.0)
    env.reset(seed=0)
    key = env.state_key()
    *_, info = env.step("Up")
    assert info["valid"] and not info["changed"] and env.state_key() == key


# ---------------------------------------------------------------------- success rates


def test_success_rates_of_known_maps():
    assert optimal_success(MAPS["4x4"], 1 / 3) == pytest.approx(14 / 17, abs=1e-9)  # the textbook's 0.82353
    assert optimal_success(("SG", "FF"), 0.8, 1) == pytest.approx(0.8)
    # A slip off the upper edge stays in the cell, from which Right succeeds with 0.8. After a slip down, the goal
    # is two steps away.
    assert optimal_success(("SG", "FF"), 0.8, 2) == pytest.approx(0.8 + 0.1 * 0.8)
    assert random_success(("SG", "FF"), 1) == pytest.approx(0.25)
    assert optimal_success(("SFFG",), 1.0, 2) == 0.0
    assert optimal_success(("SFFG",), 1.0, 3) == 1.0


@pytest.mark.parametrize(("size", "rate", "steps"), [(3, 0.8, 4), (3, 1 / 3, 4), (2, 0.5, 4)])
def test_optimal_success_equals_recursion_over_gymnasium_table(size, rate, steps):
    """Compare with the definition, evaluated recursively over Gymnasium's table."""
    for seed in range(5):
        desc = random_map(size, 0.8, "random", random.Random(seed))
        table = gym.make("FrozenLake-v1", desc=list(desc), success_rate=rate).unwrapped.P

        def best(cell, left, table=table):
            if left == 0:
                return 0.0
            return max(
                sum(p * (r if done else best(after, left - 1)) for p, after, r, done in table[cell][action])
                for action in range(4)
            )

        assert optimal_success(desc, rate, steps) == pytest.approx(best("".join(desc).index("S"), steps))


def count_successes(env, choose, tasks, seeds):
    """Return the numbers of successes and of episodes."""
    successes = episodes = 0
    for task, seed in itertools.product(tasks, seeds):
        env.reset(seed=seed, options={"task": task})
        ended = False
        while not ended:
            action = choose(env)
            if action is None:
                break
            *_, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
        successes += env.snapshot().success
        episodes += 1
    return successes, episodes


@pytest.mark.parametrize("preset", ["ragen", "ragen-v1", "gymnasium"])
@pytest.mark.parametrize("limit", [10, 40])
def test_expert_and_random_actions_succeed_at_the_computed_rates(preset, limit):
    env = make(preset=preset, max_steps=limit, split=None if preset == "gymnasium" else "test")
    tasks = [0] if preset == "gymnasium" else range(40)
    seeds = range(1000) if preset == "gymnasium" else range(25)
    rng = random.Random(0)

    def expert(env):
        plan = env.expert_actions()
        return plan[0] if plan else None

    exact = {"expert": [], "random": []}
    for task in tasks:
        env.reset(options={"task": task})
        exact["expert"].append(optimal_success(env.map, env.success_rate, limit))
        exact["random"].append(random_success(env.map, limit))
    policies = {"expert": expert, "random": lambda env: rng.choice(env.admissible_actions())}
    for name, choose in policies.items():
        successes, episodes = count_successes(env, choose, tasks, seeds)
        probabilities = np.array(exact[name])
        deviation = math.sqrt((probabilities * (1 - probabilities)).mean() / episodes)
        assert abs(successes / episodes - probabilities.mean()) < 4 * deviation + 1e-9, name


def test_documented_success_rates_hold():
    """Values of the docstring's table and, within sampling error, of RAGEN's validation maps (0.949 and 0.483)."""
    for preset, expected_optimal, expected_random, ragen_optimal in (
        ((4, 0.9, 0.8), 0.956, 0.249, 0.949),
        ((4, 0.8, 1 / 3), 0.499, 0.216, 0.483),
    ):
        size, p_frozen, rate = preset
        maps = [generated_lake(size, p_frozen, "random", f"test/{i}").desc for i in range(400)]
        optimal = np.array([optimal_success(desc, rate, 10) for desc in maps])
        uniform = np.array([random_success(desc, 10) for desc in maps])
        for sample, value in (
            (optimal, expected_optimal),
            (uniform, expected_random),
            (optimal, ragen_optimal),
        ):
            assert abs(sample.mean() - value) < 4 * sample.std() / 20 + 0.001


def test_expert_plan_depends_on_remaining_steps():
    env = make(map=["SFF", "FHF", "FFG"], success_rate=1.0)
    env.reset(seed=0)
    plan = env.expert_actions()
    assert len(plan) == 4
    for action in plan:
        *_, terminated, _, info = env.step(action)
    assert terminated and info["success"] and env.expert_actions() is None
    short = make(map=["SFF", "FHF", "FFG"], success_rate=1.0, max_steps=3)
    short.reset(seed=0)
    assert short.expert_actions() is None  # the goal is four steps away
    # With two remaining steps, the risky path is the only one.
    risky = ["SFG", "FHH", "FFF"]
    env = make(map=risky, success_rate=0.8, max_steps=2)
    env.reset(seed=0)
    assert env.expert_actions() == ["Right", "Right"]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"preset": "raven"}, "ragen"),
        ({"size": 1}, "from 2"),
        ({"size": 4.0}, "integer"),
        ({"p_frozen": 1.2}, "between 0 and 1"),
        ({"success_rate": -0.1}, "between 0 and 1"),
        ({"success_rate": "high"}, "between 0 and 1"),
        ({"start_goal": "corner"}, "corners"),
        ({"observation_format": "grids"}, "grid"),
        ({"split": "dev"}, "unknown split"),
        ({"map": ["SFG"], "size": 4}, "size applies to random maps only"),
        ({"map": ["SFG"], "split": "test"}, "no splits"),
        ({"preset": "gymnasium", "split": "test"}, "no splits"),
        ({"map": "SFG"}, "list of rows"),
        ({"map": []}, "no cells"),
        ({"map": ["SF", "G"]}, "row 2 has 1 cells, but row 1 has 2"),
        ({"map": ["SX", "FG"]}, "row 1 has 'X'"),
        ({"map": ["SF", "FF"]}, "exactly one goal"),
        ({"map": ["SS", "FG"]}, "exactly one start"),
        ({"map": ["SH", "HG"]}, "no path from start to goal"),
        ({"max_steps": -1}, "positive"),
    ],
)
def test_bad_setting_raises_a_helpful_error(kwargs, words):
    with pytest.raises(ConfigurationError, match=words):
        make(**kwargs)


def test_convergence_keeps_no_table_for_every_number_of_steps():
    lake = generated_lake(8, 0.8, "corners", "train/0")
    tracemalloc.start()
    unlimited = Policy(lake, 1 / 3)
    value = unlimited.value(lake.start, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000  # 1,500 tables take 2.8 MB, and 180 MB on a lake of 32 x 32 cells.
    limited = Policy(lake, 1 / 3)
    for steps in (10_000, 3, 200):
        assert limited.value(lake.start, steps) == unlimited.value(lake.start, steps) <= value
    assert limited.value(lake.start, 10_000) == value


def test_equal_numbers_of_different_types_give_the_same_maps():
    """Maps are drawn from the written form of p_frozen, and cached by its value, which 1 and 1.0 share."""
    boards = []
    for p_frozen in (1, 1.0, np.float64(1.0)):
        generated_lake.cache_clear()
        env = make(p_frozen=p_frozen)
        boards.append(env.reset(seed=0)[0])
    assert len(set(boards)) == 1


def test_observation_of_a_large_map_is_in_its_space():
    size = 120
    rows = ["S" + "F" * (size - 1), *["H" * (size - 1) + "F"] * (size - 2), "F" * (size - 1) + "G"]
    env = make(map=rows, observation_format="grid_coord")
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)


@pytest.mark.parametrize("kwargs", [{"preset": "ragen-v1"}, {"preset": "gymnasium"}, {"size": 8}, {"size": 2}])
def test_gymnasium_env_checker_passes_for_every_variant(kwargs):
    check_env(make(**kwargs))


@pytest.mark.parametrize("number", [256, pytest.param(4096, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("preset", ["ragen", "ragen-v1", "gymnasium"])
def test_attainable_rates_of_the_page_are_those_of_its_test_maps(preset, number):
    """Repeat the docstring's table, exactly or on fewer maps; one map has no spread."""
    row = re.search(rf"\| {preset}(?: \(one map\))? ((?:\| [\d.±\s]+){{4}})", FrozenLake.__doc__ or "")
    printed = [cell.strip() for cell in row[1].split("|")[1:5]]
    env = make(preset=preset, split=None if preset == "gymnasium" else "test", max_steps=100)
    maps = []
    for task in list(itertools.islice(env.tasks, number)):
        env.reset(seed=0, options={"task": task})
        maps.append(env.map)
    rates = [[optimal_success(desc, env.success_rate, steps) for desc in maps] for steps in (10, 100)]
    rates += [[random_success(desc, steps) for desc in maps] for steps in (10, 100)]
    for shown, values in zip(printed, rates, strict=True):
        mean, error = np.mean(values), np.std(values) / len(values) ** 0.5
        if number == 4096:
            assert shown == (f"{mean:.3f} ± {error:.3f}" if len(values) > 1 else f"{mean:.3f}")
        else:
            assert mean == pytest.approx(float(shown.split()[0]), abs=4 * error + 0.0006)
