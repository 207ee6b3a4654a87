"""Environments that wait: concurrent steps, stragglers, the time limit of a step, abandoned threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from arboretum.agents.base import Agent, Reply, Seat, Stop
from arboretum.agents.episode import Episode
from arboretum.agents.forks import CannotFork, Origin
from arboretum.agents.play import Job, play
from arboretum.agents.reference import ExpertAgent, RandomAgent
from arboretum.agents.registry import make_agent
from arboretum.envs.frozenlake import FrozenLake
from arboretum.envs.registry import make_env
from arboretum.envs.searchqa import SearchQA
from arboretum.eval.bench.slow_retrieval import SlowRetrieval

if TYPE_CHECKING:
    from arboretum.eval.bench.endpoint import Endpoint

KEPT = ("state_key", "next_state_key", "effects", "choices", "limits", "limits_after", "snapshot")
JOBS = [Job(None, seed) for seed in range(12)]


class RemoteLake(FrozenLake):
    """Lake whose steps take a few milliseconds, which differ, as those of a server do."""

    waits = True

    def _apply(self, action: str) -> Any:
        time.sleep(self.rng_state % 7 / 1000)
        return super()._apply(action)


class BlockedLake(FrozenLake):
    """Lake that blocks in the second step of the episodes of chosen seeds until `released` is set."""

    waits = True
    blocked: frozenset[int] = frozenset()
    released = threading.Event()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed = seed
        return super().reset(seed=seed, options=options)

    def _apply(self, action: str) -> Any:
        if self.seed in self.blocked and self._steps == 1:
            wait_for_the_server(self.released)
        return super()._apply(action)


def wait_for_the_server(event: threading.Event) -> None:
    event.wait(60)


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that names the seeds whose episodes block; they are released after the test."""
    monkeypatch.setattr(BlockedLake, "released", threading.Event())
    yield lambda *seeds: monkeypatch.setattr(BlockedLake, "blocked", frozenset(seeds))
    BlockedLake.released.set()


def lakes(kind: type[FrozenLake] = RemoteLake, count: int = 4, **options: Any) -> list[FrozenLake]:
    return [kind(**options) for _ in range(count)]


def record(episode: Episode) -> dict[str, Any]:
    """Return everything of an episode except times and names of conversations."""
    stored = episode.to_dict()
    for one in (stored, *stored.get("trials", ())):
        for turn in one["turns"]:
            del turn["agent_seconds"], turn["env_seconds"]
    return stored


def by_seed(episodes: Sequence[Episode]) -> dict[int, dict[str, Any]]:
    return {episode.seed: record(episode) for episode in episodes}


class Asking(Agent):
    """Agent that searches for words of the question, then answers."""

    name = "asking"

    def __init__(self, searches: int) -> None:
        self.searches = searches

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: list[Reply | None] = []
        for seat in seats:
            word = seat.rng.choice(seat.env.question.question.split())  # type: ignore[attr-defined]
            is_last = len(seat.episode.turns) == self.searches
            replies.append(Reply((f"<answer>{word}</answer>" if is_last else f"<search>{word}</search>",)))
        return replies


def test_searches_of_16_episodes_reach_the_server_at_the_same_time() -> None:
    pytest.importorskip("aiohttp", reason="the extra openai is not installed")
    local = SearchQA(dataset="encyclopedia")
    assert not local.waits
    server = SlowRetrieval(local.retriever, delay=0.25)
    jobs = [Job(None, seed) for seed in range(16)]
    with server.running() as url:
        envs = [SearchQA(dataset="encyclopedia", retriever=url) for _ in range(16)]
        assert all(env.waits for env in envs)
        played = list(play(Asking(searches=4), envs, jobs))
    assert server.requests == 64
    assert server.peak_active == 16
    assert server.connections == 16  # which are used again
    direct = list(play(Asking(searches=4), [SearchQA(dataset="encyclopedia") for _ in range(16)], jobs))
    assert by_seed(played) == by_seed(direct)


class Retrying(RandomAgent):
    """Random agent that tries every task three times."""

    def again(self, seat: Seat) -> bool:
        return len(seat.episode.trials) < 2


