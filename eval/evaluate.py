"""The `arboretum eval` and `report` commands: results table, `summary.json` and `report.html`."""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy
from rich.console import Console
from rich.markup import escape

from ..agents.human import HumanAgent
from ..agents.play import TimeLimits
from ..agents.registry import make_sampling
from ..envs.checks import at_least
from ..envs.errors import ConfigurationError
from ..envs.files import shown_path
from . import runner
from .agents import AgentFactory, NamedAgent
from .decisions.console import label_with_progress, print_decisions
from .identity import short_digest
from .index_connection import read_planned_tasks
from .options import option_name, parse_options
from .planning import FULL_SCOPE, Plan, Scope, plan_suite
from .progress import RunDisplay
from .provenance import CODE, describe_session, remove_secrets
from .results import report
from .run_index import INDEX_FILE
from .store import Store
from .suite import Suite, load_suite
from .summary import EXPERT, RANDOM, Summary
from .table import fit_repeats, fit_results, repeats_rows
from .workers.cluster import ray_workers
from .workers.local import local_workers

_log = logging.getLogger(__name__)

OK, FAILED, INTERRUPTED = 0, 1, 130

MAX_REASONS = 20
"""Number of reasons of broken episodes that are printed at most."""


class Prepared(NamedTuple):
    """Everything of a run that is known before an episode is played or a model is loaded.

    Attributes:
        plan: The tasks.
        agents: The agents, references included.
        manifest: Content of a new run's `run.json`.
        folder: Folder of the run.
    """

    plan: Plan
    agents: list[AgentFactory]
    manifest: dict[str, Any]
    folder: Path


def prepare(
    suite: Suite,
    agents: Sequence[AgentFactory],
    scope: Scope = FULL_SCOPE,
    *,
    references: bool = True,
    out: Path | None = None,
    name_parts: Sequence[str] = (),
) -> Prepared:
    """Check a run's suite, environments, data and agents.

    Args:
        suite: Suite to play.
        agents: Agents that play; their names must differ.
        scope: Part of the suite that is played.
        references: Also play the random and the expert agent, as reference points.
        out: Folder of the run; None for `runs/` and a name that differs between runs whose episodes must not be
            mixed.
        name_parts: Further parts of that name.

    Raises:
        ConfigurationError: Any of them cannot be used, two agents have the same name, or there is none.
    """
    scope.check()
    suite = suite.with_settings(seed=scope.seed, repeats=scope.repeats)
    named: dict[str, AgentFactory] = {}
    for agent in agents:
        if agent.name in named:
            raise ConfigurationError(f"agent {agent.name} is named twice; name each agent once.")
        named[agent.name] = agent
    participants: dict[str, AgentFactory] = {
        **({name: NamedAgent(name) for name in (RANDOM, EXPERT)} if references else {}),
        **named,
    }
    if not participants:
        raise ConfigurationError("name at least one agent, such as expert.")
    for agent in participants.values():
        if isinstance(agent, NamedAgent) and (warning := agent.dialogue_warning()) is not None:
            _log.warning(warning)
    for entry in suite.entries:
        try:
            make_sampling({**suite.sampling, **entry.sampling})  # A mistake counts without a language agent, too.
        except ConfigurationError as error:
            raise ConfigurationError(f"suite {suite.name}, entry {entry.name!r}: {error}") from None
        for agent in participants.values():
            agent.dialogue(suite, entry)  # Fail fast on a setting, before environments open their data.

    # Environments, which are opened below, may change the working directory.
    parent = Path("runs").absolute() if out is None else out.parent

    def folder(data: Mapping[str, str]) -> Path:
        return out or parent / _folder_name(suite, scope, named, data, name_parts)

    plan = plan_suite(
        suite, scope.limit, known=lambda data, searches: read_planned_tasks(folder(data) / INDEX_FILE, searches)
    )
    return Prepared(plan, list(participants.values()), _build_manifest(plan, participants), folder(plan.data))


