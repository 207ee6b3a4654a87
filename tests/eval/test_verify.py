"""`arboretum verify`: environments with planted faults fail exactly the check that is about them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import arboretum
from arboretum.agents.adapters.remote import Session
from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import ENVS
from arboretum.eval.verify.checks import CHECKS, meaning
from arboretum.eval.verify.command import verify_env
from arboretum.eval.verify.manifest import MANIFEST, ORACLE
from support.environments import embedded_data  # noqa: F401

PAGE = Path(arboretum.__file__).parent / "docs" / "verify.md"
MANIFESTS = Path(arboretum.__file__).parent / "assets" / "openenv"

PLANTED = '''
import itertools, time
from arboretum.envs import Outcome, TextEnv


class Stairs(TextEnv[int]):
    """Stairs of as many steps as the task says, to be climbed."""

    optimum_is_exact = True

    def __init__(self, max_steps=60):
        super().__init__(config={}, max_steps=max_steps)
        self.tasks = [str(steps) for steps in range(16, 48)]

    instructions = "Climb the stairs. Actions: up, down."

    def _open(self, task):
        self.top = int(task)
        return 0

    def _observe(self):
        return f"{self._state} of {self.top}{self.remark()}"

    def remark(self):
        return ""

    def _apply(self, action):
        if action not in ("up", "down"):
            return Outcome("No such action.", 0.0, False, False, False, False)
        before, self._state = self._state, max(0, self._state + (1 if action == "up" else -1))
        done = self._state == self.top
        return Outcome(self._observe(), float(done), done, done, True, before != self._state)

    def state_key(self):
        return self.top, self._state

    def admissible_actions(self):
        return ("up", "down")

    def expert_actions(self):
        return self._within_limit(["up"] * (self.top - self._state))


class IgnoresItsSeed(Stairs):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=0, options=options)


class DrawsTasksInTurn(Stairs):
    turn = 0

    def reset(self, *, seed=None, options=None):
        self.turn += 1
        return super().reset(seed=seed, options=options or {"task": self.turn % 32})


class SharesState(Stairs):
    opened = None

    def _open(self, task):
        SharesState.opened = task
        return super()._open(task)

    def remark(self):
        return f" ({SharesState.opened})" if self._state else ""


class RemembersEpisodes(Stairs):
    episodes = 0

    def _open(self, task):
        self.episodes += 1
        return super()._open(task)

    def remark(self):
        return f" (episode {self.episodes})" if self._state else ""


class ReadsTheClock(Stairs):
    def remark(self):
        return f" at {time.perf_counter_ns()}" if self._state else ""


class HasAWeakExpert(Stairs):
    def expert_actions(self):
        return ["down"] if self.top % 3 == 0 else super().expert_actions()


class HasAnExpertThatGivesUp(Stairs):
    def expert_actions(self):
        return None if self.top % 3 == 0 else super().expert_actions()


class HasNoExpert(Stairs):
    def expert_actions(self):
        return None


class CannotBeMade(Stairs):
    def __init__(self, **kwargs):
        raise ValueError("no data\\nat all")


class WinsAtRandom(Stairs):
    def _apply(self, action):
        return super()._apply("up" if action == "down" else action)


class RewardsNothing(Stairs):
    def _apply(self, action):
        return super()._apply(action or "up")


class DependsOnTheHashSalt(Stairs):
    def remark(self):
        return f" ({hash('salt')})" if self._state else ""


class ListsTasksOfASet(Stairs):
    def __init__(self, max_steps=60):
        super().__init__(max_steps)
        self.tasks = list(set(self.tasks))


class ForgetsInSnapshots(Stairs):
    ups = 0

    def _open(self, task):
        self.ups = 0
        return super()._open(task)

    def _apply(self, action):
        self.ups += action == "up"
        return super()._apply(action)

    def remark(self):
        return f" ({self.ups} up)"


class ChangesItsSnapshots(Stairs):
    """Its state is a list, which the episode shares with snapshots of it."""

    def _open(self, task):
        self.top = int(task)
        return [0]

    def _observe(self):
        return f"{self._state[0]} of {self.top}"

    def _apply(self, action):
        if action not in ("up", "down"):
            return Outcome("No such action.", 0.0, False, False, False, False)
        before = self._state[0]
        self._state[0] = max(0, before + (1 if action == "up" else -1))
        done = self._state[0] == self.top
        return Outcome(self._observe(), float(done), done, done, True, before != self._state[0])

    def state_key(self):
        return self.top, *self._state

    def expert_actions(self):
        return self._within_limit(["up"] * (self.top - self._state[0]))


class HasNoSnapshots(Stairs):
    snapshot = None


class Fails(Stairs):
    def _apply(self, action):
        raise ConnectionError("the stairs are gone")


class Talks(Stairs):
    def _open(self, task):
        print("task", task, flush=True)
        return super()._open(task)


class HasTwoTasks(Stairs):
    def __init__(self, max_steps=60):
        super().__init__(max_steps)
        self.tasks = ["16", "17"]


class Gamble(Stairs):
    """Chance: "up" wins with probability 0.8, "down" and "jump" with 0.05, and then it is over."""

    best = 0.8

    def admissible_actions(self):
        return ("up", "down", "jump")

    def _apply(self, action):
        if action not in self.admissible_actions():
            return Outcome("No such action.", 0.0, False, False, False, False)
        won = self._random() < (0.8 if action == "up" else 0.05)
        self._state = 1 + won
        return Outcome(self._observe(), float(won), True, won, True, True)

    def expert_actions(self):
        return ["up"]

    def optimum(self):
        return self._final_optimum() if self._ended else super().optimum()._replace(value=self.best)


class GamblesBadly(Gamble):
    def expert_actions(self):
        return ["up" if self.top % 4 else "down"]


class PromisesTooMuch(Gamble):
    best = 0.9
'''

FAULTS = {
    "IgnoresItsSeed": "runtime.seed_control",
    "DrawsTasksInTurn": "runtime.seed_control",
    "ReadsTheClock": "runtime.episode_determinism",
    "SharesState": "runtime.episode_isolation",
    "RemembersEpisodes": "runtime.episode_isolation",
    "HasAWeakExpert": "semantic.oracle_max",
    "HasAnExpertThatGivesUp": "semantic.oracle_max",
    "HasNoExpert": "semantic.oracle_max",
    "GamblesBadly": "semantic.oracle_max",
    "PromisesTooMuch": "semantic.oracle_max",
    "WinsAtRandom": "semantic.floor_gap",
    "RewardsNothing": "semantic.floor_gap",
    "DependsOnTheHashSalt": "semantic.replayability",
    "ListsTasksOfASet": "static.task_distribution_pinning",
    "ForgetsInSnapshots": "set_state",
    "ChangesItsSnapshots": "set_state",
}


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Module `planted` with the environments, in the working directory."""
    (tmp_path / "planted.py").write_text(PLANTED, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planted", raising=False)


def statuses(env: str, **kwargs: Any) -> dict[str, str]:
    return {finding.check_id: finding.status for finding in verify_env(env, **kwargs).findings}


@pytest.mark.parametrize(("fault", "check"), FAULTS.items())
def test_planted_fault_fails_exactly_its_check(fault: str, check: str) -> None:
    found = statuses(f"planted:{fault}")
    assert [name for name, status in found.items() if status == "fail"] == [check]


@pytest.mark.parametrize("name", ["Stairs", "Gamble"])
def test_environment_without_a_fault_passes_every_check(name: str) -> None:
    assert statuses(f"planted:{name}") == dict.fromkeys(CHECKS, "pass")


def test_what_presupposes_determinism_is_skipped_without_it() -> None:
    found = statuses("planted:ReadsTheClock")
    skipped = {name for name, status in found.items() if status == "skip"}
    assert skipped == {name for name in CHECKS if name.startswith("semantic.")} | {
        "runtime.episode_isolation",
        "set_state",
    }


def test_environment_without_snapshots_lacks_a_capability_and_passes() -> None:
    verdict = verify_env("planted:HasNoSnapshots")
    (finding,) = [finding for finding in verdict.findings if finding.status == "skip"]
    assert finding.check_id == "set_state" and "no snapshot()" in finding.evidence and verdict.passed


def test_environment_may_write_to_standard_output() -> None:
    assert statuses("planted:Talks") == dict.fromkeys(CHECKS, "pass")


def test_few_seeds_that_draw_the_same_task_by_chance_are_inconclusive() -> None:
    """Two draws from two tasks are the same in every other sample; twenty hardly ever."""
    found = [statuses("planted:HasTwoTasks", tasks=2, seed=seed)["runtime.seed_control"] for seed in range(6)]
    assert set(found) == {"pass", "inconclusive"}
    assert statuses("planted:HasTwoTasks")["runtime.seed_control"] == "pass"


def test_environment_that_cannot_be_made_is_one_sentence() -> None:
    with pytest.raises(ConfigurationError, match="CannotBeMade-v0 cannot be made: ValueError: no data at all"):
        verify_env("planted:CannotBeMade")


def test_exception_of_an_environment_is_a_failed_check() -> None:
    verdict = verify_env("planted:Fails", tasks=3)
    evidence = {finding.check_id: finding.evidence for finding in verdict.findings}
    assert not verdict.passed
    reason = "the environment failed: ConnectionError: the stairs are gone (planted.py, line "
    assert evidence["runtime.episode_determinism"].startswith(reason)


@pytest.mark.usefixtures("embedded_data")
@pytest.mark.parametrize("id", [spec.id for spec in ENVS if spec.id != "TextBoxoban-v0"])
def test_every_environment_passes_on_few_tasks(id: str) -> None:
    verdict = verify_env(id, tasks=8)
    assert {finding.check_id: finding.evidence for finding in verdict.findings if finding.status != "pass"} == {}


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_command_prints_verdicts_and_exits_with_1_on_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "planted:Stairs", "planted:WinsAtRandom", "--tasks", "10"]) == 1
    shown = capsys.readouterr().out
    assert "planted:Stairs: pass in " in shown and "planted:WinsAtRandom: fail in" in shown
    assert "fail  semantic.floor_gap" in shown


