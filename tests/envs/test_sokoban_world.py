"""Sokoban as a Gymnasium environment: checker, vector environments, snapshots, seeds."""

import pickle
import random

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import arboretum  # noqa: F401
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import ENVS

IDS = [env_id.id for env_id in ENVS if env_id.module == "sokoban"]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("observation_format", ["grid", "coord", "grid_coord"])
def test_gymnasiums_checker_is_content(env_id, observation_format):
    env = gym.make(env_id, observation_format=observation_format, render_mode="ansi")
    check_env(env.unwrapped)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_play_like_single_ones(mode):
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


def test_the_largest_coordinates_fit_the_observation_space():
    env = gym.make("TextSokoban-v0", size=24, boxes=6, observation_format="coord")
    for seed in range(5):
        assert env.reset(seed=seed)[0] in env.observation_space


def test_a_snapshot_continues_identically_elsewhere_and_is_small():
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


def test_neighbours_and_the_callers_generators_are_left_alone():
    def play(env, other=None):
        texts = []
        for seed in (1, 2):
            texts.append(env.reset(seed=seed)[0])
            for action in ("Up", "Left", "Down"):
                if other:
                    other.step("Down")
                texts.append(env.step(action)[0])
        return texts

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the caller's generator, which must not move)
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    alone = play(gym.make("TextSokobanHard-v0"))
    other = gym.make("TextSokobanHard-v0")
    other.reset(seed=99)
    assert play(gym.make("TextSokobanHard-v0"), other) == alone
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


def test_members_of_a_group_share_one_generated_level():
    from arboretum.envs.sokoban.generator import generate

    generate.cache_clear()
    group = [gym.make("TextLargeSokoban-v0") for _ in range(16)]
    texts = {env.reset(seed=seed, options={"task": "any/77"})[0] for seed, env in enumerate(group)}
    assert len(texts) == 1 and generate.cache_info().misses == 1


def test_state_key_tells_positions_apart_and_ignores_the_way_there():
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


def test_sparse_rewards_pay_one_at_success_only():
    env = gym.make("TextSokoban-v0", reward_mode="sparse").unwrapped
    env.reset(seed=0)
    plan = env.expert_actions()
    assert [env.step(action)[1] for action in plan] == [0.0] * (len(plan) - 1) + [1.0]


def test_after_the_end_nothing_is_admissible_and_the_expert_has_no_plan():
    env = gym.make("TextSokoban-v0", max_steps=2, admissible=True).unwrapped
    assert env.reset(seed=0)[1]["admissible_actions"] == ("Up", "Down", "Left", "Right")
    env.step("Up")
    _, _, _, truncated, info = env.step("Up")
    assert truncated and info["admissible_actions"] == () and env.expert_actions() is None


def test_without_a_split_tasks_of_every_split_open_by_name_and_with_one_only_its_own():
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
        with pytest.raises(ConfigurationError, match="unknown task"):
            env.reset(seed=0, options={"task": task})
