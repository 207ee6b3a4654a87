"""Faults of machines and environments: full disks, second writers, traces of what failed, and exit statuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from arboretum.eval.agents import NamedAgent
from arboretum.eval.evaluate import evaluate
from arboretum.eval.planning import Scope
from arboretum.eval.run_index import open_index
from arboretum.eval.store import read_episode, read_results
from support.environments import break_bandit

COMMAND = [sys.executable, "-m", "arboretum.cli", "eval", "--agent", "random", "--no-references", "--workers", "1"]

FULL = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv = ["arboretum", *sys.argv[2:]]
runpy.run_module("arboretum.cli", run_name="__main__")
"""

MODULE = """
import ctypes, signal, time
from arboretum.envs.bandit import Bandit


def deep_in_the_library():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(600)


def crash():
    ctypes.string_at(0)


class Hangs(Bandit):
    def _apply(self, action):
        if self.task == "Teacher/Trader":
            deep_in_the_library()
        return super()._apply(action)


class Crashes(Bandit):
    def _apply(self, action):
        if self.task == "Teacher/Trader":
            crash()
        return super()._apply(action)
"""


class RetrievalProcess(NamedTuple):
    """A process that serves an index, and its port."""

    process: subprocess.Popen[str]
    port: int


def start_retrieval(corpus: Path, port: int) -> RetrievalProcess:
    command = [sys.executable, "-m", "arboretum.cli", "serve", "retrieval", "--index", str(corpus)]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://[^:]+:(\d+)", line):
            return RetrievalProcess(process, int(found[1]))
    raise AssertionError("the server did not start")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "many.yaml"
    path.write_text("entries:\n  - {env: TextBandit-v0, split: train, repeats: 40}\n")
    return path


