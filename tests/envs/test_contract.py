"""Contract of all registered environments, tested on embedded data.

Run as a program, this file plays episodes for another process: it reads JSON objects from standard input, and
answers each on standard output (see `main`). The tests use it to compare episodes under different hash salts.
"""

from __future__ import annotations

import base64
import copy
import importlib.util
import json
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import arboretum  # noqa: F401
from arboretum.envs import ConfigurationError, TextEnv
from arboretum.envs.bandit import Bandit
from arboretum.envs.frozenlake import FrozenLake
from arboretum.envs.registry import ENVS
from support.environments import embedded_data, make  # noqa: F401 (a fixture for all tests here)

IDS = [w.id for w in ENVS if importlib.util.find_spec(f"arboretum.envs.{w.module}") is not None]
STOCHASTIC = {"TextFrozenLake-v0"}
"""Environments in which the optimal policy may fail."""
RANDOM_EVENTS = {
    "TextBandit-v0": {1.0: 0.25, 0.0: 0.75},
    "TextBanditRev-v0": {1.0: 0.25, 0.0: 0.75},
    "TextFrozenLake-v0": {"Left": 0.8, "Up": 0.1, "Down": 0.1},
}
"""Environments whose steps are random, with the published distribution of the events that the tests draw."""
SEEDS = (0, 7, 123_456_789)
STEPS = 12
INVALID = (
    "",
    " ",
    "\x00",
    "\x07\x1b[31m\x7f",
    "\ud800",
    "\n\n\n",
    "no environment has this action",
    "√" * 50,
    "x" * 100_000,
    "go " * 33_000,
)

pytestmark = pytest.mark.parametrize("id", IDS)


def choose(env: TextEnv[Any], rng: random.Random) -> str:
    """Return a random admissible action, or the expert's if actions cannot be listed."""
    actions = env.admissible_actions()
    if actions:
        return rng.choice(actions)
    plan = env.expert_actions()
    return plan[0] if plan else "look"


def random_steps(env: TextEnv[Any], rng: random.Random, count: int) -> Iterator[list[Any]]:
    """Take at most `count` random steps, and yield everything that each returns."""
    for _ in range(count):
        action = choose(env, rng)
        observation, reward, terminated, truncated, info = env.step(action)
        yield [action, observation, reward, terminated, truncated, dict(info), env.state_key()]
        if terminated or truncated:
            return


def random_episode(env: TextEnv[Any], seed: int, count: int = STEPS) -> Iterator[list[Any]]:
    """Play a seeded random episode, and yield everything that reset and each step return."""
    observation, info = env.reset(seed=seed)
    yield [observation, dict(info), env.state_key()]
    yield from random_steps(env, random.Random(seed), count)


def mid_episode_env(id: str, seed: int = 0, count: int = 4) -> TextEnv[Any]:
    """Return an environment in the middle of an episode that has not ended."""
    for attempt in range(50):
        env = make(id)
        records = list(random_episode(env, seed + 1000 * attempt, count))
        if not any(record[3] or record[4] for record in records[1:]):
            return env
    env = make(id)  # an episode of one step has no middle: use its start
    env.reset(seed=seed)
    return env


# ---------------------------------------------------------------------- Gymnasium


def test_methods_that_need_an_episode_say_so_before_the_first_reset(id: str) -> None:
    for name, arguments in {"snapshot": (), "state_key": (), "step": ("",)}.items():
        with pytest.raises(ResetNeeded, match=r"reset\(\)"):
            getattr(make(id).unwrapped, name)(*arguments)
    for name in ("optimum", "expert_actions", "admissible_actions"):
        env = make(id).unwrapped
        try:
            before = getattr(env, name)()
        except ResetNeeded as error:
            assert "reset()" in str(error)
        else:  # It does not depend on the state.
            env.reset(seed=1)
            assert before == getattr(env, name)()


def test_gymnasium_env_checker_passes(id: str) -> None:
    check_env(make(id))