def _folder_name(
    suite: Suite,
    scope: Scope,
    agents: Mapping[str, AgentFactory],
    data: Mapping[str, str],
    further: Sequence[str],
) -> str:
    """Return the name of a run's folder; differs between runs whose episodes must not be mixed."""
    parts = [suite.name, *dict.fromkeys(data.values())]
    settings = (("limit", scope.limit), ("seed", scope.seed), ("repeats", scope.repeats))
    parts += [f"{name}{value}" for name, value in settings if value is not None]
    parts += [f"{name}-{short_digest(one.identity)}" if one.identity else name for name, one in agents.items()]
    parts += further
    return "-".join(re.sub(r"[^\w.-]+", "_", part) for part in parts)


def evaluate(
    suite_name: str,
    agents: Sequence[AgentFactory],
    *,
    scope: Scope = FULL_SCOPE,
    references: bool = True,
    env_arg: Sequence[str] = (),
    out: Path | None = None,
    workers: int = 1,
    ray: str | None = None,
    in_flight: int = 64,
    label_seconds: float = 0.0,
    arguments: Sequence[str] | None = None,
    console: Console,
) -> int:
    """Play the missing episodes of a run, print the results, and write `summary.json` and `report.html`.

    Args:
        suite_name: Name of a shipped suite, path of a suite's file, or id of an environment.
        agents: Agents that play; their names must differ.
        scope: Part of the suite that is played.
        references: Also play the random and the expert agent, as reference points.
        env_arg: Arguments of the environment as key=value, for the suite of one id only.
        out: Folder of the run; None for `runs/<suite>-<agents>`, with a digest of each language agent's settings.
            An existing run of the same suite and agents is resumed.
        workers: Number of processes for agents that may play in several processes.
        ray: Address of a Ray cluster that plays instead of local processes; None for no cluster.
        in_flight: Maximum number of concurrent episodes.
        label_seconds: Time for labelling the decisions after playing; 0 labels none.
        arguments: Arguments of the command, for the run's record; None if there is no command.
        console: Console for progress and results.

    Returns:
        Exit status: 0 if every episode was played, 1 if some broke off, 130 if interrupted.

    Raises:
        ConfigurationError: See `load_suite`, `Store` and `runner.run`.
    """
    at_least("--in-flight", in_flight, 1)
    at_least("--label-seconds", label_seconds, 0)
    scope.check(option_name)
    suite = load_suite(suite_name, parse_options(env_arg, "--env-arg"))
    shown = [remove_secrets(pair)[:40] for pair in env_arg]
    out = None if out is None else out.absolute()
    try:
        with console.status("Choosing tasks"):  # Of an endless split, distinct ones are searched for.
            prepared = prepare(suite, agents, scope, references=references, out=out, name_parts=shown)
    except KeyboardInterrupt:
        console.print(
            "[yellow]Interrupted[/] while the tasks were chosen: nothing was written. Run the same command again,"
            " or with fewer tasks (--limit)."
        )
        return INTERRUPTED
    folder = prepared.folder
    store = Store(folder, {**prepared.manifest, "sessions": [describe_session(arguments)]})
    try:
        if ray is not None:
            worker_context: Any = ray_workers(ray, prepared.plan)
        else:
            worker_context = local_workers(workers) if workers > 1 else nullcontext()
        progress = _run(prepared, store, worker_context, in_flight, scope.limits, console)
    finally:
        store.close()
    interrupted = progress is None
    remarks: list[str] = []
    if label_seconds and not interrupted:
        try:
            _, remarks = label_with_progress(folder, label_seconds, with_costly=False, console=console)
        except KeyboardInterrupt:
            interrupted = True
    summary = report([folder])
    print_results(summary, console)
    print_remarks(summary, console)
    print_decisions(summary.decisions, remarks or summary.unlabelled, console)
    if not summary.complete:
        is_stopped = progress is not None and progress.stopped is not None
        run_again = "When what stopped the run is mended, run" if is_stopped else "Run"
        console.print(
            f"[yellow]{summary.expected - summary.episodes} of {summary.expected} episodes are missing.[/]"
            f" {run_again} the same command again to play them."
        )
    console.print(f"Report: {shown_path(folder / 'report.html')}", soft_wrap=True, highlight=False, markup=False)
    if interrupted:
        return INTERRUPTED
    return OK if summary.complete and summary.expected else FAILED


