"""The command `arboretum verify`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ...envs.checks import at_least
from ...envs.errors import ConfigurationError
from ...envs.registry import ENVS
from ...envs.terminal import Terminal, literal
from ..options import parse_options
from .checks import CHECKS, Finding, Status, run_checks
from .manifest import write_manifest
from .options import VerifyOptions
from .subject import Subject

POLICY = "severity-v2"
"""Version of OpenEnv's policy whose names the checks have."""

_STYLES = {"pass": "green", "fail": "bold red", "skip": "yellow", "inconclusive": "bold yellow"}
_INDENT = 8


@dataclass(frozen=True)
class Verdict:
    """Findings about one environment.

    Attributes:
        env: Id of the environment.
        findings: Result of every check.
        seconds: CPU time, in seconds.
    """

    env: str
    findings: list[Finding]
    seconds: float

    @property
    def passed(self) -> bool:
        """True if no check failed and none was inconclusive."""
        return self.word == "pass"

    @property
    def word(self) -> Status:
        """The verdict: "fail" if a check failed, else "inconclusive" if one was, else "pass"."""
        found = {finding.status for finding in self.findings}
        return "fail" if "fail" in found else "inconclusive" if "inconclusive" in found else "pass"


def verify_env(env: str, kwargs: Mapping[str, Any] | None = None, *, tasks: int = 20, seed: int = 0) -> Verdict:
    """Check an environment against the policy.

    Args:
        env: Id of the environment, or path `module:Class`.
        kwargs: Its arguments.
        tasks: Number of tasks to sample.
        seed: Seed of the sample and of all episodes.

    Raises:
        ConfigurationError: The environment or an argument is unknown, or has no tasks.
    """
    start = sum(os.times()[:4])  # with the other process
    findings = run_checks(Subject(env, kwargs or {}, tasks, seed))
    return Verdict(env, findings, sum(os.times()[:4]) - start)


def verify_envs(options: VerifyOptions, *, console: Terminal) -> int:
    """Check environments, print the verdicts, and return the exit status: 1 unless all of them passed.

    Raises:
        ConfigurationError: See `verify_env`.
    """
    at_least("--tasks", options.tasks, 1)
    kwargs = parse_options(options.env_arg, "--env-arg")
    if kwargs and len(options.env) != 1:
        raise ConfigurationError("--env-arg needs exactly one environment.")
    verdicts = []
    for env in dict.fromkeys(options.env) or [spec.id for spec in ENVS]:
        with console.status(literal(f"verifying {env} …")):
            verdict = verify_env(env, kwargs, tasks=options.tasks, seed=options.seed)
        verdicts.append(verdict)
        if options.manifests is not None and verdict.passed:
            findings = {finding.check_id: finding for finding in verdict.findings}
            write_manifest(options.manifests / env, env, kwargs, findings)
        if options.form == "text":
            console.print(_describe(verdict))
    if options.form == "json":
        console.print(_as_json(verdicts, kwargs, options), markup=False, soft_wrap=True)
    elif options.form == "markdown":
        console.print(markdown_table(verdicts), markup=False, soft_wrap=True)
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def _describe(verdict: Verdict) -> Group:
    """Return a verdict for the terminal: a headline, and each check with its evidence indented below."""
    head = literal(verdict.env, "bold")
    head.append(f": {verdict.word}", _STYLES[verdict.word])
    head.append(f" in {verdict.seconds:.1f} s of CPU time", "dim")
    lines: list[RenderableType] = [head]
    for finding in verdict.findings:
        name = Text(f"  {finding.status}", _STYLES[finding.status])
        lines.append(name.append(f"  {finding.check_id}", "not bold default"))
        lines.append(Padding(literal(finding.evidence, "dim"), (0, 0, 0, _INDENT)))
    return Group(*lines, "")


def _as_json(verdicts: Sequence[Verdict], kwargs: Mapping[str, Any], options: VerifyOptions) -> str:
    from ... import __version__

    report = {
        "arboretum": __version__,
        "policy_version": POLICY,
        "tasks": options.tasks,
        "seed": options.seed,
        "env_args": dict(kwargs),
        "passed": all(verdict.passed for verdict in verdicts),
        "environments": [
            {
                "env": verdict.env,
                "passed": verdict.passed,
                "cpu_seconds": round(verdict.seconds, 3),
                "results": [asdict(finding) for finding in verdict.findings],
            }
            for verdict in verdicts
        ],
    }
    return json.dumps(report, indent=2)


def markdown_table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a table in Markdown: a row for each environment, with the figures of the checks."""
    heads = ["environment", *(name.rpartition(".")[2] for name in CHECKS), "verdict", "CPU seconds"]
    rows = [heads, ["---"] * len(heads)]
    for verdict in verdicts:
        cells = [_cell(finding) for finding in verdict.findings]
        word = verdict.word if verdict.passed else f"**{verdict.word}**"
        rows.append([verdict.env, *cells, word, f"{verdict.seconds:.1f}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(finding: Finding) -> str:
    """Return the figures of a finding in a few words."""
    if finding.status != "pass":
        return finding.status if finding.status == "skip" else f"**{finding.status}**"
    measured = finding.measured
    match finding.check_id:
        case "static.task_distribution_pinning":
            return f"`{measured['pin'][:8]}`"
        case "runtime.seed_control":
            return f"{measured['starts']} starts"
        case "semantic.oracle_max" if "low" in measured:
            return f"{measured['reached']:.3f} of {measured['maximum']:.3f}"
        case "semantic.oracle_max":
            return f"{measured['episodes']} of {measured['episodes']}"
        case "semantic.floor_gap":
            return f"{100 * measured['expert']:.1f} % to {100 * max(measured['random'], measured['idle']):.1f} %"
        case _:
            return f"{measured['actions']} steps"
