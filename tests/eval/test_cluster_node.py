"""Workers of a cluster's nodes: they load data once, take episodes while they play, and check their tasks."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.base import Stop
from arboretum.agents.play import NO_LIMITS, TimeLimits
from arboretum.agents.reference import RandomAgent
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.eval.agents import NamedAgent
from arboretum.eval.planning import Plan, PlannedEpisode, plan_suite
from arboretum.eval.runner import run
from arboretum.eval.store import Store
from arboretum.eval.suite import parse_suite
from arboretum.eval.workers.interface import FinishedEpisode
from arboretum.eval.workers.node import NodeWorker, RemoteWorker, ReplicaWorker

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that share memory need fork")

MODULE = """
import os
from pathlib import Path
from arboretum.envs.bandit import Bandit

class Heavy(Bandit):
    def __init__(self, log="", split=None):
        super().__init__(split=split)
        with Path(log).open("a") as file:
            file.write(f"opened {os.getpid()}\\n")
        self._log = log

    def _apply(self, action):
        with Path(self._log).open("a") as file:
            file.write(f"played {os.getpid()}\\n")
        return super()._apply(action)
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    (tmp_path / "heavy_env.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    log = tmp_path / "log.txt"
    suite = parse_suite(
        f"name: s\nentries:\n  - {{name: heavy, env: 'heavy_env:Heavy', kwargs: {{log: {log}}}, repeats: 5}}\n",
        "s",
    )
    yield plan_suite(suite)
    sys.modules.pop("heavy_env", None)


@pytest.fixture
def worker(plan: Plan) -> Iterator[NodeWorker]:
    made = NodeWorker(plan, NO_LIMITS, processes=2)
    yield made
    made.close()


class BrokenAgent(RandomAgent):
    """Agent that fails at once."""

    name = "broken"

    def act(self, seats: object) -> list[None]:
        raise MemoryError("no memory left")


def planned(plan: Plan, agent: RandomAgent) -> list[PlannedEpisode]:
    return [
        PlannedEpisode(key, entry, plan.suite.episode_seed(entry, key.task, key.repeat), agent)
        for key, entry in plan.keys(agent.name)
    ]


def collect(worker: RemoteWorker, count: int) -> list[FinishedEpisode]:
    found: list[FinishedEpisode] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline
        found += worker.collect()
    return found


def test_processes_of_a_node_share_what_was_loaded_once(plan: Plan, worker: NodeWorker, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("")  # without the opening by the plan
    episodes = planned(plan, RandomAgent())
    first, second = episodes[:7], episodes[7:]
    worker.submit(pickle.dumps(first))
    found = collect(worker, len(first))
    worker.submit(pickle.dumps(second))  # after the queue was empty
    found += collect(worker, len(second))
    lines = log.read_text().splitlines()
    assert lines.count(f"opened {os.getpid()}") == 1 and sum(line.startswith("opened") for line in lines) == 1
    workers = {line for line in lines if line.startswith("played")}
    assert len(workers) == 2 and f"played {os.getpid()}" not in workers
    # The same episodes as in one process.
    with_store = Store(tmp_path / "run", {"suite": plan.suite.to_dict(), "agents": ["random"], "identities": {}})
    progress = run(plan, [NamedAgent("random")], with_store)
    with_store.close()
    assert {one.key for one in found} == {one.key for one in episodes} and progress.done == len(episodes)
    assert sum(one.episode.success for one in found) == progress.successes["random"]


def test_machine_with_other_tasks_plays_none(plan: Plan) -> None:
    other = dataclasses.replace(plan, digests={"heavy": "0" * 16})
    worker = NodeWorker(other, NO_LIMITS, processes=1)
    worker.submit(pickle.dumps(planned(plan, RandomAgent())[:1]))
    with pytest.raises(ConfigurationError, match="has other tasks for 'heavy'"):
        collect(worker, 1)


def test_agent_that_fails_on_a_node_ends_the_run_with_its_reason(plan: Plan, worker: NodeWorker) -> None:
    worker.submit(pickle.dumps(planned(plan, BrokenAgent())[:1]))
    with pytest.raises(Stop, match="no memory left"):
        collect(worker, 1)


@pytest.mark.parametrize("kind", [NodeWorker, ReplicaWorker])
def test_agent_that_a_node_cannot_load_ends_the_run_with_the_reason(plan: Plan, kind: type[RemoteWorker]) -> None:
    """Ray reports it to nobody, and the run would wait for episodes that nobody plays."""
    if kind is NodeWorker:
        worker: RemoteWorker = NodeWorker(plan, NO_LIMITS, processes=1)
    else:
        worker = ReplicaWorker(plan, NO_LIMITS, NamedAgent("random"), in_flight=1)
    worker.submit(b"cnowhere_installed\nAgent\n.")  # a pickled reference to a class
    with pytest.raises(ConfigurationError, match=r"^node .* cannot load the agent \(.*nowhere_installed.*install"):
        collect(worker, 1)


class SlowLake(FrozenLake):
    """Lake whose steps take longer than anybody waits."""

    def _apply(self, action: str) -> Any:
        time.sleep(20)
        return super()._apply(action)


def test_limit_of_a_step_ends_an_episode_of_a_replica() -> None:
    """It plays in a thread, where no signal interrupts a step."""
    name = f"{__name__}:SlowLake"
    plan = plan_suite(parse_suite(f"entries: [{{name: slow, env: '{name}', tasks: 2}}]", "slow.yaml"))
    replica = ReplicaWorker(plan, TimeLimits(step=0.3), NamedAgent("random"), in_flight=2)
    episodes = [dataclasses.replace(one, agent=None) for one in planned(plan, RandomAgent())]
    begun = time.monotonic()
    replica.submit(pickle.dumps(episodes))
    found = collect(replica, len(episodes))
    assert time.monotonic() - begun < 15
    assert {one.episode.error for one in found} == {"the time limit of 0.3 s per step of the environment expired"}


def test_replica_plays_what_arrives_meanwhile(plan: Plan) -> None:
    """A replica makes its agent itself."""
    replica = ReplicaWorker(plan, NO_LIMITS, NamedAgent("random"), in_flight=3)
    episodes = [dataclasses.replace(one, agent=None) for one in planned(plan, RandomAgent())]
    for start in range(0, len(episodes), 4):
        replica.submit(pickle.dumps(episodes[start : start + 4]))
    found = collect(replica, len(episodes))
    assert {one.key for one in found} == {one.key for one in episodes}
    assert all(not one.episode.turns and b'"turns":[{' in one.encoded.line for one in found)
