"""The rollout loop: failures of the environment end an episode, those of the agent the run; time limits."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit, TransformReward

import arboretum
from arboretum.agents import EpisodeChat, make_dialogue
from arboretum.agents.base import Agent, Reply, Seat, Stop
from arboretum.agents.deadline import Expired, expires_after
from arboretum.agents.episode import Episode
from arboretum.agents.play import Job, play
from arboretum.agents.reference import ExpertAgent, RandomAgent
from arboretum.envs.bandit import Bandit
from arboretum.envs.core import Outcome
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env

JOBS = [Job("Teacher/Trader" if seed % 3 == 0 else None, seed) for seed in range(12)]


def run(agent: Agent, envs: int = 1, **options: Any) -> list[Episode]:
    return list(play(agent, [make_env("TextBandit-v0") for _ in range(envs)], JOBS, **options))


class Failing(RandomAgent):
    """Random agent, one method of which raises in the fourth episode."""

    def __init__(self, method: str, error: Exception) -> None:
        self.episodes = 0
        original = getattr(self, method)

        def fail(*arguments: Any) -> Any:
            if self.episodes == 4:
                raise error
            return original(*arguments)

        begin = self.begin
        if method == "begin":
            begin = fail

        def count(seat: Seat) -> None:
            self.episodes += 1
            begin(seat)

        setattr(self, method, fail)
        self.begin = count  # type: ignore[method-assign]


@pytest.mark.parametrize("method", ["begin", "act", "settle", "again", "end"])
def test_failure_of_the_agent_ends_the_run_after_the_finished_episodes(method: str) -> None:
    played = []
    with pytest.raises(Stop, match="the agent random failed: MemoryError: out of memory") as caught:
        for episode in play(Failing(method, MemoryError("out of memory")), [make_env("TextBandit-v0")], JOBS):
            played.append(episode)
    assert len(played) == 3 and all(episode.error is None for episode in played)
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_reward_that_is_not_finite_is_an_error_of_the_environment(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Bandit._apply

    def broken(self: Bandit, action: str) -> Any:
        outcome = apply(self, action)
        return outcome._replace(reward=value) if self.task.startswith("Teacher") else outcome

    monkeypatch.setattr(Bandit, "_apply", broken)
    failed = [episode for episode in run(RandomAgent()) if episode.error is not None]
    assert 0 < len(failed) < len(JOBS)
    for episode in failed:
        assert f"is {value}, not a finite number" in str(episode.error)
        assert math.isfinite(episode.total_reward)


def test_info_that_is_not_a_number_is_an_error_and_infinity_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"Teacher/Trader": math.nan}
    monkeypatch.setattr(Bandit, "_details", lambda self: {"distance": values.get(self.task, math.inf)})
    played = run(RandomAgent())
    failed = [episode for episode in played if episode.error is not None]
    assert len(failed) == 4 and all("`distance` in its info is not a number" in str(e.error) for e in failed)
    assert {e.details["distance"] for e in played if e.error is None} == {"inf"}


@pytest.mark.parametrize("method", ["reset", "_observe", "state_key", "expert_actions"])
def test_failure_of_the_environment_ends_only_its_episode(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(Bandit, method)
    calls = 0

    def broken(self: Bandit, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise ConnectionError("the bandit's server is gone")
        return original(self, *arguments, **options)

    monkeypatch.setattr(Bandit, method, broken)
    played = run(ExpertAgent(), keep={"states"})
    assert len(played) == len(JOBS)
    (failed,) = [episode for episode in played if episode.error is not None]
    assert "ConnectionError: the bandit's server is gone (test_play.py, line " in str(failed.error)


def hang() -> None:
    time.sleep(60)


def spin() -> None:
    while True:
        pass


def wait_for_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timer signals")
@pytest.mark.parametrize("block", [hang, spin, wait_for_lock])
@pytest.mark.parametrize("method", ["_apply", "_open"])
def test_hung_environment_is_interrupted_at_the_time_limit(
    method: str, block: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(Bandit, method)
    calls = 0

    def slow(self: Bandit, argument: str) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            try:
                block()
            except Exception as error:  # An environment may swallow errors, but not the time limit.
                raise AssertionError from error
        return original(self, argument)

    monkeypatch.setattr(Bandit, method, slow)
    start = time.perf_counter()
    played = run(RandomAgent(), time_limit=0.5)
    assert time.perf_counter() - start < 10
    assert [episode.error for episode in played if episode.error] == [
        "the time limit of 0.5 s per episode expired"
    ]
    assert len(played) == len(JOBS)


class Slow(Agent):
    """Agent that replies in an episode after its delay, as an engine does that serves many at once."""

    name = "slow"

    def __init__(self, delays: Sequence[float]) -> None:
        self.delays = delays
        self.ended: list[int] = []

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        time.sleep(0.02)
        now = time.perf_counter()
        return [
            Reply((seat.env.random_action(seat.rng),))
            if now - seat.waiting_since >= self.delays[seat.episode.seed]
            else None
            for seat in seats
        ]

    def end(self, seat: Seat) -> None:
        self.ended.append(seat.episode.seed)


def test_waiting_for_a_shared_engine_counts_and_expired_episodes_are_released() -> None:
    agent = Slow([60.0 if seed % 3 == 0 else 0.0 for seed in range(12)])
    played = run(agent, envs=12, time_limit=1.0)
    expired = {episode.seed for episode in played if episode.error is not None}
    assert expired == {0, 3, 6, 9}
    assert sorted(agent.ended) == list(range(12))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timer signals")
def test_timer_that_was_armed_before_is_armed_again() -> None:
    fired = []
    handler = signal.signal(signal.SIGALRM, lambda *_: fired.append(time.perf_counter()))
    before = signal.setitimer(signal.ITIMER_REAL, 0.6)
    start = time.perf_counter()
    try:
        with pytest.raises(Expired), expires_after(start + 0.2):
            time.sleep(30)
        assert signal.getitimer(signal.ITIMER_REAL)[0] == pytest.approx(0.4, abs=0.2)
        while not fired and time.perf_counter() < start + 30:
            time.sleep(0.01)
        assert fired[0] - start >= 0.5
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timer signals")
@pytest.mark.parametrize("seconds", [0.3, 30.0])
def test_expiry_that_the_environment_swallows_is_raised_again(seconds: float) -> None:
    start = time.perf_counter()
    with pytest.raises(Expired), expires_after(start + 0.1):
        try:
            time.sleep(30)
        except BaseException:
            time.sleep(seconds)
    assert time.perf_counter() - start < 10


def test_outside_the_main_thread_the_limit_is_checked_at_the_end() -> None:
    raised = []

    def wait() -> None:
        try:
            with expires_after(time.perf_counter() + 0.05):
                time.sleep(0.1)
        except Expired:
            raised.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert raised == [True]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {"keep": {"state"}}, "did you mean states"),
        ((), {"keep": "states"}, "unknown kind of data in `keep`"),
        ((), {"max_turns": 0}, "max_turns must be at least 1"),
        ((), {"max_turns": 1.5}, "max_turns must be a whole number"),
        ((), {"time_limit": math.nan}, "time_limit must be above 0"),
        (("random",), {}, "the agent must be an Agent, such as one of make_agent, not 'random'"),
        ((RandomAgent(), Bandit()), {}, "envs must be a list of environments"),
        ((RandomAgent(), [Bandit()], [("Steady/Risky", "seed")]), {}, "a job must be a Job"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments: Any, options: Any, message: str) -> None:
    given = (RandomAgent(), [Bandit()], [Job(None, 1)])
    with pytest.raises(ConfigurationError, match=message):
        list(play(*arguments, *given[len(arguments) :], **options))


def test_jobs_may_be_tuples_with_seeds_of_numpy_and_environments_any_iterable() -> None:
    jobs: Any = [(None, np.int64(3)), (None, 4)]
    played = list(play(RandomAgent(), (Bandit() for _ in range(2)), jobs))
    again = list(play(RandomAgent(), [Bandit()], [Job(None, 3), Job(None, 4)]))
    assert [episode.error for episode in played] == [None, None]
    assert {(episode.seed, episode.task, episode.total_reward) for episode in played} == {
        (episode.seed, episode.task, episode.total_reward) for episode in again
    }


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (
            lambda: TimeLimit(gym.make("TextSokoban-v0"), 3),
            "TimeLimit would have no effect; remove it",
        ),
        (lambda: gym.make("TextSokoban-v0", max_episode_steps=3), "and pass max_steps=3"),
        (
            lambda: TransformReward(gym.make("TextSokoban-v0"), abs),
            "put what it does into the env",
        ),
    ],
)
def test_wrappers_that_would_have_no_effect_are_refused(wrap: Callable[[], Any], message: str) -> None:
    for use in (
        lambda env: list(play(RandomAgent(), [env], [Job(None, 1)])),
        lambda env: EpisodeChat(env, make_dialogue("no_think")),
        lambda env: arboretum.evaluate(env, "random", limit=1),
    ):
        with pytest.raises(ConfigurationError, match=message):
            use(wrap())


def test_wrappers_that_only_check_are_taken() -> None:
    checked = PassiveEnvChecker(OrderEnforcing(gym.make("TextSokoban-v0", split="test")))
    plain = make_env("TextSokoban-v0", split="test")
    returns = [next(play(RandomAgent(), [env], [Job(None, 1)])).total_reward for env in (checked, plain)]
    assert returns[0] == returns[1]


class Mortal(Bandit):
    """Bandit whose simulator dies in one of its tasks, and with it every later episode of the object."""

    is_dead = False

    def _apply(self, action: str) -> Outcome:
        if self.is_dead or self.task == self.tasks[0]:
            self.is_dead = True
            raise OSError("the simulator died")
        return super()._apply(action)


@pytest.mark.parametrize("count", [1, 3])
def test_environment_that_raised_is_not_used_again(count: int) -> None:
    envs = [Mortal() for _ in range(count)]
    jobs = [Job(task, 1) for task in Mortal().tasks[:3]]
    for _ in range(2):  # The caller's environments are the same ones in the second call.
        errors = {episode.task: episode.error for episode in play(RandomAgent(), envs, jobs)}
        assert [errors[job.task] is None for job in jobs] == [False, True, True]


class Counted(Bandit):
    """Bandit whose first step fails in its first task, and that counts the objects made and closed."""

    made: ClassVar[list[Counted]] = []
    closed: ClassVar[list[Counted]] = []
    is_down = False

    def __init__(self) -> None:
        if self.is_down:
            raise OSError("the server restarts")
        super().__init__()
        self.made.append(self)

    def _apply(self, action: str) -> Outcome:
        if self.task == self.tasks[0]:
            raise OSError("the simulator died")
        return super()._apply(action)

    def close(self) -> None:
        self.closed.append(self)
        super().close()


def test_replacements_are_reused_and_closed_when_they_raise_and_the_callers_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Counted, "made", made := [])
    monkeypatch.setattr(Counted, "closed", closed := [])
    env = Counted()
    bad, good = (Job(task, 1) for task in env.tasks[:2])

    def errors(*jobs: Job) -> list[bool]:
        return [episode.error is not None for episode in play(RandomAgent(), [env], jobs)]

    assert errors(bad, good) == [True, False] and len(made) == 2
    assert errors(good) == [False] and len(made) == 2  # The replacement of the last call is used.
    assert errors(bad, good) == [True, False] and len(made) == 3
    assert closed == [made[1]]
    monkeypatch.setattr(Counted, "is_down", True)
    assert errors(bad, good) == [True, False] and len(made) == 3  # It stays, as it cannot be made again.
    monkeypatch.setattr(Counted, "is_down", False)
    assert errors(good) == [False] and len(made) == 4 and closed == [made[1], made[2]]


def test_environment_that_raised_may_take_long_to_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arboretum.agents.replacement.BUILD_SECONDS", 0.05)

    class Slow(Counted):
        def __init__(self) -> None:
            time.sleep(0.2)
            super().__init__()

    env = Slow()
    jobs = [Job(env.tasks[0], 1), Job(env.tasks[1], 1)]
    errors = [one.error for one in play(RandomAgent(), [env], jobs, step_time_limit=0.1, time_limit=5.0)]
    assert "the simulator died" in (errors[0] or "") and errors[1] is None


class Logged(RandomAgent):
    """Random agent that plays each task twice, and records the calls of `begin` and `end`."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def begin(self, seat: Seat) -> None:
        self.log.append("begin")

    def again(self, seat: Seat) -> bool:
        return not seat.episode.trials

    def end(self, seat: Seat) -> None:
        self.log.append("end")


class FailsAt(Bandit):
    """Bandit that raises when a task is opened for the n-th time, or when its snapshot is taken."""

    def __init__(self, opening: int | None) -> None:
        super().__init__()
        self.opening, self.opened = opening, 0

    def _open(self, task: str) -> Any:
        self.opened += 1
        if self.opened == self.opening:
            raise OSError("no more tasks")
        return super()._open(task)

    def snapshot(self) -> Any:
        raise OSError("no state")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("opening", "keep", "log"),
    [
        (1, (), []),
        (2, (), ["begin", "end"]),
        (None, (), ["begin", "end"] * 2),
        (None, ("forks",), ["begin", "end"]),
    ],
)
def test_agent_ends_every_episode_once_that_it_began(
    opening: int | None, keep: tuple[Any, ...], log: list[str], waits: bool
) -> None:
    agent, env = Logged(), FailsAt(opening)
    env.waits = waits
    (episode,) = play(agent, [env], [Job(None, 0)], keep=keep)
    assert (episode.error is None) == (opening is None and not keep)
    assert agent.log == log
