"""Sokoban as a Gymnasium environment: checker, vector environments, snapshots and seeds."""

import pickle
import random

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import arboretum  # noqa: F401
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import ENVS

IDS = [spec.id for spec in ENVS if spec.module == "sokoban"]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("observation_format", ["grid", "coord", "grid_coord"])
def test_gymnasium_env_checker_passes_in_every_observation_format(env_id, observation_format):
    env = gym.make(env_id, observation_format=observation_format, render_mode="ansi")
    check_env(env.unwrapped)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_env_matches_single_envs(mode):
    envs = gym.make_vec("TextSokobanNewVocab-v0", num_envs=3, vectorization_mode=mode)
    single = [gym.make("TextSokobanNewVocab-v0") for _ in range(3)]
    try:
        texts, _ = envs.reset(seed=[5, 6, 7])
        assert list(texts) == [env.reset(seed=seed)[0] for env, seed in zip(single, (5, 6, 7), strict=True)]
        for action in ("Up", "Left", "Down", "Right"):
            texts, rewards, *_ = envs.step([action] * 3)
            plain = [env.step(action) for env in single]
            assert list(texts) == [step[0] for step in plain]
            assert rewards == pytest.approx([step[1] for step in plain])
    finally:
        envs.close()


def test_coordinates_of_the_largest_board_fit_the_observation_space():
    env = gym.make("TextSokoban-v0", size=24, boxes=6, observation_format="coord")
    for seed in range(5):
        assert env.reset(seed=seed)[0] in env.observation_space


def test_snapshot_is_small_and_continues_identically_in_another_env():
    env, twin = (gym.make("TextLargeSokoban-v0", max_steps=12).unwrapped for _ in range(2))
    rng = random.Random(1)
    env.reset(seed=9)
    for _ in range(5):
        env.step(rng.choice(["Up", "Down", "Left", "Right"]))
    packed = pickle.dumps(env.snapshot())
    assert len(packed) < 700
    twin.restore(pickle.loads(packed))
    for _ in range(9):
        action = rng.choice(["Up", "Down", "Left", "Right"])
        assert env.step(action) == twin.step(action)
    assert twin.step("Up")[3] is True  # truncated at the twelfth step, counted from the original's start


def test_environments_are_independent_of_each_other_and_of_global_generators():
    def play_two_episodes(env, other=None):
        texts = []
        for seed in (1, 2):
            texts.append(env.reset(seed=seed)[0])
            for action in ("Up", "Left", "Down"):
                if other:
                    other.step("Down")
                texts.append(env.step(action)[0])
        return texts

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the global generator must not be used)
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    alone = play_two_episodes(gym.make("TextSokobanHard-v0"))
    other = gym.make("TextSokobanHard-v0")
    other.reset(seed=99)
    assert play_two_episodes(gym.make("TextSokobanHard-v0"), other) == alone
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


def test_members_of_a_group_share_one_generated_level():
    from arboretum.envs.sokoban.generator import generate

    generate.cache_clear()
    group = [gym.make("TextLargeSokoban-v0") for _ in range(16)]
    texts = {env.reset(seed=seed, options={"task": "any/77"})[0] for seed, env in enumerate(group)}
    assert len(texts) == 1 and generate.cache_info().misses == 1


def test_state_key_identifies_positions_independently_of_the_path():
    env = gym.make("TextSokoban-v0", size=9, max_steps=None).unwrapped
    env.reset(seed=3)
    keys = {}
    rng = random.Random(0)
    for _ in range(300):
        text, _, terminated, *_ = env.step(rng.choice(["Up", "Down", "Left", "Right"]))
        if terminated:
            env.reset(seed=3)
            continue
        assert keys.setdefault(env.state_key(), text) == text
    assert len(set(keys.values())) == len(keys) > 10


def test_sparse_reward_is_one_at_success_only():
    env = gym.make("TextSokoban-v0", reward_mode="sparse").unwrapped
    env.reset(seed=0)
    plan = env.expert_actions()
    assert [env.step(action)[1] for action in plan] == [0.0] * (len(plan) - 1) + [1.0]


def test_no_actions_and_no_plan_after_the_end():
    env = gym.make("TextSokoban-v0", max_steps=2, admissible=True).unwrapped
    assert env.reset(seed=0)[1]["admissible_actions"] == ("Up", "Down", "Left", "Right")
    env.step("Up")
    _, _, _, truncated, info = env.step("Up")
    assert truncated and info["admissible_actions"] == () and env.expert_actions() is None


def test_tasks_of_other_splits_open_only_without_a_split():
    every, test = gym.make("TextSokoban-v0"), gym.make("TextSokoban-v0", split="test")
    texts = [env.reset(seed=seed, options={"task": "test/3"})[0] for seed, env in enumerate((every, test))]
    assert texts[0] == texts[1]
    for env, task in (
        (test, "train/3"),
        (test, "any/3"),
        (every, "tset/3"),
        (every, "test/03"),
        (every, "test/-1"),
    ):
        names = "test/0, test/1, …" if env is test else "any/0, any/1, …, and those of a split test/0, test/1, …"
        with pytest.raises(ConfigurationError, match=f"unknown task '{task}'; the tasks are named {names}"):
            env.reset(seed=0, options={"task": task})
