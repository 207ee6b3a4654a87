"""The commands `arboretum report` and `arboretum compare`, for runs of evaluation and of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...envs.errors import ConfigurationError
from ...eval.comparison.command import compare_agents
from ...eval.decisions.console import print_decisions
from ...eval.evaluate import print_remarks, print_results
from ...eval.output_path import check_output, describe_failure, write_failure
from ...eval.pairing_options import NO_OPTIONS, PairingOptions
from ...eval.results import load_results, write_results
from .comparison import compare_runs, print_comparison, write_comparison
from .report import is_training_run, run_kind, write_report


def report_runs(runs: Sequence[Path], out: Path | None, *, console: Console) -> int:
    """Write the report of a run again, or one report of several runs of evaluation, and return the exit status.

    Args:
        runs: Folders of evaluation runs, or the folder of one training run.
        out: HTML file; None writes `report.html` in the folder of the run.
        console: Terminal.

    Raises:
        ConfigurationError: There is no run, no file for several runs, several runs with a training run, or a file
            that cannot be written, of which evaluation runs print their tables first.
    """
    if not runs:
        raise ConfigurationError("name at least one folder of a run, such as runs/quick-random-expert.")
    if len(runs) > 1 and out is None:
        raise ConfigurationError("the report of several runs needs a file: add --out, such as --out both.html.")
    if out is not None:
        check_output(out)
    path = out or runs[0] / "report.html"
    training = [run for run in runs if is_training_run(run)]
    if training and len(runs) > 1:
        raise ConfigurationError(
            f"{training[0]}: is a training run, which cannot be compared in a report; name no other run."
        )
    failure: ConfigurationError | None = None
    if training:
        try:
            write_report(training[0], path)
        except OSError as error:
            raise write_failure(error, path) from None
    else:
        remark = ""
        with load_results(runs) as results:
            try:
                write_results(results, path)
            except OSError as error:
                if error.filename == str(path):
                    failure = write_failure(error, path)
                else:  # The page of a run that cannot be changed was written elsewhere.
                    remark = f"{describe_failure(error, path)}."
        print_results(results.summary, console)
        print_remarks(results.summary, console)
        print_decisions(results.summary.decisions, results.summary.unlabelled, console)
        if remark:
            console.print(remark, markup=False, style="yellow", soft_wrap=True)
        if failure is not None:
            raise failure
    console.print(f"Report: {path}", soft_wrap=True, highlight=False, markup=False)
    return 0


def compare_any(runs: Sequence[Path], out: Path | None, options: PairingOptions, *, console: Console) -> int:
    """Compare runs of training, or runs of evaluation, and return the exit status.

    Args:
        runs: Folders of at least two runs of one kind.
        out: HTML file to write as well; None for none.
        options: Options of evaluation runs.
        console: Terminal.

    Raises:
        ConfigurationError: The runs are of different kinds, or cannot be compared.
    """
    for run in runs:
        if not run.exists():
            raise ConfigurationError(f"{run}: does not exist; name folders of runs, such as those below runs/.")
    kinds = [run_kind(run) for run in runs]
    if kinds and set(kinds) == {"evaluation"}:
        return compare_agents(runs, out, options, console=console)
    if "evaluation" in kinds:
        evaluation = runs[kinds.index("evaluation")]
        other, kind = next((run, kind) for run, kind in zip(runs, kinds, strict=True) if kind != "evaluation")
        what = f"a {kind} run" if kind is not None else "no run"
        raise ConfigurationError(
            f"{other}: holds {what}, but {evaluation} an evaluation run; compare runs of one kind."
        )
    if options != NO_OPTIONS:
        raise ConfigurationError("--agent, --pool and --detect are for evaluation runs; remove them.")
    if out is not None:
        check_output(out)
    comparison = compare_runs(runs)
    print_comparison(comparison, console)
    if out is not None:
        try:
            write_comparison(comparison, out)
        except OSError as error:
            raise write_failure(error, out) from None
        console.print(f"Comparison: {out}", soft_wrap=True, highlight=False, markup=False)
    return 0
