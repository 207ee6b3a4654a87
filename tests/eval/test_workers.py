"""Worker processes that hang, crash or are killed, and Ctrl-C: no episode is lost, and none ends the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env
from arboretum.eval.agents import NamedAgent
from arboretum.eval.evaluate import evaluate
from arboretum.eval.planning import Scope
from arboretum.eval.workers import local, process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")

MODULE = '''
import ctypes, itertools, multiprocessing, os, signal, time
from pathlib import Path

from arboretum.agents.reference import RandomAgent
from arboretum.envs.bandit import Bandit

BAD = "Teacher/Trader"


def block():
    """Hang as compiled code does, which no signal interrupts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGINT, signal.SIGTERM})
    time.sleep(600)


def compute():
    """Hang in compiled code that neither returns nor releases the interpreter's lock."""
    sum(itertools.repeat(0))


ACTS = {
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep": lambda: time.sleep(600),
    "block": block,
    "compute": compute,
}


class Dangerous(Bandit):
    def __init__(self, act="exit", bad=BAD, times=None, marker="", split=None):
        super().__init__(split=split)
        self.act, self.bad, self.times, self.marker = act, bad, times, marker

    def _apply(self, action):
        if self.bad in ("", self.task):
            with Path(self.marker).open("a") as log:
                log.write(f"{os.getpid()}\\n")
            tries = len(Path(self.marker).read_text().splitlines())
            if self.times is None or tries <= self.times:
                ACTS[self.act]()
        return super()._apply(action)


class SlowToOpen(Bandit):
    def __init__(self, marker="", split=None):
        super().__init__(split=split)
        if multiprocessing.parent_process() is not None:
            block()


class Broken(RandomAgent):
    name = "broken"

    def act(self, seats):
        raise MemoryError("no memory left")


class Unpicklable(RandomAgent):
    name = "unpicklable"

    def __init__(self):
        self.value = lambda: 0


def load():
    raise ImportError("there is no such place")