def test_id_with_module_needs_no_import(id: str) -> None:
    code = f"import gymnasium; print(gymnasium.make('arboretum:{id}').spec.id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == id


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_vector_env_matches_single_envs(id: str, vectorization: str) -> None:
    singles = [make(id), make(id)]
    expected = [env.reset(seed=seed)[0] for env, seed in zip(singles, (5, 6), strict=True)]
    actions = [choose(env, random.Random(0)) for env in singles]
    envs = gym.make_vec(id, num_envs=2, vectorization_mode=vectorization)
    try:
        observations, infos = envs.reset(seed=[5, 6])
        assert list(observations) == expected
        assert [str(task) for task in infos["task"]] == [env.task for env in singles]
        stepped = [env.step(action) for env, action in zip(singles, actions, strict=True)]
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        assert list(observations) == [step[0] for step in stepped]
        assert list(rewards) == [step[1] for step in stepped]
        assert list(terminated) == [step[2] for step in stepped]
        assert list(truncated) == [step[3] for step in stepped]
        assert list(infos["valid"]) == [step[4]["valid"] for step in stepped]
    finally:
        envs.close()


def test_observations_and_actions_are_in_their_spaces(id: str) -> None:
    env = make(id)
    assert env.instructions.strip()
    for seed in SEEDS:
        for record in random_episode(env, seed):
            observation = record[0] if len(record) == 3 else record[1]
            assert observation in env.observation_space and observation.strip()
            assert len(record) == 3 or record[0] in env.action_space


def test_ansi_rendering_is_the_observation_with_colored_boards(id: str) -> None:
    env = make(id, render_mode="ansi")
    with pytest.raises(ResetNeeded):
        env.render()
    observation, _ = env.reset(seed=1)
    rendered = env.render()
    assert rendered is not None and re.sub(r"\x1b\[[\d;]*m", "", rendered) == observation
    assert ("\x1b[" in rendered) is bool(env.palette)
    assert make(id).render() is None


