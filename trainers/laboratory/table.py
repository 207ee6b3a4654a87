"""Tables of an experiment: paired differences over seeds with 95 % intervals, as Markdown and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...eval.statistics import Interval, student_mean
from .arms import get_arm
from .experiment import Experiment, Results
from .tasks import get_family
from .training import DIVERGENCE

Measure = Literal["auc", "final"]

VISIBLE = 0.01
"""Difference from which on one whose interval excludes 0 is printed bold."""
CEILING = "exact"
"""Arm whose difference to GRPO is the head-room of credit."""
REFERENCE = "grpo"


class Cell(NamedTuple):
    """Result of one arm in one family of tasks.

    Attributes:
        arm: Arm.
        task: Family of tasks.
        mean: Mean of the measure over seeds; None without a run.
        difference: Paired difference to the arm's baseline over the seeds that both have; None for the baseline
            itself, and without a pair.
        seeds: Number of seeds of `mean`.
    """

    arm: str
    task: str
    mean: Interval | None
    difference: Interval | None
    seeds: int

    @property
    def is_visible(self) -> bool:
        """True for a difference of at least `VISIBLE` whose interval excludes 0."""
        difference = self.difference
        return (
            difference is not None
            and abs(difference.value) >= VISIBLE
            and (difference.low > 0 or difference.high < 0)
        )


def make_cells(experiment: Experiment, results: Results, measure: Measure = "auc") -> list[Cell]:
    """Return the cells of all arms and families."""
    cells = []
    for arm in experiment.all_arms:
        baseline = get_arm(arm).baseline
        for task in experiment.tasks:
            own = results.reported(experiment, task, arm)
            values = [float(getattr(run, measure)) for run in own.values()]
            difference = None
            if arm != baseline:
                other = results.reported(experiment, task, baseline)
                pairs = [
                    getattr(own[seed], measure) - getattr(other[seed], measure) for seed in own if seed in other
                ]
                difference = student_mean(pairs) if pairs else None
            cells.append(Cell(arm, task, student_mean(values) if values else None, difference, len(values)))
    return cells


def closed_gaps(cells: Sequence[Cell]) -> dict[str, float]:
    """Return the part of the gap between GRPO and exact advantages that each arm closes, by arm.

    It is the mean difference to GRPO over tasks, relative to that of the exact advantages. Arms with another
    baseline, or without a result in all tasks, have none.
    """
    by_arm: dict[str, list[float]] = {}
    tasks = {cell.task for cell in cells}
    for cell in cells:
        if cell.difference is not None and get_arm(cell.arm).baseline == REFERENCE:
            by_arm.setdefault(cell.arm, []).append(cell.difference.value)
    means = {arm: fmean(values) for arm, values in by_arm.items() if len(values) == len(tasks)}
    room = means.get(CEILING, 0.0)
    return {arm: value / room for arm, value in means.items()} if room > 0 else {}


def describe(experiment: Experiment, cells: Sequence[Cell]) -> str:
    """Return the method of a table in a paragraph, with the number of its comparisons."""
    compared = sum(cell.difference is not None for cell in cells)
    by_chance = f"{0.05 * compared:.0f}" if compared >= 20 else f"{0.05 * compared:.2g}"
    comparisons = "1 comparison" if compared == 1 else f"{compared} comparisons"
    regime = (
        f"every update is scaled to a mean divergence of {DIVERGENCE} nats over exact on-policy visits"
        if experiment.regime == "fixed-kl"
        else f"learning rates chosen for each arm and task on {experiment.tuning_seeds} other seeds"
    )
    seeds = sorted({cell.seeds for cell in cells})
    counts = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return (
        f"{counts} paired seeds; {regime}; equal numbers of generated steps. Exact success; ± is half of the 95 %"
        f" interval over seeds (Student's t). **Bold**: a difference of {VISIBLE} or more whose interval excludes"
        f" 0. {comparisons} without correction: about {by_chance} intervals miss 0 by chance."
    )


def to_markdown(experiment: Experiment, results: Results) -> str:
    """Return the tables of AUC and of final success as Markdown."""
    parts = ["# Credit rules with tabular policies", "", describe(experiment, make_cells(experiment, results)), ""]
    titles: tuple[tuple[Measure, str], ...] = (
        ("auc", "Area under the curve of success over generated steps"),
        ("final", "Success at the end of the budget"),
    )
    for measure, title in titles:
        cells = make_cells(experiment, results, measure)
        parts += [f"## {title}", "", *_grid(experiment, cells, measure), ""]
    if experiment.regime == "tuned":
        parts += ["## Learning rates", "", *_rates(experiment, results), ""]
    parts += ["Tasks:", ""]
    parts += [f"* `{name}`: {get_family(name).about}." for name in experiment.tasks]
    parts += ["", "Arms:", ""]
    parts += [f"* `{name}`: {get_arm(name).about}." for name in experiment.all_arms]
    return "\n".join(parts) + "\n"


def _grid(experiment: Experiment, cells: Sequence[Cell], measure: Measure) -> list[str]:
    gaps = closed_gaps(cells) if measure == "auc" else {}
    lines = ["| arm | " + " | ".join(experiment.tasks) + (" | gap closed |" if gaps else " |")]
    lines.append("|" + "---|" * (1 + len(experiment.tasks) + bool(gaps)))
    for arm in experiment.all_arms:
        row = [format_cell(cell) for cell in cells if cell.arm == arm]
        row += [f"{gaps[arm]:.2f}" if arm in gaps else ""] if gaps else []
        baseline = get_arm(arm).baseline
        label = arm if baseline in (arm, REFERENCE) else f"{arm} − {baseline}"
        lines.append(f"| {label} | " + " | ".join(row) + " |")
    return lines


def format_cell(cell: Cell) -> str:
    """Return the mean of a baseline, or the difference of another arm, with half of its interval."""
    shown = cell.mean if cell.difference is None else cell.difference
    if shown is None:
        return "–"
    half = f" ± {shown.high - shown.value:.3f}" if cell.seeds > 1 else ""
    if cell.difference is None:
        return f"{shown.value:.3f}{half}"
    value = f"{shown.value:+.3f}"
    return f"**{value}**{half}" if cell.is_visible else f"{value}{half}"


def _rates(experiment: Experiment, results: Results) -> list[str]:
    lines = ["| arm | " + " | ".join(experiment.tasks) + " |", "|" + "---|" * (1 + len(experiment.tasks))]
    for arm in experiment.all_arms:
        rates = [results.chosen_rate(experiment, task, arm) for task in experiment.tasks]
        lines.append(f"| {arm} | " + " | ".join("–" if rate is None else f"{rate:g}" for rate in rates) + " |")
    return lines


CAPTION = (
    "AUC of success: of grpo and other baselines itself, of other arms the difference to it, in thousandths; "
    "colored: 10 or more, interval excludes 0."
)
"""Explanation of the numbers of `render_table`."""


def render_table(experiment: Experiment, cells: Sequence[Cell]) -> Table:
    """Return the table of AUC for a terminal: differences in thousandths, colored where they are visible.

    `CAPTION` belongs beside it: as a title, rich would wrap it to the width of a table of few tasks.
    """
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("arm", no_wrap=True)
    for task in experiment.tasks:
        table.add_column(task, justify="right", overflow="fold")
    for arm in experiment.all_arms:
        row = []
        for cell in cells:
            if cell.arm != arm:
                continue
            if cell.difference is not None:
                color = "green" if cell.difference.value > 0 else "red"
                text = f"{1000 * cell.difference.value:+.0f}"
                row.append(f"[{color}]{text}[/]" if cell.is_visible else text)
            else:
                row.append("–" if cell.mean is None else f"{1000 * cell.mean.value:.0f}")
        table.add_row(arm, *row)
    return table
