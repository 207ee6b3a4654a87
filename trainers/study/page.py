"""Page of a study: tables, learning curves over updates and generated tokens, and commands that check models."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import PackageLoader

from ...envs.files import shown_path, write_atomic
from ...eval.page_data import encode_page
from ...eval.report import make_templates
from .. import reporting
from ..checkpoints.run_folder import MODEL_FOLDER
from ..reporting.charts import HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, draw_chart
from .curves import Curve
from .definition import Study, Trial, env_folder
from .evaluation import SUITE_FILE
from .table import StudyTable

REPORT_FILE = "report.html"
_AXES = {
    "update": (1.0, "update", "updates"),
    "generated_tokens": (1000.0, "thousand generated tokens", "generated tokens (in thousands)"),
}
"""Divisor of each x-axis, its name at a value, and in words."""


def write_page(study: Study, out: Path, tables: Sequence[StudyTable], curves: Sequence[Curve]) -> Path:
    """Write the page of a study as one self-contained HTML file, and return its path."""
    charts = [draw_curves(env, axis, curves) for env in study.envs for axis in _AXES]
    page = make_templates(PackageLoader(reporting.__name__, "templates")).get_template("study.html")
    text = page.render(
        study=study,
        tables=[_plain_table(table) for table in tables],
        charts=[chart for chart in charts if chart is not None],
        frame={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP},
        commands=list(evaluation_commands(study, out)),
    )
    write_atomic(out / REPORT_FILE, encode_page(text))
    return out / REPORT_FILE


def draw_curves(env: str, axis: str, curves: Sequence[Curve]) -> dict[str, Any] | None:
    """Return the chart of success on validation tasks in an environment, a line for each recipe.

    Args:
        env: Name of the environment.
        axis: Key of the x-axis: "update" or "generated_tokens".
        curves: Learning curves of all runs.

    Returns:
        Variables of the page's template; None without validations.
    """
    own = [curve for curve in curves if curve.env == env]
    recipes = list(dict.fromkeys(curve.recipe for curve in own))
    divisor, x_name, x_words = _AXES[axis]
    runs = max((sum(curve.recipe == recipe for curve in own) for recipe in recipes), default=0)
    chart = Chart(
        f"{env}: success by {x_words}",
        f"Validation tasks; {f'mean of up to {runs} runs' if runs > 1 else 'one run'} of each recipe.",
        {f"validation/{recipe}": recipe for recipe in recipes},
        lambda value: f"{100 * value:.3g} %",
        y_max=1.0,
        x_name=x_name,
    )
    records = [
        {"update": x / divisor, f"validation/{recipe}": y}
        for recipe in recipes
        for x, y in mean_curve([curve for curve in own if curve.recipe == recipe], axis)
    ]
    return draw_chart(chart, records, ()) if records else None


def mean_curve(curves: Sequence[Curve], axis: str) -> list[tuple[float, float]]:
    """Return mean validation success over runs, at the updates at which all of them were validated.

    Args:
        curves: Runs of one recipe.
        axis: Key of the x-axis, whose mean over the runs is taken too.
    """
    validated: list[Mapping[float, Mapping[str, float]]] = [
        {point["update"]: point for point in curve.points if "validation/success" in point} for curve in curves
    ]
    shared = sorted(set.intersection(*(set(points) for points in validated))) if validated else []
    return [
        (
            fmean(points[update][axis] for points in validated),
            fmean(points[update]["validation/success"] for points in validated),
        )
        for update in shared
    ]


def evaluation_commands(study: Study, out: Path) -> Iterator[str]:
    """Yield the command that evaluates each exported model on the held-out tasks, sampled as in the study."""
    for env in study.envs:
        for trial in [*study.trials(), *study.supervised_trials(env)]:
            if trial.env == env and (out / trial.folder / MODEL_FOLDER).is_dir():
                yield evaluation_command(study, trial, out)


def evaluation_command(study: Study, trial: Trial, out: Path) -> str:
    """Return the command that evaluates the exported model of a run on the held-out tasks."""
    suite = shown_path(out / env_folder(trial.env) / SUITE_FILE)
    model = shown_path(out / trial.folder / MODEL_FOLDER)
    dialogue = study.dialogue_of(trial.env).name
    return (
        f"arboretum eval {shlex.quote(str(suite))} --agent direct --dialogue {dialogue}"
        f" --model {shlex.quote(str(model))}"
    )


def _plain_table(table: StudyTable) -> dict[str, Any]:
    """Return a table as variables of the page's template."""
    columns = table.used(terminal=False)
    rows, env = [], None
    for row, cells in table.rows:
        cell_texts = [cells.get(column, "") for column in columns]
        rows.append({"env": row.env, "first": row.env != env, "cells": cell_texts})
        env = row.env
    headings = [table.columns[column] for column in columns]
    return {"title": table.title, "notes": table.notes, "headings": headings, "rows": rows}
