"""Comparison of training runs: settings that differ, curves over each other, and validations with intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from jinja2 import PackageLoader
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...envs.errors import ConfigurationError, DataError
from ...envs.files import write_atomic
from ...eval.comparison.participants import short_names
from ...eval.page_data import encode_page
from ...eval.report import make_templates
from ..checkpoints.run_folder import CHECKPOINTS_FOLDER, METRICS_FILE, SETTINGS_FILE
from ..checkpoints.store import Checkpoints
from ..config.resolve import resolve_validation
from ..config.task_data import CODE, DATA
from ..monitor import current_lineage
from .charts import HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw_overlays
from .report import format_settings, read_history, run_kind
from .result import Validation, read_validation
from .terminal_plot import Series, plot, running_mean

MISSING = "–"
_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")
_COMPARABLE = (
    "env.id",
    "env.kwargs",
    "env.dialogue",
    "mixture",
    "dialogue.",
    "validation.split",
    "validation.tasks",
    "validation.temperature",
    f"{DATA}.validation.",
    f"{CODE}.",
    *(
        f"recipe.sampler.{name}"
        for name in ("reply_tokens", "max_turns", "max_actions", "max_actions_per_turn", "think")
    ),
)
"""Beginnings of the settings that validations must share to be compared."""
_TEMPERATURE = "recipe.sampler.temperature"
"""Setting that takes the place of `validation.temperature` where that is None."""


class ValidationRow(NamedTuple):
    """Validations of one run.

    Attributes:
        run: Name of the run.
        done: Updates made.
        total: Updates in total.
        before: Validation before training; None if there is none.
        best: Validation of the best checkpoint; None if there is none.
        last: Last validation; None if there is none.
    """

    run: str
    done: int
    total: int
    before: Validation | None
    best: Validation | None
    last: Validation | None


@dataclass(frozen=True)
class Comparison:
    """Training runs side by side.

    Attributes:
        names: Name of each run: as many parts of its folder's path as tell the runs apart.
        histories: Metrics of each run.
        differences: Settings that are not the same in all runs: path, and the value in each run.
        validations: Validations of each run.
        sampler_temperature: True if a run validates at the temperature of its training.
        has_mixture: True if a run has several environments, whose weights its validations then depend on.
    """

    names: Sequence[str]
    histories: Sequence[Sequence[Mapping[str, float]]]
    differences: Mapping[str, Sequence[str]]
    validations: Sequence[ValidationRow]
    sampler_temperature: bool = False
    has_mixture: bool = False

    @property
    def caution(self) -> str:
        """Sentence that names the settings because of which validations cannot be compared; empty for none."""
        comparable = (
            *_COMPARABLE,
            *([_TEMPERATURE] if self.sampler_temperature else ()),
            *(["env.weight"] if self.has_mixture else ()),
        )
        names = [name for name in self.differences if name.startswith(comparable)]
        return f"The validations differ in {', '.join(names)}, so their rates are not comparable." if names else ""


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Return a comparison of training runs, finished or not.

    Raises:
        ConfigurationError: There are fewer than two runs, a folder is named twice, or one holds no training run.
        DataError: The settings or metrics of a run cannot be read.
    """
    if len({folder.resolve() for folder in folders}) < max(len(folders), 2):
        raise ConfigurationError("name the folders of at least two different runs, such as runs/grpo runs/ppo.")
    for folder in folders:
        _check_kind(folder)
    settings = [_read_settings(folder) for folder in folders]
    histories = [read_history(folder / METRICS_FILE) for folder in folders]
    names = short_names(folders)
    validations = [
        _summarize(name, folder, one, history)
        for name, folder, one, history in zip(names, folders, settings, histories, strict=True)
    ]
    at_training = any(run.get("validation", {}).get("temperature") is None for run in settings)
    has_mixture = any(run.get("mixture") for run in settings)
    return Comparison(names, histories, _differences(settings), validations, at_training, has_mixture)


def _check_kind(folder: Path) -> None:
    kind = run_kind(folder)
    if kind != "training":
        what = "a run of `arboretum sft`, not of `arboretum train`" if kind else "no training run"
        raise ConfigurationError(f"{folder}: holds {what}; name folders of `arboretum train`.")


def _read_settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    try:
        settings["recipe"]["optimization"]["updates"] + 0
    except (TypeError, KeyError) as error:
        raise DataError(
            folder / SETTINGS_FILE, f"was written by another version of Arboretum ({error})."
        ) from None
    if "validation" in settings:
        settings["validation"] = resolve_validation(settings["validation"])
    return settings


