"""The evaluation as a person runs it: progress while it plays, then table, `summary.json` and `report.html`."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import numpy
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ..agents.human import HumanAgent
from ..envs.errors import ConfigurationError
from . import runner
from .agents import NamedAgent
from .report import write_report
from .runner import AgentFactory, local_workers, ray_workers
from .store import Key, Result, Store
from .suite import Suite, load_suite
from .summary import EXPERT, RANDOM, Summary, load_run, summarise, write_summary
from .table import results_table

OK, FAILED, INTERRUPTED = 0, 1, 130


def evaluate(
    suite_name: str,
    agents: Sequence[AgentFactory],
    *,
    out: Path | None = None,
    references: bool = True,
    workers: int = 1,
    ray: str | None = None,
    in_flight: int = 64,
    console: Console,
) -> int:
    """Play what is missing of a suite, and sum up.

    Args:
        suite_name: a shipped suite or the path of one.
        players: who plays; names must differ.
        out: the run's folder; default `runs/<suite>-<players>`. An existing run of the same suite and players is
            continued.
        references: play the random and the expert player too, as the lines to read all others against.
        workers: processes for players that can be spread.
        ray: address of a Ray cluster to play on instead.
        in_flight: episodes under way at once, in this process or handed to workers.

    Returns:
        Exit status: 0 if every episode was played, 1 if some broke off, 130 if interrupted.

    Raises:
        ConfigurationError: see `load_suite`, `make_agent`, `Store`, `runner.plan`.
    """
    suite = load_suite(suite_name)
    asked = {agent.name: agent for agent in agents}
    everyone = ({name: NamedAgent(name) for name in (RANDOM, EXPERT)} if references else {}) | asked
    folder = out or Path("runs") / "-".join(re.sub(r"[^\w.-]+", "_", name) for name in (suite.name, *asked))
    manifest = _manifest(suite, everyone)
    store = Store(folder, manifest)
    try:
        if ray is not None:
            place: Any = ray_workers(ray)
        else:
            place = local_workers(workers) if workers > 1 else nullcontext()
        interrupted = _play(suite, list(everyone.values()), store, place, in_flight, console)
    finally:
        store.close()
    summary = report([folder])
    console.print(results_table(summary))
    for note in summary.notes:
        console.print(note, markup=False, style="dim")
    for reason, count in summary.errors.items():
        console.print(f"[red]{count} broke off:[/] ", end="")
        console.print(reason, markup=False)
    if not summary.complete:
        console.print(
            f"[yellow]{summary.expected - summary.episodes} of {summary.expected} episodes are missing.[/]"
            " Run the same command again to play them."
        )
    console.print(f"Report: {folder / 'report.html'}", soft_wrap=True, highlight=False, markup=False)
    if interrupted:
        return INTERRUPTED
    return OK if summary.complete and summary.expected else FAILED


def _play(
    suite: Suite, agents: Sequence[AgentFactory], store: Store, place: Any, in_flight: int, console: Console
) -> bool:
    """Play what is missing; returns whether the person interrupted it."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rates]}"),
        console=console,
        transient=True,
        disable=any(agent.name == HumanAgent.name for agent in agents),  # who needs the screen
    )
    row = bar.add_task(suite.name, total=None, rates="")
    first = True
    start = time.monotonic()

    def show(progress: runner.Progress) -> None:
        nonlocal first
        if first:
            first = False
            for sentence in progress.repairs:
                bar.console.print(f"[yellow]Repaired:[/] {escape(sentence)}")
            if progress.done:
                bar.console.print(f"{progress.done} of {progress.total} episodes were played before.")
            bar.reset(row, total=progress.total, completed=progress.done)
        rates = "  ".join(
            f"{escape(name)} {100 * progress.successes[name] / n:.0f}%" for name, n in progress.played.items()
        )
        if progress.tokens:
            rates += f"  {progress.tokens / (time.monotonic() - start):.0f} tokens/s"
        if progress.cost:
            rates += f"  ${progress.cost:.2f}"
        if progress.failed:
            rates += f"  [red]{progress.failed} broke off[/]"
        bar.update(row, completed=progress.done + progress.failed, rates=rates)

    try:
        with bar, place as workers:
            done = runner.run(suite, agents, store, workers=workers, in_flight=in_flight, on_progress=show)
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted;[/] every finished episode is kept.")
        return True
    if done.stopped is not None:
        console.print("[yellow]Stopped:[/] ", end="")
        console.print(done.stopped, markup=False)
    return False


def _manifest(suite: Suite, agents: Mapping[str, AgentFactory]) -> dict[str, Any]:
    from .. import __version__

    versions = {
        "arboretum": __version__,
        "python": platform.python_version(),
        "gymnasium": gymnasium.__version__,
        "numpy": numpy.__version__,
    }
    uses_labels = [name for name, agent in agents.items() if agent.uses_success_labels]
    return {
        "suite": suite.to_dict(),
        "agents": list(agents),
        "uses_success_labels": uses_labels,
        "expected": {},
        "tasks": {},
        "versions": versions,
    }


def report(folders: Sequence[Path], path: Path | None = None) -> Summary:
    """Sum up one run, or several of the same suite side by side, and write the report.

    For one run `summary.json` and `report.html` are written into its folder; for several, only the report, at
    `path`. Players of the same name in different runs are told apart by the run's folder.

    Raises:
        ConfigurationError: the runs are of different suites.
        DataError: a folder holds no run.
    """
    loaded = [load_run(folder) for folder in folders]
    suite, _, _, manifest = loaded[0]
    for folder, (other, _, _, _) in zip(folders, loaded, strict=True):
        if other.to_dict() != suite.to_dict():
            raise ConfigurationError(
                f"{folder}: is a run of another suite than {folders[0]}; they cannot be compared."
            )
    listed = [name for _, names, _, _ in loaded for name in names]
    results: dict[Key, Result] = {}
    sources: list[tuple[Path, list[Result]]] = []
    agents: list[str] = []
    for folder, (_, names, found, _) in zip(folders, loaded, strict=True):
        rename = {}
        for name in names:
            if name in agents and name in (RANDOM, EXPERT):
                continue  # the same player on the same plays
            rename[name] = (
                f"{name} ({folder.name})" if listed.count(name) > 1 and name not in (RANDOM, EXPERT) else name
            )
            agents.append(rename[name])
        kept = [_renamed(result, rename[key.agent]) for key, result in found.items() if key.agent in rename]
        results |= {result.key: result for result in kept}
        sources.append((folder, kept))
    summary = summarise(suite, agents, results, manifest)
    if len(folders) == 1:
        write_summary(folders[0], summary)
    write_report(path or folders[0] / "report.html", summary, sources)
    return summary


def _renamed(result: Result, agent: str) -> Result:
    if agent == result.key.agent:
        return result
    fields = {name: getattr(result, name) for name in Result.__dataclass_fields__}
    return Result(**{**fields, "key": result.key._replace(agent=agent)})


__all__ = ["evaluate", "report"]