def print_results(summary: Summary, console: Console) -> None:
    """Print the table of results and, if tasks have several episodes, that of their repeats."""
    console.print(fit_results(summary, console.width))
    rows = repeats_rows(summary)
    if rows:
        console.print(fit_repeats(rows, console.width))


def print_remarks(summary: Summary, console: Console) -> None:
    """Print the notes of a summary, the stored lines that it leaves out, and the reasons of broken episodes."""
    for note in summary.notes:
        console.print(note, markup=False, style="dim")
    for problem in summary.problems:
        console.print(problem, markup=False, style="yellow", soft_wrap=True)
    reasons = sorted(summary.errors.items(), key=lambda one: -one[1])
    for reason, count in reasons[:MAX_REASONS]:
        console.print(f"[red]{count} broke off:[/] {escape(reason)}")
    if len(reasons) > MAX_REASONS:
        rest = sum(count for _, count in reasons[MAX_REASONS:])
        console.print(
            f"[red]{rest} broke off[/] for {len(reasons) - MAX_REASONS} further reasons; see summary.json."
        )
    if reasons:
        console.print("Their tracebacks are in episodes.jsonl, under `trace`.", markup=False, style="dim")


def _run(
    prepared: Prepared,
    store: Store,
    worker_context: Any,
    in_flight: int,
    limits: TimeLimits,
    console: Console,
) -> runner.Progress | None:
    """Play the missing episodes and show the progress; return None if Ctrl-C interrupted it."""
    # A human plays in the same terminal.
    is_human = any(agent.name == HumanAgent.name for agent in prepared.agents)
    display = RunDisplay(prepared.plan.suite.name, console, quiet=is_human)
    try:
        with display, worker_context as workers:
            progress = runner.run(
                prepared.plan,
                prepared.agents,
                store,
                workers=workers,
                in_flight=in_flight,
                limits=limits,
                on_progress=display.show,
            )
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted;[/] every finished episode is stored.")
        return None
    if progress.stopped is not None:
        console.print(f"[yellow]Stopped:[/] {escape(progress.stopped)}")
    return progress


def _build_manifest(plan: Plan, agents: Mapping[str, AgentFactory]) -> dict[str, Any]:
    """Return the content of a new run's `run.json`."""
    from .. import __version__

    versions = {
        "arboretum": __version__,
        "python": platform.python_version(),
        "gymnasium": gymnasium.__version__,
        "numpy": numpy.__version__,
        **{name: f"{CODE} {digest}" for name, digest in plan.code.items()},
    }
    uses_labels = [name for name, agent in agents.items() if agent.uses_success_labels]
    return {
        "suite": plan.suite.to_dict(),
        "data": dict(plan.data),
        "agents": list(agents),
        "identities": {name: agent.identity for name, agent in agents.items()},
        "settings": {name: _settings(plan.suite, agent) for name, agent in agents.items() if agent.identity},
        "budgets": {name: _budgets(plan.suite, agent) for name, agent in agents.items()},
        "uses_success_labels": uses_labels,
        "uses_simulator": [name for name, agent in agents.items() if agent.uses_simulator],
        "expected": {},
        "tasks": {},
        "sessions": [describe_session(None)],
        "versions": versions,
    }


def _settings(suite: Suite, agent: AgentFactory) -> dict[str, Any]:
    """Return an agent's settings, by entry; entries in which it has no dialogue are left out."""
    found = {entry.name: agent.settings(suite, entry) for entry in suite.entries}
    return {name: settings for name, settings in found.items() if settings is not None}


def _budgets(suite: Suite, agent: AgentFactory) -> dict[str, dict[str, int]]:
    """Return an agent's own limits on turns and actions, by entry; entries without a limit are left out."""
    budgets = {}
    for entry in suite.entries:
        dialogue = agent.dialogue(suite, entry)
        limits = {name: getattr(dialogue, name, None) for name in ("max_turns", "max_actions")}
        own = {name: limit for name, limit in limits.items() if limit is not None}
        if own:
            budgets[entry.name] = own
    return budgets
