"""Run a study: trials in parallel processes, live curves of the running ones, and a table at the end.

Results are written as soon as a trial or a control is finished; starting the study again in the same folder runs
the missing ones only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ...envs.checks import at_least, first_difference
from ...envs.errors import ConfigurationError, DataError, unknown_name
from ...envs.files import folder_failure, shown_path, write_atomic
from ...eval.manifest import STUDY_FILE, SUMMARY_FILE, check_holds_no_run, check_replaces_nothing
from ..checkpoints.interruption import Interruption
from ..checkpoints.run_folder import SETTINGS_FILE, read_run_settings
from ..commands.outcome import FAILED, INTERRUPTED, OK
from ..commands.preflight import require_torch
from ..config.resolve import make_entry
from ..config.serialize import to_plain
from ..config.task_data import DATA, Data, check_data, describe_code, describe_data, edited_code, edited_since
from ..state import Activity
from .curves import read_curves
from .definition import Study, env_folder
from .evaluation import write_suite
from .page import REPORT_FILE, evaluation_commands, write_page
from .progress import StudyProgress
from .results import make_rows
from .table import render_table, to_markdown
from .tables import make_tables
from .trials import (
    EXPERT,
    OTHER_MODEL,
    RANDOM,
    TUNED,
    WARM_START,
    evaluate_control,
    policy_path,
    run_supervised,
    run_trial,
    trial_path,
)
from .workers import WorkItem, run_phase, single_threaded_workers

TABLE_FILE = "table.md"
REPORTED_ONLY = ("description", "baseline", "pairs", "collapse")
"""Fields of a study that only its tables read, so that its folder may be used on when they change."""


def run_study(study: Study, out: Path, *, workers: int = 2, envs: Sequence[str] = (), console: Console) -> int:
    """Run the missing trials and controls of a study, and print its tables.

    Args:
        study: Study to run.
        out: Folder of the study; receives the trials' folders, `summary.json`, `table.md` and `report.html`.
        workers: Number of trials or controls that run at the same time, each in a process with one thread.
        envs: Environments to run now, by their names in the study; none for all. The tables have all results.
        console: Console that shows progress.

    Returns:
        Exit status: 0 when everything is done, 1 when a trial or a control failed, 130 when interrupted.

    Raises:
        ConfigurationError: The study cannot work, or the folder holds another study.
    """
    at_least("workers", workers, 1)
    for env in envs:
        if env not in study.envs:
            raise unknown_name(f"environment of the study {study.name}", env, study.envs)
    study.check()
    require_torch()
    envs = envs or list(study.envs)
    work = missing_work(study, out, envs)
    if any(work):
        study.check_models(envs)
    claim_folder(study, out, is_done=not any(work))
    console.print(f"{study.name}: {escape(study.description)}", highlight=False)
    failures: list[str] = []
    status = OK
    if any(work):
        try:
            with Interruption(Activity()).handle_signals():
                failures = _run_in_workers(study, out, work, workers, console)
        except KeyboardInterrupt:
            console.print("[yellow]Interrupted:[/] finished trials are kept; run the same command to continue.")
            status = INTERRUPTED
    for failure in failures:
        console.print(f"[red]Failed:[/] {escape(failure)}", highlight=False)
    _write_results(study, out, console)
    return status or (FAILED if failures else OK)


def claim_folder(study: Study, out: Path, *, is_done: bool = False) -> None:
    """Write the study's definition into its folder, unless the folder holds something else.

    Args:
        study: Study to claim the folder for.
        out: Folder of the study.
        is_done: True if no result is missing; then the folder is claimed with any data.

    Raises:
        ConfigurationError: The folder holds another study, one that was started on other data, a run, or files of
            somebody else that the study would replace.
        DataError: The definition in the folder cannot be read.
    """
    path, definition = out / STUDY_FILE, to_plain(study)
    if not path.exists():
        check_holds_no_run(out)
        check_replaces_nothing(out, (SUMMARY_FILE, TABLE_FILE, REPORT_FILE))
        definition |= {DATA: data} if (data := _describe_data(study)) else {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else definition
    except OSError as error:
        raise folder_failure(error, out) from None
    except ValueError as error:
        raise DataError(path, f"is not JSON ({error}); choose another --out.") from None
    if not isinstance(stored, dict):
        raise DataError(path, "does not hold the definition of a study; choose another --out.")
    trained = {key: value for key, value in definition.items() if key not in REPORTED_ONLY}
    difference = first_difference({key: stored.get(key) for key in trained}, trained)
    if difference is not None:
        raise ConfigurationError(
            f"{out}: holds a study that was started with other settings ({difference}); choose another --out, "
            "or delete the folder."
        )
    if not is_done:
        _check_validations(study, out)
    if stored.get(DATA):  # Studies of older versions have none.
        if not is_done:
            now = describe_code(env.config for env in study.envs.values())
            check_data(out, stored[DATA], _describe_data(study), edited_since(_stored_runs(study, out), now))
        definition[DATA] = stored[DATA]
    write_atomic(path, json.dumps(definition, indent=2) + "\n")


def _check_validations(study: Study, out: Path) -> None:
    """Raise if a finished run was validated at another temperature, as earlier versions did."""
    for trial in (*study.tuning_trials(), *study.trials()):
        path = out / trial.folder / SETTINGS_FILE
        if not (trial_path(out, trial).exists() and path.exists()):
            continue
        settings = json.loads(path.read_text(encoding="utf-8"))
        chosen = json.loads(trial_path(out, trial).read_text(encoding="utf-8")).get("tuned_value")
        was = settings["validation"].get("temperature")
        now = study.config(trial, out, chosen).validation.temperature
        if was != now:
            raise ConfigurationError(
                f"{path}: an earlier version validated {trial.name} at the recipe's own temperature, so that its"
                " curve cannot be compared with new ones; choose another --out."
            )


def _stored_runs(study: Study, out: Path) -> Iterator[dict[str, Any]]:
    """Yield the settings of the runs that have a result."""
    for trial in study.all_runs():
        if trial_path(out, trial).exists():
            with suppress(DataError):  # The results do not depend on it.
                yield read_run_settings(out / trial.folder) or {}


def _describe_data(study: Study) -> Data:
    """Return the origin of the tasks on which policies are trained, validated and evaluated."""
    envs = study.envs.items()
    entries = {
        "train": {name: make_entry(env.config, env.config.split) for name, env in envs},
        "test": {name: make_entry(env.config, env.test_split) for name, env in envs},
        "levels": {name: make_entry(level.config, level.test_split) for name, level in study.levels.items()},
    }
    if study.validation_every:
        entries["validation"] = {name: make_entry(env.config, env.validation_split) for name, env in envs}
    return describe_data(entries)


def missing_work(study: Study, out: Path, envs: Sequence[str]) -> list[list[WorkItem]]:
    """Return the trials and controls without a result in some environments, in phases.

    Runs that tune a setting come before all trials, which need the chosen value. The trials of the first seed,
    which take longest, come next, then the controls, so that a study that is stopped early has something to
    compare with. Further supervised fine-tuning comes after all trials, whose CPU
    time is its budget.
    """
    policies = [RANDOM, EXPERT, WARM_START]
    policies += [TUNED] if study.controls.temperatures else []
    policies += [OTHER_MODEL] if study.controls.model is not None else []
    controls = [
        WorkItem(f"{policy} on {env}", evaluate_control, (study, env, policy, out))
        for policy in policies
        for env in envs
        if not policy_path(out, env, policy).exists()
    ]
    trials = [one for one in study.trials() if one.env in envs and not trial_path(out, one).exists()]
    first, others = (
        [WorkItem(trial.name, run_trial, (study, trial, out)) for trial in trials if (trial.seed == 0) is is_first]
        for is_first in (True, False)
    )
    supervised = [
        WorkItem(trial.name, run_supervised, (study, trial, out))
        for env in envs
        for trial in study.supervised_trials(env)
        if not trial_path(out, trial).exists()
    ]
    tuning = [
        WorkItem(trial.name, run_trial, (study, trial, out))
        for trial in study.tuning_trials()
        if trial.env in envs and not trial_path(out, trial).exists()
    ]
    return [tuning, [*first, *controls, *others], supervised]


def _write_results(study: Study, out: Path, console: Console) -> None:
    """Write the tables, their data and the report, and print the tables."""
    rows, curves = make_rows(study, out), read_curves(study, out)
    tables = make_tables(study, rows, edited_code(_stored_runs(study, out)))
    for env in study.envs:
        if (out / env_folder(env)).is_dir():
            write_suite(study, env, out)
    commands = list(evaluation_commands(study, out))
    summary = {
        "name": study.name,
        "rows": [row.to_dict() for row in rows],
        "curves": [curve.to_dict() for curve in curves],
        "commands": commands,
    }
    write_atomic(out / SUMMARY_FILE, json.dumps(summary, indent=2) + "\n")
    write_atomic(out / TABLE_FILE, "\n".join(map(to_markdown, tables)))
    write_page(study, out, tables, curves)
    for table in tables:
        console.print()
        console.print(render_table(table, console.width))
    console.print()
    if not tables:
        console.print("No trial or control is finished, so there are no results yet.")
        return
    folder = shown_path(out)
    lines = [f"Tables: {folder / TABLE_FILE}; with learning curves: {folder / REPORT_FILE}"]
    lines += [f"Evaluate a final model, such as: {commands[0]}"] if commands else []
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _run_in_workers(
    study: Study, out: Path, phases: Sequence[Sequence[WorkItem]], workers: int, console: Console
) -> list[str]:
    """Do all work in worker processes, one phase after the other.

    Returns:
        A message for each item that failed.
    """
    failures: list[str] = []
    with (
        single_threaded_workers(),
        StudyProgress(study, out, sum(map(len, phases)), console) as progress,
    ):
        for work in phases:
            if work:
                failures += run_phase(work, out, workers, progress)
    return failures