def test_human_rendering_prints_actions_and_observations(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    env = make(id, render_mode="human")
    observation, _ = env.reset(seed=1)
    assert env.render() is None
    after = env.step("no environment\x1b[2J has this action")[0]
    lines = f"{observation.rstrip()}\n\n> no environment␛[2J has this action\n{after.rstrip()}\n\n"
    assert capsys.readouterr().out == lines  # no terminal, and therefore no color
    copy.deepcopy(env)
    assert capsys.readouterr().out == ""


def test_standard_loop_with_sampled_actions_plays_and_is_seedable(id: str) -> None:
    episodes = []
    for _ in range(2):
        env = gym.make(id)
        env.reset(seed=4)
        env.action_space.seed(11)
        records, admissible = [], True
        for _ in range(40):
            action = env.action_space.sample()
            assert action in env.action_space
            observation, _, terminated, truncated, info = env.step(action)
            admissible &= info["valid"] or env.unwrapped.admissible_actions() is None
            records.append([action, observation])
            if terminated or truncated:
                env.reset()
        assert admissible
        episodes.append(records)
    assert episodes[0] == episodes[1]
    assert len({action for action, _ in episodes[0]}) > 1


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_vector_env_accepts_its_own_samples(id: str, vectorization: str) -> None:
    envs = gym.make_vec(id, num_envs=2, vectorization_mode=vectorization)
    try:
        envs.reset(seed=3)
        envs.action_space.seed(5)
        for _ in range(3):
            infos = envs.step(envs.action_space.sample())[-1]
            if make(id)._constant_actions:
                assert all(infos["valid"])
    finally:
        envs.close()


def test_use_before_reset_raises_reset_needed(id: str) -> None:
    env = make(id)
    for call in (lambda: env.step("anything"), env.snapshot, lambda: env.task):
        with pytest.raises(ResetNeeded):
            call()


# ---------------------------------------------------------------------- seeds and processes


def test_same_seed_gives_same_episode_alone_interleaved_and_in_a_reused_env(id: str) -> None:
    alone = {seed: list(random_episode(make(id), seed)) for seed in SEEDS}
    other = make("TextBandit-v0")
    running = {seed: random_episode(make(id), seed) for seed in SEEDS}
    together: dict[int, list[Any]] = {seed: [] for seed in SEEDS}
    while running:
        for seed in list(running):
            other.reset()
            record = next(running[seed], None)
            if record is None:
                del running[seed]
            else:
                together[seed].append(record)
    assert together == alone
    reused = make(id)
    assert [list(random_episode(reused, seed)) for seed in SEEDS] == list(alone.values())


def test_seeds_draw_different_tasks_unless_the_split_is_small(id: str) -> None:
    env = make(id)
    tasks = {env.reset(seed=seed)[1]["task"] for seed in range(50)}
    assert len(tasks) > 10 or len(tasks) >= 0.25 * len(env.tasks)


def test_members_of_a_group_get_the_same_first_observation(id: str) -> None:
    env = make(id)
    task = env.reset(seed=3)[1]["task"]
    prompts = {make(id).reset(seed=seed, options={"task": task})[0] for seed in range(5)}
    assert len(prompts) == 1


class OtherProcesses:
    """Processes that run this file, one for each hash salt, and answer requests."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def ask(self, request: dict[str, Any], salt: str) -> dict[str, Any]:
        """Return the reply of the process with a salt; see `main`."""
        if salt not in self._processes:
            self._processes[salt] = self._start(salt)
        process = self._processes[salt]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _start(self, salt: str) -> subprocess.Popen[str]:
        env = {key: value for key, value in os.environ.items() if key != "ARBORETUM_DATA"}
        # For `tests/support`, which pytest finds by its settings.
        paths = [str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        env |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": salt}
        pipe = subprocess.PIPE
        command = [sys.executable, __file__]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.communicate()


@pytest.fixture(scope="module")
def others() -> Iterator[OtherProcesses]:
    processes = OtherProcesses()
    yield processes
    processes.close()


def json_round_trip(value: Any) -> Any:
    """Return a value as it comes back from JSON."""
    return json.loads(json.dumps(value, default=str))


def without_state_keys(records: list[list[Any]]) -> list[list[Any]]:
    """Return records without their state keys, which JSON may not be able to represent."""
    return [record[:-1] for record in records]


def pack(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def unpack(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


@pytest.mark.parametrize("salt", ["1", "4242"])
def test_another_process_plays_the_same_episodes_and_continues_a_snapshot(
    id: str, salt: str, others: OtherProcesses
) -> None:
    env = mid_episode_env(id)
    snapshot = env.snapshot()
    reply = others.ask({"id": id, "seeds": SEEDS, "snapshot": pack(snapshot), "branches": SEEDS}, salt)
    episodes = [list(random_episode(make(id), seed)) for seed in SEEDS]
    assert reply["episodes"] == json_round_trip([without_state_keys(records) for records in episodes])
    assert unpack(reply["snapshot"]) == snapshot
    assert reply["continued"] == json_round_trip(
        without_state_keys(list(random_steps(env, random.Random(0), STEPS)))
    )
    keys = [record[-1] for records in episodes for record in records]
    assert unpack(reply["keys"]) == [*keys, env.state_key()]
    branches = []
    for seed in SEEDS:
        env.restore(snapshot, seed=seed)
        branches.append(without_state_keys(list(random_steps(env, random.Random(0), STEPS))))
    assert reply["branches"] == json_round_trip(branches)


def test_global_random_generators_are_not_used(id: str) -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    env = make(id)
    list(random_episode(env, 3))
    env.expert_actions()
    env.restore(env.snapshot())
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002


# ---------------------------------------------------------------------- snapshots


def test_restored_episode_continues_identically(id: str) -> None:
    env = mid_episode_env(id)
    snapshot = env.snapshot()
    assert hash(snapshot) == hash(env.snapshot()) and env.snapshot() == snapshot
    key = env.state_key()
    first = list(random_steps(env, random.Random(5), STEPS))
    env.restore(snapshot)
    assert env.state_key() == key and env.snapshot() == snapshot
    assert list(random_steps(env, random.Random(5), STEPS)) == first
    elsewhere = make(id)
    list(random_episode(elsewhere, 99))
    elsewhere.restore(pickle.loads(pickle.dumps(snapshot)))
    assert elsewhere.state_key() == key and elsewhere.steps == snapshot.steps
    assert list(random_steps(elsewhere, random.Random(5), STEPS)) == first


def random_event(env: TextEnv[Any], snapshot: Any, seed: int | None) -> Any:
    """Return the random event of the next step after a snapshot that `before_random_event` returned."""
    env.restore(snapshot, seed=seed)
    if isinstance(env, Bandit):
        return env.step(env._risky_arm)[1]
    assert isinstance(env, FrozenLake)
    before = env.snapshot().state
    env.step("Left")
    return {-1: "Left", 3: "Down", -3: "Up"}[env.snapshot().state - before]


def before_random_event(id: str) -> tuple[TextEnv[Any], Any]:
    """Return an environment, and a snapshot from which every random event leads to another result."""
    if id != "TextFrozenLake-v0":
        env = make(id)
        env.reset(seed=0, options={"task": 3})
        return env, env.snapshot()
    env = make(id, map=["FSF", "FFF", "GFF"], success_rate=0.8)
    env.reset(seed=0)
    while env.snapshot().state != 4:  # the middle
        env.reset()
        env.step("Down")
    return env, env.snapshot()


def test_restore_with_a_seed_draws_the_published_random_events(id: str) -> None:
    if id not in RANDOM_EVENTS:
        pytest.skip("the steps of this environment are deterministic")
    env, snapshot = before_random_event(id)
    draws = 2000
    events = [random_event(env, snapshot, seed) for seed in range(draws)]
    for event, probability in RANDOM_EVENTS[id].items():
        deviation = (probability * (1 - probability) / draws) ** 0.5
        assert abs(events.count(event) / draws - probability) < 5 * deviation
    assert [random_event(env, snapshot, seed) for seed in range(200)] == events[:200]
    assert len({random_event(env, snapshot, None) for _ in range(200)}) == 1
    # Equal seeds at another snapshot give other events: agreement is that of independent draws.
    agreement = sum(p * p for p in RANDOM_EVENTS[id].values())
    elsewhere = snapshot._replace(rng_state=snapshot.rng_state ^ 1)
    same = sum(random_event(env, elsewhere, seed) == event for seed, event in enumerate(events))
    assert abs(same / draws - agreement) < 5 * (agreement * (1 - agreement) / draws) ** 0.5


def test_restore_with_a_seed_changes_nothing_in_a_deterministic_environment(id: str) -> None:
    if id in RANDOM_EVENTS:
        pytest.skip("the steps of this environment are random")
    env = mid_episode_env(id)
    snapshot = env.snapshot()
    expected = list(random_steps(env, random.Random(5), STEPS))
    for seed in (0, 1, np.int64(2**40)):
        env.restore(snapshot, seed=seed)
        assert env.snapshot()._replace(rng_state=snapshot.rng_state) == snapshot
        assert list(random_steps(env, random.Random(5), STEPS)) == expected


def test_snapshot_of_another_environment_is_rejected(id: str) -> None:
    other = make("TextBandit-v0", low_reward=0.1)
    other.reset(seed=0)
    with pytest.raises(ConfigurationError, match="snapshot"):
        make(id).restore(other.snapshot())


def test_step_limit_is_part_of_a_snapshot(id: str) -> None:
    env = make(id, max_steps=3)
    env.reset(seed=0)
    env.step("no environment has this action")
    snapshot = env.snapshot()
    for _ in range(2):
        env.restore(snapshot)
        assert env.step("no environment has this action")[3] is False
        *_, terminated, truncated, info = env.step("no environment has this action")
        assert truncated and not terminated and not info["success"]
    endless = make(id, max_steps=None)
    endless.reset(seed=0)
    limit, before = endless.max_steps, endless.snapshot()
    again = copy.deepcopy(endless)
    endless.restore(snapshot)
    assert endless.max_steps == 3
    for one in (copy.deepcopy(endless), pickle.loads(pickle.dumps(endless)), endless):
        assert one.max_steps == 3
        one.reset(seed=0)
        assert one.max_steps == limit and one.snapshot() == before
    again.restore(snapshot)
    again.max_steps = 99
    again.reset(seed=0)
    assert again.max_steps == (99 if limit is None else limit)
    assert not any(endless.step("no environment has this action")[3] for _ in range(300))


# ---------------------------------------------------------------------- copies


def test_copy_of_a_running_env_continues_identically(id: str) -> None:
    env = mid_episode_env(id)
    env.reset(options={"task": env.task})
    list(random_steps(env, random.Random(1), 1))
    env.action_space.seed(3)
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env)), copy.deepcopy(pickle.loads(pickle.dumps(env)))]
    expected = continue_with_samples(env)
    for twin in copies:
        assert type(twin) is type(env) and twin.spec == env.spec
        assert continue_with_samples(twin) == expected
    fresh = make(id)
    twin = pickle.loads(pickle.dumps(fresh))
    with pytest.raises(ResetNeeded):
        twin.step("anything")
    assert twin.reset(seed=1)[0] == fresh.reset(seed=1)[0]
    assert len(pickle.dumps(env)) < 20_000


def continue_with_samples(env: TextEnv[Any]) -> list[Any]:
    """Play the episode to its end, and the beginning of the next one, which an unseeded reset draws."""
    records: list[Any] = [env.steps, env.max_steps, env.state_key()]
    for _ in range(8):
        records += [action := env.action_space.sample(), env.step(action), env.state_key()]
    records += [env.reset(), env.action_space.sample(), env.snapshot()]
    return records


def test_pickled_env_continues_identically_in_another_process(id: str, others: OtherProcesses) -> None:
    env = mid_episode_env(id)
    env.action_space.seed(3)
    reply = others.ask({"id": id, "env": pack(env)}, "77")
    assert unpack(reply["continued"]) == continue_with_samples(env)


# ---------------------------------------------------------------------- actions


def test_every_admissible_action_is_valid(id: str) -> None:
    for seed in SEEDS:
        env = mid_episode_env(id, seed)
        actions = env.admissible_actions()
        if actions is None:
            pytest.skip("this environment cannot list its actions")
        assert isinstance(actions, tuple) and len(set(actions)) == len(actions) and actions
        snapshot = env.snapshot()
        for action in actions[:60]:
            env.restore(snapshot)
            observation, *_, info = env.step(action)
            assert info["valid"], (action, observation)
            if info["changed"] is False:
                assert env.state_key() == state_key_of(id, snapshot)


def state_key_of(id: str, snapshot: Any) -> Any:
    env = make(id)
    env.restore(snapshot)
    return env.state_key()


@pytest.mark.parametrize("action", INVALID, ids=lambda a: repr(a[:12]))
def test_invalid_action_returns_a_refusal_and_keeps_the_state(id: str, action: str) -> None:
    env = mid_episode_env(id)
    key = env.state_key()
    observation, _, terminated, _, info = env.step(action)
    assert isinstance(observation, str) and observation.strip()
    assert len(observation) <= env.observation_space.max_length
    assert info["valid"] is False and info["changed"] is False and not info["success"] and not terminated
    assert env.state_key() == key


def test_changed_tells_whether_the_state_key_changes(id: str) -> None:
    settings: list[dict[str, Any]] = [{}, {"max_steps": 3}]
    if id == "TextBlocksworld-v0":
        settings += [{"mode": "plan"}, {"mode": "plan", "max_steps": 3}]
    rng = random.Random(1)
    for kwargs in settings:
        env = make(id, **kwargs)
        for seed in range(6):
            env.reset(seed=seed)
            ended = False
            for _ in range(20):
                key = env.state_key()
                plan = env.expert_actions() or [""]
                action = rng.choice([env.random_action(rng), plan[0], "\n".join(plan[:1]), "no such action"])
                *_, terminated, truncated, info = env.step(action)
                assert info["changed"] is (env.state_key() != key), (kwargs, action)
                if ended:
                    break
                ended = terminated or truncated  # one more step, which changes nothing


def test_step_after_the_end_changes_nothing(id: str) -> None:
    env = make(id, max_steps=1)
    env.reset(seed=2)
    _, _, terminated, truncated, _ = env.step(choose(env, random.Random(0)))
    assert terminated or truncated
    key, snapshot = env.state_key(), env.snapshot()
    for action in ("again", *(env.admissible_actions() or ())):
        observation, reward, *flags, info = env.step(action)
        assert flags == [terminated, truncated] and reward == 0.0
        assert info["valid"] is False and info["changed"] is False and isinstance(observation, str)
        assert env.state_key() == key and env.snapshot() == snapshot
    assert env.expert_actions() is None and not env.admissible_actions()


# ---------------------------------------------------------------------- experts and rewards


def expert_succeeds(env: TextEnv[Any], replan: bool) -> bool:
    plan = env.expert_actions()
    success = False
    while plan:
        _, _, terminated, truncated, info = env.step(plan.pop(0))
        assert info["valid"]
        success = bool(info["success"])
        if terminated or truncated:
            break
        if replan:
            plan = env.expert_actions()
    return success


def test_expert_plan_succeeds(id: str) -> None:
    env = make(id)
    if id not in STOCHASTIC:
        for seed in range(10):
            env.reset(seed=seed)
            assert expert_succeeds(env, replan=False), env.task
            env.reset(seed=seed)
            assert expert_succeeds(env, replan=True), env.task
        return
    wins = {"expert": 0, "random": 0}
    for seed in range(100):
        env.reset(seed=seed)
        wins["expert"] += expert_succeeds(env, replan=True)
        list(random_episode(env, seed, 10_000))
        wins["random"] += env.snapshot().success
    assert wins["expert"] > wins["random"]


def test_expert_called_mid_episode_succeeds_or_returns_none(id: str) -> None:
    env = make(id, max_steps=None)
    for seed in SEEDS:
        list(random_episode(env, seed, 6))
        if env.snapshot().terminated or env.expert_actions() is None:
            continue
        success = expert_succeeds(env, replan=True)
        assert success or id in STOCHASTIC


def test_sparse_reward_is_one_at_a_successful_end_and_zero_otherwise(id: str) -> None:
    env = make(id, reward_mode="sparse")
    for seed in SEEDS:
        for record in list(random_episode(env, seed, 100))[1:]:
            assert record[2] == (1.0 if record[5]["success"] and record[3] else 0.0)
        env.reset(seed=seed)
        total = 0.0
        for action in env.expert_actions() or []:
            _, reward, terminated, truncated, info = env.step(action)
            assert reward in (0.0, 1.0)
            total += reward
            if terminated or truncated:
                break
        assert total == float(info["success"])


def test_info_has_the_documented_entries(id: str) -> None:
    env = make(id, admissible=True)
    _, info = env.reset(seed=1)
    for _ in range(3):
        assert info["task"] == env.task
        assert all(type(info[name]) is bool for name in ("success", "valid", "changed"))
        assert info["admissible_actions"] == env.admissible_actions()
        assert info["admissible_actions"] is None or isinstance(info["admissible_actions"], tuple)
        *_, info = env.step(choose(env, random.Random(0)))
    assert "admissible_actions" not in make(id).reset(seed=1)[1]


# ---------------------------------------------------------------------- tasks and bad configuration


def test_task_opens_by_name_and_by_index(id: str) -> None:
    env = make(id)
    assert len(env.tasks) > 0
    for index in (0, 1, len(env.tasks) - 1):
        name = env.tasks[index]
        first, info = env.reset(seed=1, options={"task": name})
        assert info["task"] == env.task == name and name in env.tasks
        assert env.reset(seed=2, options={"task": index})[0] == first


def test_bad_configuration_raises_one_sentence_with_a_fix(id: str) -> None:
    env = make(id)
    faults = [
        lambda: env.reset(options={"task": "no such task"}),
        lambda: env.reset(options={"task": "9" * 5000}),
        lambda: env.reset(options={"task": len(env.tasks)}),
        lambda: env.reset(options={"task": np.zeros(2, int)}),
        lambda: env.reset(options={"tusk": env.tasks[0]}),
        lambda: make(id, split="no such split"),
        lambda: make(id, reward_mode="spars"),
        lambda: make(id, max_steps=0),
    ]
    for fault in faults:
        with pytest.raises(ConfigurationError) as caught:
            fault()
        message = str(caught.value)
        assert 20 < len(message) < 1000 and "\n" not in message
        # The sentence contains a fix: a near name, the known names, a range or a file.
        assert any(
            word in message for word in ("did you mean", "known:", "named", "outside", "must be", "none", "needs")
        ), message


def main() -> None:
    """Answer each request, a line of standard input, by a line of standard output."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line)), default=str), flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Play the episodes of a request, and return their records."""
    if "env" in request:
        return {"continued": pack(continue_with_samples(unpack(request["env"])))}
    env = make(request["id"])
    episodes = [list(random_episode(env, seed)) for seed in request["seeds"]]
    other = make(request["id"])
    other.restore(unpack(request["snapshot"]))
    again = pack(other.snapshot())
    continued = list(random_steps(other, random.Random(0), STEPS))
    keys = [record[-1] for records in episodes for record in records]
    final_key = other.state_key()
    branches = []
    for seed in request["branches"]:
        other.restore(unpack(request["snapshot"]), seed=seed)
        branches.append(without_state_keys(list(random_steps(other, random.Random(0), STEPS))))
    return {
        "episodes": [without_state_keys(records) for records in episodes],
        "snapshot": again,
        "continued": without_state_keys(continued),
        "keys": pack([*keys, final_key]),
        "branches": branches,
    }


if __name__ == "__main__":
    main()