def test_wide_interval_of_few_tasks_asks_for_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "TextFrozenLake-v0", "--tasks", "4"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "fail semantic.floor_gap" in shown
    assert re.search(r"of 10 required; measured are \d\d: a larger --tasks may show them", shown)


def test_too_few_tasks_are_inconclusive_and_no_fault_of_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["verify", "planted:Stairs", "--tasks", "1"]) == 1
    shown = capsys.readouterr().out
    assert "planted:Stairs: inconclusive in " in shown and "fail" not in shown
    assert "inconclusive  semantic.floor_gap" in shown
    assert "1 task cannot show a gap of 10 points" in " ".join(shown.split())
    assert "1 seed, 1 start:" in shown and "1 pair in" in shown
    evidence = [
        line for line in shown.splitlines()[1:] if line and not re.match(r"  (pass|skip|inconclusive)  ", line)
    ]
    assert all(re.match(r" {8}\S", line) for line in evidence) and len(evidence) > len(CHECKS)


def test_json_has_the_figures_of_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "planted:Stairs", "--form", "json", "--env-arg", "max_steps=50", "--seed", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    (one,) = report["environments"]
    results = {result["check_id"]: result for result in one["results"]}
    assert (
        report["passed"] and report["policy_version"] == "severity-v2" and report["env_args"] == {"max_steps": 50}
    )
    assert list(results) == list(CHECKS) and all(result["measured"] for result in results.values())
    assert results["semantic.floor_gap"]["measured"]["expert"] == 1.0
    assert len(results["static.task_distribution_pinning"]["measured"]["pin"]) == 64