def _differences(settings: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    # The folder differs in any case, and the description says what the other settings of the recipe do.
    ignored = {"out", "recipe.about"}
    flat = [{path: one for path, one in format_settings(run).items() if path not in ignored} for run in settings]
    paths = dict.fromkeys(path for run in flat for path in run)
    values = {path: [run.get(path, MISSING) for run in flat] for path in paths}
    # A mapping that is empty in one run differs by what the others have in it, which has rows of its own.
    return {
        path: row
        for path, row in values.items()
        if len(set(row)) > 1
        # Runs of older versions have neither in their settings.
        and not (MISSING in row and path.startswith((f"{DATA}.", f"{CODE}.")))
        and not (set(row) == {MISSING, "{}"} and any(other.startswith(f"{path}.") for other in paths))
    }


def _summarize(
    name: str, folder: Path, settings: Mapping[str, Any], history: Sequence[Mapping[str, float]]
) -> ValidationRow:
    validations = [one for record in history if (one := read_validation(record)) is not None]
    trained = [one for one in validations if one.update]
    index = Checkpoints(folder / CHECKPOINTS_FOLDER).index
    best = [one for one in trained if one.update == index.best]
    current = {record["update"] for record in current_lineage(history)}  # without updates that were undone
    return ValidationRow(
        name,
        int(history[-1]["update"]) if history else 0,
        int(settings["recipe"]["optimization"]["updates"]),
        next((one for one in validations if not one.update), None),
        # A study deletes the checkpoints of its trials.
        best[0] if best else max(trained, key=lambda one: one.success.value, default=None),
        next((one for one in reversed(trained) if one.update in current), None),
    )


# ---------------------------------------------------------------------- display


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the settings that differ, the curves, and the validations."""
    table = Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), title="settings that differ", title_justify="left"
    )
    table.add_column("setting", style="dim", overflow="fold")
    for name, style in zip(comparison.names, _cycle(len(comparison.names)), strict=True):
        table.add_column(Text(name, style), overflow="fold")
    for path, values in comparison.differences.items():
        table.add_row(path, *(Text(value) for value in values))
    console.print(table if comparison.differences else Text("All settings are the same."))
    console.print()
    console.print(_plot_success(comparison, min(console.width, 100)))
    console.print()
    console.print(_validation_table(comparison))
    if comparison.caution:
        console.print(Text(comparison.caution, "yellow"))


def _cycle(count: int) -> list[str]:
    return [_STYLES[number % len(_STYLES)] for number in range(count)]


def _plot_success(comparison: Comparison, width: int) -> Text:
    """Plot the success of every run: in training as a line, on held-out tasks as marks of the same color.

    A letter at the end of each line tells runs apart without colors.
    """
    series = []
    styles = _cycle(len(comparison.names))
    letters = islice(cycle(ascii_uppercase), len(styles))
    for name, history, style, letter in zip(comparison.names, comparison.histories, styles, letters, strict=True):
        training = [(record["update"], record["success"]) for record in history if "success" in record]
        held_out = [
            (one.update, one.success.value) for record in history if (one := read_validation(record)) is not None
        ]
        window = max(1, round(len(training) / 20))
        series.append(Series(name, running_mean(training, window), style, letter=letter))
        series.append(Series("", held_out, f"bold {style}", "marks"))
    longest = max((history[-1]["update"] for history in comparison.histories if history), default=1)
    text = Text("success in training (line) and on held-out tasks (●)\n", "bold")
    text.append_text(
        plot(
            series,
            x_max=max(longest, 1),
            y_max=1.0,
            width=width,
            height=16,
            format_value=lambda value: f"{value:.0%}",
        )
    )
    return text


def _validation_table(comparison: Comparison) -> Table:
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title="success on held-out tasks in %, with 95 % interval (updates)",
        title_justify="left",
    )
    table.add_column("run", overflow="fold")
    for heading in ("before", "best", "last"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row, style in zip(comparison.validations, _cycle(len(comparison.validations)), strict=True):
        last = "" if row.done >= row.total else f", {row.done} of {row.total} updates"
        cells = [_format_validation(one) for one in (row.before, row.best, row.last)]
        table.add_row(Text(f"{row.run}{last}", style), *cells)
    return table


def _format_validation(validation: Validation | None) -> str:
    if validation is None:
        return MISSING
    value, low, high = (100 * bound for bound in validation.success)
    updates = f" ({validation.update})" if validation.update else ""
    return f"{value:.1f} [{low:.1f}, {high:.1f}]{updates}"


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the comparison as one self-contained HTML page."""
    page = make_templates(PackageLoader(__package__, "templates")).get_template("comparison.html")
    text = page.render(
        comparison=comparison,
        charts=draw_overlays(comparison.names, comparison.histories),
        frame={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP},
    )
    write_atomic(path, encode_page(text))