@pytest.mark.skipif(os.name != "posix", reason="limits on files exist on POSIX systems only")
def test_full_disk_is_one_sentence_and_the_run_resumes_without_loss(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = [*COMMAND[3:], str(suite), "--out", str(out)]
    # A limit on the size of a file; writing beyond it fails in the middle of a line, as on a full disk.
    limited = [sys.executable, "-c", FULL, "150000", *arguments]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "episodes.jsonl: File too large." in done.stderr and "Traceback" not in done.stderr
    kept = (out / "episodes.jsonl").read_bytes()
    assert 0 < len(kept) <= 150_000 and kept.endswith(b"\n")
    done = subprocess.run([*COMMAND[:3], *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Repaired" not in done.stdout, done.stdout
    content = (out / "episodes.jsonl").read_bytes()
    assert content.startswith(kept)
    keys = [(line["task"], line["repeat"]) for line in map(json.loads, content.splitlines())]
    assert len(keys) == len(set(keys)) == 24 * 40


SMALL_DISK = """
mount -t tmpfs -o size=300k tmpfs "$1" || exit 99
shift
"$@"
status=$?
cp -r "$DISK/." "$KEPT"
exit $status
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a file system of its own")
def test_full_file_system_is_one_sentence_and_the_run_resumes_without_loss(suite: Path, tmp_path: Path) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    arguments = [*COMMAND, str(suite), "--out"]
    env = {**os.environ, "DISK": str(disk), "KEPT": str(kept)}
    command = ["unshare", "-rm", "sh", "-c", SMALL_DISK, "sh", str(disk), *arguments, str(disk / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("file systems cannot be mounted here")
    assert done.returncode == 1
    assert "No space left on device." in done.stderr and "Traceback" not in done.stderr
    before = (kept / "run" / "episodes.jsonl").read_bytes()
    assert 50_000 < len(before) < 300_000 and before.endswith(b"\n")
    done = subprocess.run([*arguments, str(kept / "run")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Repaired" not in done.stdout, done.stdout
    content = (kept / "run" / "episodes.jsonl").read_bytes()
    assert content.startswith(before) and not (kept / "run" / "episodes.damaged.jsonl").exists()
    keys = [(line["task"], line["repeat"]) for line in map(json.loads, content.splitlines())]
    assert len(keys) == len(set(keys)) == 24 * 40
    with open_index(kept / "run") as index:
        assert index.results() == read_results(kept / "run").latest


def test_second_process_on_a_folder_refuses_in_one_sentence(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    suite.write_text("entries:\n  - {env: TextBandit-v0, split: train, repeats: 4000}\n")
    command = [*COMMAND, str(suite), "--out", str(out)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (out / "episodes.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 2
    assert "another process is writing this run; wait for it, or choose another --out." in second.stderr
    assert "Traceback" not in second.stderr
    with open_index(out) as index:  # The first was not disturbed, and wrote nothing that is damaged but its end.
        assert index.results() == read_results(out).latest


def test_traceback_of_a_failing_environment_is_stored(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_bandit(monkeypatch)
    suite.write_text("entries:\n  - {env: TextBandit-v0, split: train}\n")
    text = StringIO()
    status = evaluate(
        str(suite),
        [NamedAgent("expert")],
        out=tmp_path / "run",
        references=False,
        console=Console(file=text, width=200),
    )
    monkeypatch.undo()
    assert status == 1 and "1 broke off: the environment failed: ConnectionError: the bandit's" in text.getvalue()
    tmp_path /= "run"
    results = read_results(tmp_path).latest
    broken_off = [result for result in results.values() if result.error is not None]
    assert [result.key.task for result in broken_off] == ["Teacher/Trader"] and len(results) == 24
    for result in results.values():
        trace = read_episode(tmp_path, result).trace
        assert (trace is None) == (result.error is None)
        if trace is not None:
            assert trace.startswith("Traceback") and "in broken" in trace and "server is gone" in trace
    summary = json.loads((tmp_path / "summary.json").read_text())
    (line,) = summary["lines"]
    assert line["failed"] == len(broken_off) and line["episodes"] == len(results) - len(broken_off)


def test_retrieval_server_that_is_killed_ends_searches_with_errors_and_the_run_resumes(tmp_path: Path) -> None:
    corpus, questions = tmp_path / "corpus.jsonl", tmp_path / "test.jsonl"
    documents = [{"id": str(n), "contents": f'"Oak {n}"\nThe oak{n} grows.'} for n in range(20)]
    corpus.write_text("".join(json.dumps(one) + "\n" for one in documents))
    asked = [{"id": str(n), "question": f"Which oak{n}?", "golden_answers": [f"oak{n}"]} for n in range(160)]
    questions.write_text("".join(json.dumps(one) + "\n" for one in asked))
    server = start_retrieval(corpus, 0)
    suite = tmp_path / "search.yaml"
    suite.write_text(
        f"entries:\n  - {{env: TextSearchQA-v0, tasks: 160, kwargs: {{data: {str(questions)!r},"
        f" retriever: 'http://127.0.0.1:{server.port}'}}}}\n"
    )
    out = tmp_path / "run"
    command = [*COMMAND, str(suite), "--in-flight", "160", "--label-seconds", "0", "--out", str(out)]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
            while not (out / "episodes.jsonl").exists() or (out / "episodes.jsonl").stat().st_size == 0:
                assert first.poll() is None
                time.sleep(0.01)
            server.process.kill()
            text, _ = first.communicate(timeout=200)
    finally:
        server.process.kill()
        server.process.communicate()
    results = read_results(out).latest
    broken = [result for result in results.values() if result.error is not None]
    assert first.returncode == 1 and len(results) == 160 and 0 < len(broken) < 160
    assert f"{len(broken)} broke off:" in text and "cannot be reached" in text
    assert all("RetrievalError" in (read_episode(out, result).trace or "") for result in broken)

    # Without the server nothing is played again, in one sentence.
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "cannot be reached" in refused.stderr and "Traceback" not in refused.stderr
    server = start_retrieval(corpus, server.port)
    try:
        assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    finally:
        server.process.kill()
        server.process.communicate()
    again = read_results(out).latest
    assert len(again) == 160 and all(result.error is None for result in again.values())
    assert all(again[key] == result for key, result in results.items() if result.error is None)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
@pytest.mark.parametrize(("kind", "function"), [("Hangs", "deep_in_the_library"), ("Crashes", "crash")])
def test_stack_of_a_worker_that_hangs_or_crashes_is_stored(
    kind: str, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faulty", raising=False)
    traces = tmp_path / "traces"
    traces.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(traces))
    suite = tmp_path / "s.yaml"
    suite.write_text(f"entries:\n  - {{name: A, env: 'faulty:{kind}', split: train}}\n")
    text = StringIO()
    status = evaluate(
        str(suite),
        [NamedAgent("random")],
        out=tmp_path / "run",
        references=False,
        workers=2,
        scope=Scope(timeout=1.0),
        console=Console(file=text, width=200),
    )
    assert status == 1 and "1 broke off" in text.getvalue()
    results = read_results(tmp_path / "run").latest
    (failed,) = (result for result in results.values() if result.error is not None)
    assert len(results) == 24 and failed.key.task == "Teacher/Trader"
    trace = read_episode(tmp_path / "run", failed).trace
    assert trace is not None and f"in {function}" in trace and "in _apply" in trace
    assert list(traces.iterdir()) == []


def test_error_with_a_lone_surrogate_is_shown_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "names.py").write_text(
        "import os\nfrom arboretum.envs.bandit import Bandit\n\n\nclass Fails(Bandit):\n"
        "    def _apply(self, action):\n        raise ValueError(os.fsdecode(b'caf\\xe9'))\n"
    )
    monkeypatch.chdir(tmp_path)
    suite = tmp_path / "s.yaml"
    suite.write_text(
        "entries:\n  - {name: A, env: 'names:Fails', split: train, tasks: 3}\n"
        "  - {name: B, env: TextBandit-v0, split: train, tasks: 3}\n"
    )
    for verb, *arguments in (
        ("eval", str(suite), *COMMAND[4:], "--out", "run"),
        ("report", "run"),
        ("decisions", "run"),
    ):
        command = [*COMMAND[:3], verb, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == (1 if verb == "eval" else 0), done.stderr
        assert "Traceback" not in done.stderr
    assert "caf\N{REPLACEMENT CHARACTER}" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    (reason,) = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["errors"]
    assert reason.endswith("ValueError: caf\udce9 (names.py, line 7, in Fails._apply)")