class Unloadable(RandomAgent):
    name = "unloadable"

    def __reduce__(self):
        return load, ()
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with the module of dangerous environments, which worker processes find, too."""
    (tmp_path / "dangerous.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "dangerous", raising=False)
    return tmp_path


def write_suite(folder: Path, **kwargs: Any) -> str:
    path = folder / "suite.yaml"
    options = json.dumps({"marker": str(folder / "tries"), **kwargs})
    path.write_text(
        f"entries:\n  - {{name: A, env: 'dangerous:Dangerous', split: train, kwargs: {options}, repeats: 3}}\n"
    )
    return str(path)


def run(suite: str, out: Path, agent: str = "random", count: int = 2, **scope: Any) -> tuple[int, str]:
    text = StringIO()
    console = Console(file=text, width=200)
    agents = [NamedAgent(agent)]
    status = evaluate(
        suite, agents, out=out, references=False, workers=count, scope=Scope(**scope), console=console
    )
    return status, text.getvalue()


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("act", "cause"), [("exit", "exit status 3"), ("segfault", "SIGSEGV"), ("kill", "SIGKILL, as when memory")]
)
def test_episode_that_kills_its_worker_twice_is_an_error_and_all_others_are_played(
    act: str, cause: str, folder: Path
) -> None:
    status, shown = run(write_suite(folder, act=act), folder / "run")
    stored = records(folder / "run")
    assert status == 1 and len(stored) == 24 * 3
    failed = [record for record in stored if record["error"] is not None]
    assert [record["task"] for record in failed] == ["Teacher/Trader"] * 3
    assert all(
        "ended its worker process twice" in record["error"] and cause in record["error"] for record in failed
    )
    assert len((folder / "tries").read_text().splitlines()) == 6  # each of three repeats was tried twice
    assert "3 broke off" in shown
    assert len({(record["task"], record["repeat"]) for record in stored}) == 24 * 3


def test_episode_that_kills_its_worker_once_is_played_again_alone(folder: Path) -> None:
    status, _ = run(write_suite(folder, act="kill", times=1), folder / "run")
    stored = records(folder / "run")
    assert status == 0 and len(stored) == 24 * 3 and all(record["error"] is None for record in stored)
    first, second, *_ = (folder / "tries").read_text().split()
    assert first != second  # another process
    other, _ = run(write_suite(folder, bad="no such task"), folder / "other")
    assert other == 0
    assert {(r["task"], r["repeat"], r["return"]) for r in stored} == {
        (r["task"], r["repeat"], r["return"]) for r in records(folder / "other")
    }


@pytest.mark.parametrize("act", ["sleep", "block"])
def test_hung_episode_ends_at_the_time_limit_even_where_no_signal_interrupts_it(
    act: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE", 0.5)
    monkeypatch.setattr(process, "GRACE", 0.5)
    start = time.monotonic()
    status, _ = run(write_suite(folder, act=act), folder / "run", timeout=1.0)
    assert time.monotonic() - start < 120
    stored = records(folder / "run")
    assert status == 1 and len(stored) == 24 * 3
    errors = {record["error"] for record in stored if record["error"] is not None}
    killed = "; its worker process was killed" if act == "block" else ""
    assert errors == {f"the time limit of 1 s per episode expired{killed}"}
    assert sum(record["error"] is not None for record in stored) == 3


@pytest.mark.parametrize("count", [1, 2])
def test_hung_step_ends_at_its_own_limit(count: int, folder: Path) -> None:
    status, _ = run(write_suite(folder, act="sleep"), folder / "run", count=count, step_timeout=0.5)
    assert status == 1
    check_hung_steps(folder, "the time limit of 0.5 s per step of the environment expired", "in _apply")


def check_hung_steps(folder: Path, error: str, place: str) -> None:
    """Assert that all episodes are stored, and that those that hung have the error and a trace with the place."""
    stored = records(folder / "run")
    assert len(stored) == 24 * 3
    failed = [record for record in stored if record["error"] is not None]
    assert {record["error"] for record in failed} == {error}
    assert len(failed) == 3 and all(place in record["trace"] for record in failed)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_hung_step_that_no_signal_interrupts_ends_at_its_own_limit(
    timeout: float | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE", 0.5)
    monkeypatch.setattr(process, "GRACE", 0.5)
    suite = write_suite(folder, act="compute")
    start = time.monotonic()
    status, _ = run(suite, folder / "run", timeout=timeout, step_timeout=0.5)
    assert time.monotonic() - start < 50 and status == 1
    error = "the time limit of 0.5 s per step of the environment expired; its worker process was killed"
    check_hung_steps(folder, error, "in compute")


def test_environment_that_hangs_while_a_worker_opens_it_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "OPENING", 0.5)
    suite = Path(write_suite(folder))
    suite.write_text(suite.read_text().replace("Dangerous", "SlowToOpen"))
    status, _ = run(str(suite), folder / "run", limit=1, timeout=0.5)
    assert status == 1
    stored = records(folder / "run")
    assert len(stored) == 3 and all("its worker process was killed" in record["error"] for record in stored)


def test_failed_agent_in_a_worker_stops_the_run_with_the_reason(folder: Path) -> None:
    status, shown = run(write_suite(folder, bad="none"), folder / "run", agent="dangerous:Broken")
    assert status == 1
    assert "Stopped: the agent broken failed: MemoryError: no memory left" in shown
    assert "When what stopped the run is mended, run the same command again to play them." in " ".join(
        shown.split()
    )
    assert records(folder / "run") == []


def test_agent_that_cannot_be_sent_to_workers_is_named(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"agent 'unpicklable' cannot be sent .* --workers 1"):
        run(write_suite(folder, bad="none"), folder / "run", agent="dangerous:Unpicklable")
    status, _ = run(write_suite(folder, bad="none"), folder / "run", agent="dangerous:Unpicklable", count=1)
    assert status == 0


def test_agent_that_workers_cannot_load_is_named(folder: Path) -> None:
    """As of a class in a notebook: each of its episodes ended two processes."""
    with pytest.raises(ConfigurationError, match=r"cannot be loaded in worker .*no such place.* --workers 1"):
        run(write_suite(folder, bad="none"), folder / "run", agent="dangerous:Unloadable")


def test_time_limit_of_months_is_accepted(folder: Path) -> None:
    assert run(write_suite(folder, bad="none"), folder / "run", limit=1, timeout=1e7)[0] == 0


def test_workers_that_cannot_start_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's main module is imported again by the workers; here it ends them."""
    script = folder / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom rich.console import Console\n"
        "from arboretum.eval.agents import NamedAgent\nfrom arboretum.eval.evaluate import evaluate\n"
        "evaluate('TextBandit-v0', [NamedAgent('random')], out=Path('run'), workers=2, console=Console())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "worker processes cannot start" in done.stderr and "__main__" in done.stderr


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_ctrl_c_ends_hung_workers_at_once_and_keeps_finished_episodes(folder: Path) -> None:
    suite = write_suite(folder, act="block", bad=make_env("TextBandit-v0", split="train").tasks[-1])
    command = [sys.executable, "-m", "arboretum.cli", "eval", suite, "--agent", "random", "--no-references"]
    process = subprocess.Popen(
        [*command, "--out", "run", "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    file, deadline = folder / "run" / "episodes.jsonl", time.monotonic() + 60
    # The last task hangs, after all other episodes but those that wait in the queue of its worker.
    while time.monotonic() < deadline and not (folder / "tries").exists():
        time.sleep(0.05)
    time.sleep(1.0)
    before = file.read_bytes()
    assert before.count(b"\n") >= 23 * 3 - 16
    pool = children(process.pid)
    assert len(pool) >= 2
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and time.monotonic() - start < 20
    assert "Interrupted; every finished episode is stored." in output and "Traceback" not in errors
    assert file.read_bytes() == before
    deadline = time.monotonic() + 20  # Python's resource tracker ends a little after its process.
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in pool):
        time.sleep(0.05)
    assert not [pid for pid in pool if Path(f"/proc/{pid}").exists()]
