"""Environments on hosts: the same episodes as here, errors, time limits, and hosts that are lost."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest

from arboretum.agents.base import Stop
from arboretum.agents.deadline import Expired
from arboretum.agents.episode import Episode
from arboretum.agents.forks import Origin
from arboretum.agents.play import Job, play
from arboretum.agents.reference import RandomAgent
from arboretum.envs.bandit import Bandit
from arboretum.envs.core import Outcome, TextEnv
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake import FrozenLake
from arboretum.eval.suite import Entry
from arboretum.trainers.sampling.env_host import EnvAnswer, EnvCall, EnvHost, EnvSource, EnvState
from arboretum.trainers.sampling.env_workers import choose_places
from arboretum.trainers.sampling.hosted_env import HostedEnv
from arboretum.trainers.sampling.redraw import redraw_all, redraw_targets
from support.environments import break_bandit, embedded_data  # noqa: F401  (a fixture)

KEEP = ("states", "forks", "choices", "limits", "snapshots")
KEPT = ("state_key", "next_state_key", "effects", "choices", "limits", "limits_after", "snapshot")


class HostsHere:
    """Hosts in this process, each of which is lost after some calls. Calls are pickled, as on a network.

    Args:
        lifetime: Calls after which a host is replaced by one without environments; None for never.
        step_timeout: See `EnvHost`.
    """

    def __init__(self, lifetime: int | None = None, step_timeout: float | None = None) -> None:
        self.queries: set[str] = set()
        self.calls = self.rebuilt = self._registered = 0
        self._lifetime, self._limit = lifetime, step_timeout
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._host, self._open = EnvHost(self._limit), set[int]()

    def register(self, env: HostedEnv) -> int:
        self._registered += 1
        return self._registered

    def execute(self, call: EnvCall, state: EnvState) -> EnvAnswer:
        with self._lock:
            return self._execute(call, state)

    def _execute(self, call: EnvCall, state: EnvState) -> EnvAnswer:
        self.calls += 1
        if self._lifetime is not None and self.calls % self._lifetime == 0:
            self._begin()
        call, state = pickle.loads(pickle.dumps((call, state)))
        failed: dict[int, bytes] = {}
        if call.number not in self._open:
            self.rebuilt += bool(state.calls)
            failed = self._host.build({call.number: state})
        data = failed.get(call.number) or self._host.execute([call])[0]
        answer: EnvAnswer = pickle.loads(data)
        (self._open.discard if answer.is_lost else self._open.add)(call.number)
        return answer


def hosted(entry: Entry, hosts: HostsHere, count: int = 1) -> list[TextEnv[Any]]:
    source, model = EnvSource.of(entry, entry.make()), entry.make()
    return [cast(TextEnv[Any], HostedEnv(hosts, source, model)) for _ in range(count)]


def records(episodes: Sequence[Episode]) -> list[Any]:
    """Return everything of episodes except times."""
    found = []
    for episode in sorted(episodes, key=lambda one: one.seed):
        record = episode.to_dict()
        for turn in record["turns"]:
            del turn["agent_seconds"], turn["env_seconds"]
        found.append((record, [[getattr(turn, name) for name in KEPT] for turn in episode.turns]))
    return found


@pytest.mark.usefixtures("embedded_data")
@pytest.mark.parametrize("lifetime", [None, 7], ids=["", "lost"])
@pytest.mark.parametrize(
    "id",
    [f"Text{name}-v0" for name in ("FrozenLake", "Sokoban", "Blocksworld", "ALFWorld", "WebShop", "SearchQA")],
)
def test_episodes_and_their_branches_are_those_of_an_environment_here(id: str, lifetime: int | None) -> None:
    entry = Entry(id, id, split="train")
    jobs = [Job(None, seed) for seed in range(3)]

    def roll_out(envs: Sequence[TextEnv[Any]]) -> tuple[list[Any], list[Any]]:
        first = list(play(RandomAgent(), envs, jobs, max_turns=4, keep=KEEP))
        last = [Origin(one, len(one.turns) - 1) for one in first]
        branches = [Job(origin.episode.task, origin.episode.seed + 100, origin) for origin in last]
        return records(first), records(list(play(RandomAgent(), envs, branches, max_turns=6, keep=KEEP)))

    hosts = HostsHere(lifetime)
    assert roll_out(hosted(entry, hosts)) == roll_out([entry.make()])
    assert (hosts.rebuilt > 0) == (lifetime is not None)


def test_step_is_one_call_once_the_queries_are_known() -> None:
    entry = Entry("lake", "TextFrozenLake-v0", split="train")
    hosts = HostsHere()
    envs = hosted(entry, hosts)
    list(play(RandomAgent(), envs, [Job(None, 0)], max_turns=3, keep=KEEP))
    before = hosts.calls
    (episode,) = play(RandomAgent(), envs, [Job(None, 1)], max_turns=5, keep=KEEP)
    # The random agent draws its action where the environment is.
    assert hosts.calls - before == 1 + 2 * episode.steps


def test_outcomes_drawn_anew_are_those_of_an_environment_here() -> None:
    entry = Entry("lake", "TextFrozenLake-v0", split="train")
    jobs = [Job(None, seed) for seed in range(4)]
    episodes = list(play(RandomAgent(), [entry.make()], jobs, max_turns=4, keep=("states", "snapshots")))
    targets = redraw_targets(episodes, [0] * len(episodes))
    outcomes = redraw_all(hosted(entry, HostsHere(lifetime=9), count=3), targets, 5)
    assert outcomes == redraw_all([entry.make()], targets, 5) and len(outcomes) > 4


def test_wrong_result_on_a_host_names_the_method_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mistaken(Bandit):
        def _apply(self, action: str) -> Any:
            return Outcome("", "1", True, True, True, True)  # type: ignore[arg-type]

    monkeypatch.setattr(Entry, "make", lambda self: Mistaken())
    (here,) = play(RandomAgent(), [Mistaken()], [Job(None, 2)])
    (there,) = play(RandomAgent(), hosted(Entry("bandit", "TextBandit-v0"), HostsHere()), [Job(None, 2)])
    assert there.error == here.error and "Mistaken._apply (test_hosted_env.py, line " in str(here.error)


def test_error_on_a_host_is_recorded_as_an_error_here(monkeypatch: pytest.MonkeyPatch) -> None:
    break_bandit(monkeypatch)
    entry = Entry("bandit", "TextBandit-v0")
    jobs = [Job("Teacher/Trader", 1), Job(None, 2)]
    here = list(play(RandomAgent(), [entry.make()], jobs))
    there = list(play(RandomAgent(), hosted(entry, HostsHere()), jobs))
    assert [one.error for one in there] == [one.error for one in here]
    assert str(here[0].error).startswith(
        "the environment failed: ConnectionError: the bandit's server is gone (env"
    )
    assert "in broken" in str(there[0].trace)


class Slow(Bandit):
    """Bandit that takes long where a class attribute says so."""

    seconds = 0.0

    def _apply(self, action: str) -> Any:
        time.sleep(self.seconds)
        return super()._apply(action)


def test_step_that_exceeds_its_limit_is_interrupted_and_its_environment_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = Entry("slow", f"{__name__}:Slow")
    hosts = HostsHere(step_timeout=0.2)
    (env,) = hosted(entry, hosts)
    env.reset(seed=3)
    monkeypatch.setattr(Slow, "seconds", 30.0)
    start = time.perf_counter()
    with pytest.raises(Expired):
        env.step("Teacher")
    assert time.perf_counter() - start < 10
    monkeypatch.setattr(Slow, "seconds", 0.0)
    local = entry.make()
    local.reset(seed=3)
    assert env.admissible_actions() == local.admissible_actions() and hosts.rebuilt == 1


def test_host_with_other_tasks_ends_the_run() -> None:
    entry = Entry("lake", "TextFrozenLake-v0", split="train")
    source = EnvSource.of(entry, entry.make())
    other = source._replace(digest="0" * 16)
    env = HostedEnv(HostsHere(), other, entry.make())
    with pytest.raises(Stop, match="has other tasks for 'lake' than this machine"):
        list(play(RandomAgent(), [cast(TextEnv[Any], env)], [Job(None, 0)]))
    with pytest.raises(ConfigurationError, match=r"has version .* of arboretum, but this machine 0\.0\.0"):
        EnvHost().open("0.0.0", [source])


class Drifting(FrozenLake):
    """Lake whose observations differ between processes, which an environment may not have."""

    made = 0

    def __init__(self, split: str | None = None) -> None:
        super().__init__(split=split)
        Drifting.made += 1
        self._own = Drifting.made

    def step(self, action: str) -> Any:
        observation, *rest = super().step(action)
        return f"{observation} {self._own}", *rest


def test_environment_that_cannot_be_rebuilt_fails_its_episode() -> None:
    entry = Entry("drifting", f"{__name__}:Drifting", split="train")
    played = list(play(RandomAgent(), hosted(entry, HostsHere(lifetime=6)), [Job(None, 4)], max_turns=9))
    assert "executing the episode's actions again gave another observation" in str(played[0].error)


def test_workers_are_spread_over_nodes_and_training_processes() -> None:
    cpus = {"a": 3.0, "b": 1.0, "c": 0.0}
    assert [place.node for place in choose_places(cpus, None, 0, 1)] == ["a", "b", "a", "a"]
    assert [place.node for place in choose_places(cpus, 1, 1, 2)] == ["b"]
    with pytest.raises(ConfigurationError, match="has 4 CPUs for 6 workers"):
        choose_places(cpus, 3, 0, 2)