def test_bad_options_are_rejected_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "TextBandit-v0", "--tasks", "0"]) == 2
    assert "--tasks must be at least 1" in capsys.readouterr().err
    assert run(["verify", "--env-arg", "size=8"]) == 2
    assert "--env-arg needs exactly one environment" in capsys.readouterr().err


def test_page_describes_every_check_and_its_table_lists_every_environment() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text and meaning(name) for name in CHECKS)
    rows = re.findall(r"^\| (Text\S+) \|.*\| (\w+) \| [\d.]+ \|$", text, re.MULTILINE)
    assert rows == [(spec.id, "pass") for spec in ENVS]


@pytest.mark.usefixtures("embedded_data")
@pytest.mark.parametrize("id", [spec.id for spec in ENVS])
def test_manifest_has_the_pin_of_the_table_and_an_oracle_that_succeeds(id: str) -> None:
    manifest = yaml.safe_load((MANIFESTS / id / MANIFEST).read_text(encoding="utf-8"))
    pin = manifest["validation"]["task_distribution"]["dataset_version"]
    assert f"| {id} | `{pin[:8]}` |" in PAGE.read_text(encoding="utf-8")
    assert manifest["version"] == arboretum.__version__
    session = Session(id, {"reward_mode": "sparse"})
    result = session.open({"injected_state": json.loads((MANIFESTS / id / ORACLE).read_text(encoding="utf-8"))})
    assert result.reward == 1.0 and result.terminated and result.info["success"]


@pytest.mark.heavy
@pytest.mark.usefixtures("embedded_data")
def test_table_and_manifests_are_what_the_command_writes(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--manifests", str(tmp_path / "openenv")])
    assert not ended.value.code
    for spec in ENVS:
        for name in (MANIFEST, ORACLE):
            stored = (MANIFESTS / spec.id / name).read_text(encoding="utf-8")
            assert (tmp_path / "openenv" / spec.id / name).read_text(encoding="utf-8") == stored