@pytest.mark.parametrize("agent", [RandomAgent(), ExpertAgent(), Retrying()], ids=["random", "expert", "trials"])
@pytest.mark.parametrize("keep", [(), ("states", "forks", "choices", "limits", "snapshots")], ids=["", "keep"])
def test_concurrent_steps_play_the_same_episodes(agent: Agent, keep: Any) -> None:
    def run(waits: bool) -> list[Episode]:
        envs = lakes()
        for env in envs:
            env.waits = waits
        return list(play(agent, envs, JOBS, max_turns=6, keep=keep))

    concurrent, sequential = run(True), run(False)
    assert by_seed(concurrent) == by_seed(sequential)
    both = [sorted(episodes, key=lambda one: one.seed) for episodes in (concurrent, sequential)]
    for one, other in zip(*both, strict=True):
        for left, right in zip(one.turns, other.turns, strict=True):
            assert [getattr(left, name) for name in KEPT] == [getattr(right, name) for name in KEPT]


def test_forks_of_environments_that_wait_continue_in_their_threads() -> None:
    first = list(play(RandomAgent(), lakes(), JOBS[:4], max_turns=4, keep={"forks"}))
    jobs = [Job(one.task, one.seed + 100, Origin(one, len(one.turns) - 1)) for one in first]
    forked = list(play(RandomAgent(), lakes(), jobs, max_turns=6))
    assert all(one.error is None for one in forked)
    assert sorted(len(one.turns) for one in forked) >= sorted(len(one.turns) for one in first)


def test_straggler_holds_up_no_other_episode(blocked: Callable[..., None]) -> None:
    blocked(3)
    order = []
    for episode in play(RandomAgent(), lakes(BlockedLake), JOBS, max_turns=5):
        order.append(episode.seed)
        assert episode.error is None
        if len(order) == len(JOBS) - 1:
            BlockedLake.released.set()
    assert order[-1] == 3 and sorted(order) == list(range(12))


def test_step_that_ends_while_a_reply_is_awaited_gets_the_next_reply_at_once(
    make: Callable[..., Any], endpoint: Endpoint
) -> None:
    from arboretum.eval.bench.endpoint import ScriptedResponse

    endpoint.script.append(ScriptedResponse(delay=20.0))  # for whichever of the two episodes is first
    agent = make_agent("think", engine=make(), dialogue={"max_turns": 5})
    episodes = play(agent, lakes(count=2), JOBS[:2])
    first = next(episodes)
    assert len(first.turns) == 5 and endpoint.active == 1 and len(endpoint.requests) == 6
    episodes.close()  # type: ignore[attr-defined]


