"""Results of a study: success rates with intervals, and gains over the warm start, paired by task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...eval.statistics import Interval, Paired, paired, rate
from .definition import Study, Trial
from .trials import RESULT, Outcomes, read_result, warm_start_path

WARM_START = "warm start"
HEADINGS = ("policy", "runs", "sampled", "range", "gain", "greedy", "gain")
"""Headings of the cells of `format_cells`."""


@dataclass(frozen=True)
class Row:
    """Row of the table: one policy in one environment.

    Attributes:
        env: Name of the environment in the study.
        policy: Name of the recipe, of a reference agent ("random" or "expert"), or `WARM_START`.
        runs: Number of training runs; 0 for policies that were not trained in the study.
        sampled: Success rate on the held-out tasks when sampled, pooled over runs.
        greedy: Success rate with greedy decoding, pooled over runs; None for reference agents.
        lowest, highest: Sampled success rates of the worst and the best run; None without runs.
        gain: Gain of `sampled` over the warm start, paired by task, pooled over runs; None without runs.
        gain_greedy: Gain of `greedy` over the warm start; None without runs.
    """

    env: str
    policy: str
    runs: int
    sampled: Interval
    greedy: Interval | None = None
    lowest: float | None = None
    highest: float | None = None
    gain: Paired | None = None
    gain_greedy: Paired | None = None

    @property
    def is_improvement(self) -> bool:
        """True if the sampled policy is significantly better than the warm start."""
        return self.gain is not None and _is_significant(self.gain) and self.gain.difference.value > 0

    def to_dict(self) -> dict[str, object]:
        """Return the row as plain data, without fields that are None."""
        data: dict[str, object] = {"env": self.env, "policy": self.policy, "runs": self.runs}
        data["sampled"] = self.sampled._asdict()
        if self.greedy is not None:
            data["greedy"] = self.greedy._asdict()
        if self.lowest is not None:
            data |= {"lowest": self.lowest, "highest": self.highest}
        for name, gain in (("gain", self.gain), ("gain_greedy", self.gain_greedy)):
            if gain is not None:
                data[name] = {**gain.difference._asdict(), "p_value": gain.p_value, "tasks": gain.n}
        return data


def make_rows(study: Study, out: Path, references: Mapping[str, Mapping[str, Outcomes]]) -> list[Row]:
    """Return the rows of all results so far.

    Args:
        study: Study.
        out: Folder of the study.
        references: Outcomes of the reference agents, by environment and agent.

    Raises:
        DataError: A result cannot be read.
    """
    rows: list[Row] = []
    for env in study.envs:
        for agent in ("random", "expert"):
            if agent in references.get(env, {}):
                rows.append(Row(env, agent, 0, _success_rate([references[env][agent]], "sampled")))
        warm_start = read_result(warm_start_path(out, env))
        if warm_start is None:
            continue
        before: Outcomes = warm_start["outcomes"]
        sampled, greedy = _success_rate([before], "sampled"), _success_rate([before], "greedy")
        rows.append(Row(env, WARM_START, 0, sampled, greedy))
        for recipe in study.recipes:
            runs = list(_read_runs(study, env, recipe, out))
            if runs:
                rows.append(_recipe_row(env, recipe, runs, before))
    return rows


def _read_runs(study: Study, env: str, recipe: str, out: Path) -> Iterator[Outcomes]:
    for seed in range(study.seeds):
        result = read_result(out / Trial(env, recipe, seed).folder / RESULT)
        if result is not None:
            yield result["outcomes"]


def _recipe_row(env: str, recipe: str, runs: Sequence[Outcomes], before: Outcomes) -> Row:
    rates = [_success_rate([run], "sampled").value for run in runs]
    return Row(
        env,
        recipe,
        len(runs),
        _success_rate(runs, "sampled"),
        _success_rate(runs, "greedy"),
        min(rates),
        max(rates),
        _gain(runs, before, "sampled"),
        _gain(runs, before, "greedy"),
    )


def _pool_runs(runs: Sequence[Outcomes], decoding: str) -> dict[str, list[bool]]:
    """Return the successes of all runs by task."""
    tasks = runs[0][decoding]
    return {task: [success for run in runs for success in run[decoding][task]] for task in tasks}


def _success_rate(runs: Sequence[Outcomes], decoding: str) -> Interval:
    return rate(list(_pool_runs(runs, decoding).values()))


def _gain(runs: Sequence[Outcomes], before: Outcomes, decoding: str) -> Paired:
    after = _pool_runs(runs, decoding)
    return paired(
        [after[task] for task in before[decoding]], [before[decoding][task] for task in before[decoding]]
    )


def _is_significant(gain: Paired) -> bool:
    """Return True if a gain is significant at 5 % in a two-sided test."""
    return gain.p_value < 0.05


# ---------------------------------------------------------------------- formats


def format_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row below `HEADINGS`: rates in percent with 95 % intervals, gains in points."""
    span = "" if row.lowest is None or row.highest is None else f"{100 * row.lowest:.0f} to {row.highest:.0%}"
    return (
        row.policy,
        str(row.runs or ""),
        _format_rate(row.sampled),
        span if row.runs > 1 else "",
        _format_gain(row.gain),
        "" if row.greedy is None else _format_rate(row.greedy),
        _format_gain(row.gain_greedy),
    )


def _format_rate(interval: Interval) -> str:
    return f"{100 * interval.value:.0f}% [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def _format_gain(gain: Paired | None) -> str:
    if gain is None:
        return ""
    star = "*" if _is_significant(gain) else ""
    return f"{100 * gain.difference.value:+.0f}{star}"


def render_table(study: Study, rows: Sequence[Row]) -> Table:
    """Return the table for a terminal of at least 80 columns."""
    table = Table(
        title=f"{study.name}: success on {study.tasks} held-out tasks per environment",
        caption="95 % intervals in brackets\ngain over the warm start in points, * significant at 5 %",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    env = None
    for row in rows:
        if row.env != env:
            if env is not None:
                table.add_section()
            table.add_row(row.env, style="bold")
        env = row.env
        is_reference = row.runs == 0 and row.policy != WARM_START
        style = "green" if row.is_improvement else "dim" if is_reference else ""
        policy, *cells = format_cells(row)
        table.add_row(f" {policy}", *cells, style=style)
    return table


def to_markdown(study: Study, rows: Sequence[Row]) -> str:
    """Return the table as Markdown."""
    repeats = "one episode" if study.repeats == 1 else f"{study.repeats} episodes"
    lines = [
        f"Success on {study.tasks} held-out tasks per environment, with {repeats} per task when sampled and one"
        " when greedy; 95 % intervals in brackets. Range: lowest and highest run. Gain: difference from the warm"
        " start in percentage points, paired by task; * is significant at 5 %.",
        "",
        "| env | " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * (1 + len(HEADINGS)),
    ]
    lines += [f"| {row.env} | " + " | ".join(format_cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"