@pytest.mark.heavy
def test_tokens_of_a_local_model_do_not_depend_on_concurrent_steps(tiny_model: Any) -> None:
    from arboretum.agents.engines.registry import make_engine

    engine = make_engine("transformers", str(tiny_model), context=4096)
    agent = make_agent(
        "think", engine=engine, sampling={"max_tokens": 12, "temperature": 1.0}, dialogue={"max_turns": 3}
    )
    runs = []
    for waits in (True, False):
        envs = lakes()
        for env in envs:
            env.waits = waits
        runs.append(sorted(play(agent, envs, JOBS), key=lambda one: one.seed))
    engine.close()
    for one, other in zip(*runs, strict=True):
        assert [turn.token_ids for turn in one.turns] == [turn.token_ids for turn in other.turns]
        for left, right in zip(one.turns, other.turns, strict=True):
            assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)  # rounding differs between batches


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize("method", ["reset", "_apply"])
def test_failure_in_a_thread_ends_only_its_episode(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(RemoteLake, method)
    calls = iter(range(10**6))

    def broken(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 7:
            raise ConnectionError("the lake's server is gone")
        return original(*arguments, **options)

    monkeypatch.setattr(RemoteLake, method, broken)
    played = list(play(RandomAgent(), lakes(), JOBS, max_turns=5))
    (failed,) = [one for one in played if one.error is not None]
    assert len(played) == 12
    assert "failed: ConnectionError: the lake's server is gone (test_waiting.py, line " in str(failed.error)
    assert "in broken" in str(failed.trace)


def test_environment_that_cannot_be_forked_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: RemoteLake) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(RemoteLake, "snapshot", refuse)
    before = set(threading.enumerate())
    with pytest.raises(CannotFork, match="RemoteLake cannot be forked"):
        list(play(RandomAgent(), lakes(), JOBS, keep={"snapshots"}))
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


class Stopping(RandomAgent):
    """Agent that stops the run in the third call, while steps are in progress."""

    calls = 0

    def act(self, seats: Sequence[Seat]) -> Sequence[Reply | None]:
        self.calls += 1
        if self.calls == 3:
            raise Stop("the budget is spent")
        return super().act(seats)


def test_environments_of_a_run_that_stopped_can_be_used_again() -> None:
    envs = lakes()
    with pytest.raises(Stop, match="the budget is spent"):
        list(play(Stopping(), envs, JOBS))
    again = list(play(RandomAgent(), envs, JOBS, max_turns=5))
    assert by_seed(again) == by_seed(list(play(RandomAgent(), lakes(), JOBS, max_turns=5)))


# ---------------------------------------------------------------------- the time limit of a step


@pytest.mark.parametrize("limits", [{"step_time_limit": 0.4}, {"time_limit": 3.0}], ids=["step", "episode"])
def test_step_that_does_not_return_is_abandoned(limits: Any, blocked: Callable[..., None]) -> None:
    blocked(3, 5)
    envs = lakes(BlockedLake, count=2)
    played = list(play(RandomAgent(), envs, JOBS, max_turns=5, **limits))
    assert len(played) == 12
    failed = sorted((one for one in played if one.error is not None), key=lambda one: one.seed)
    unit = "step of the environment" if "step_time_limit" in limits else "episode"
    assert {one.error for one in failed} == {f"the time limit of {max(limits.values()):g} s per {unit} expired"}
    assert [one.seed for one in failed] == [3, 5]
    assert [len(one.turns) for one in failed] == [2, 2] and [one.steps for one in failed] == [1, 1]
    assert all("in wait_for_the_server" in str(one.trace) for one in failed)
    # The threads go on after their episodes are recorded, and the caller still has the abandoned environments.
    before = [record(one) for one in failed]
    blocked()
    BlockedLake.released.set()
    again = list(play(RandomAgent(), envs, JOBS, max_turns=5, **limits))
    assert [record(one) for one in failed] == before
    assert by_seed(again) == by_seed(list(play(RandomAgent(), lakes(BlockedLake), JOBS, max_turns=5)))


def test_limit_of_a_step_begins_again_with_every_step() -> None:
    class Lake(FrozenLake):
        def _apply(self, action: str) -> Any:
            time.sleep(0.3)
            return super()._apply(action)

    class Plan(Agent):
        name = "plan"

        def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
            return [Reply(tuple(seat.env.expert_actions() or ())) for seat in seats]

    for waits in (True, False):
        Lake.waits = waits
        envs = lakes(Lake, count=1, success_rate=1.0)
        (episode,) = play(Plan(), envs, [Job(None, 1)], step_time_limit=0.9)
        assert episode.error is None and episode.success
        assert len(episode.turns) == 1 and episode.steps >= 4  # which take longer than the limit of one


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timer signals")
def test_step_of_an_environment_that_does_not_wait_is_interrupted(blocked: Callable[..., None]) -> None:
    blocked(3, 5)
    envs = lakes(BlockedLake, count=2)
    for env in envs:
        env.waits = False
    played = list(play(RandomAgent(), envs, JOBS, max_turns=5, step_time_limit=0.4))
    failed = [one for one in played if one.error is not None]
    assert [one.seed for one in failed] == [3, 5] and len(played) == 12
    assert {one.error for one in failed} == {"the time limit of 0.4 s per step of the environment expired"}
    assert all("in wait_for_the_server" in str(one.trace) for one in failed)


def test_new_environment_has_the_arguments_of_the_abandoned_one(blocked: Callable[..., None]) -> None:
    blocked(3)
    env = BlockedLake(max_steps=2)
    played = list(play(RandomAgent(), [env], [JOBS[3], *JOBS[:3], *JOBS[4:]], step_time_limit=0.4))
    assert [one.error is None for one in played] == [False] + [True] * 11
    assert max(one.steps for one in played) == 2 and any(one.truncated for one in played)


HANG = """
import threading
from arboretum.agents.play import Job, play
from arboretum.agents.reference import RandomAgent
from arboretum.envs.bandit import Bandit

class Hung(Bandit):
    waits = True
    def _apply(self, action):
        threading.Event().wait()

(episode,) = play(RandomAgent(), [Hung()], [Job(None, 1)], step_time_limit=0.2)
print(episode.error)
"""


def test_abandoned_step_does_not_keep_the_process_from_exiting() -> None:
    done = subprocess.run([sys.executable, "-c", HANG], capture_output=True, text=True, timeout=120)
    assert done.stdout == "the time limit of 0.2 s per step of the environment expired\n", done.stderr
    assert done.returncode == 0


def test_id_of_a_registered_environment_may_be_marked_as_waiting() -> None:
    envs = [make_env("TextBandit-v0") for _ in range(3)]
    expected = by_seed(list(play(RandomAgent(), envs, [Job(None, seed) for seed in range(9)])))
    for env in envs:
        env.waits = True
    assert by_seed(list(play(RandomAgent(), envs, [Job(None, seed) for seed in range(9)]))) == expected
