"""What a study found: rates with intervals, and each recipe against its warm start, task by task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...eval.statistics import Interval, Paired, paired, rate
from .definition import Study, Trial
from .trials import RESULT, Outcomes, read_result, warm_start_path

WARM = "warm start"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        env, who: what was played by whom.
        runs: training runs that were measured; 0 for who never learnt.
        sampled, greedy: success on the held-out tasks, over all runs; greedy only of models.
        lowest, highest: sampled success of the worst and the best run.
        gain: sampled success against the warm start, task by task, over all runs; None without one.
        gain_greedy: the same for greedy play.
    """

    env: str
    who: str
    runs: int
    sampled: Interval
    greedy: Interval | None = None
    lowest: float | None = None
    highest: float | None = None
    gain: Paired | None = None
    gain_greedy: Paired | None = None

    @property
    def better(self) -> bool:
        """Whether it beats its warm start significantly (two-sided, 5 %)."""
        return self.gain is not None and self.gain.p_value < 0.05 and self.gain.difference.value > 0

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        data: dict[str, object] = {"env": self.env, "who": self.who, "runs": self.runs}
        data["sampled"] = self.sampled._asdict()
        if self.greedy is not None:
            data["greedy"] = self.greedy._asdict()
        if self.lowest is not None:
            data |= {"lowest": self.lowest, "highest": self.highest}
        for name, gain in (("gain", self.gain), ("gain_greedy", self.gain_greedy)):
            if gain is not None:
                data[name] = {**gain.difference._asdict(), "p_value": gain.p_value, "tasks": gain.n}
        return data


def rows(study: Study, out: Path, references: Mapping[str, Mapping[str, Outcomes]]) -> list[Row]:
    """The table of what has been measured so far.

    Args:
        study: what was asked for.
        out: its folder.
        references: env -> player -> outcomes, of who never learnt.

    Raises:
        DataError: a result cannot be read.
    """
    found: list[Row] = []
    for env in study.envs:
        for who in ("random", "expert"):
            if who in references.get(env, {}):
                found.append(Row(env, who, 0, _rate([references[env][who]], "sampled")))
        warm = read_result(warm_start_path(out, env))
        if warm is None:
            continue
        before: Outcomes = warm["outcomes"]
        found.append(Row(env, WARM, 0, _rate([before], "sampled"), _rate([before], "greedy")))
        for recipe in study.recipes:
            runs = list(_runs(study, env, recipe, out))
            if runs:
                found.append(_row(env, recipe, runs, before))
    return found


def _runs(study: Study, env: str, recipe: str, out: Path) -> Iterator[Outcomes]:
    for seed in range(study.seeds):
        result = read_result(out / Trial(env, recipe, seed).folder / RESULT)
        if result is not None:
            yield result["outcomes"]


def _row(env: str, recipe: str, runs: Sequence[Outcomes], before: Outcomes) -> Row:
    each = [_rate([run], "sampled").value for run in runs]
    return Row(
        env,
        recipe,
        len(runs),
        _rate(runs, "sampled"),
        _rate(runs, "greedy"),
        min(each),
        max(each),
        _gain(runs, before, "sampled"),
        _gain(runs, before, "greedy"),
    )


def _pooled(runs: Sequence[Outcomes], kind: str) -> dict[str, list[bool]]:
    tasks = runs[0][kind]
    return {task: [success for run in runs for success in run[kind][task]] for task in tasks}


def _rate(runs: Sequence[Outcomes], kind: str) -> Interval:
    return rate(list(_pooled(runs, kind).values()))


def _gain(runs: Sequence[Outcomes], before: Outcomes, kind: str) -> Paired:
    after = _pooled(runs, kind)
    return paired([after[task] for task in before[kind]], [before[kind][task] for task in before[kind]])


# ---------------------------------------------------------------------- as people read it

HEADS = ("player", "runs", "sampled", "from–to", "gain", "greedy", "gain")


def cells(row: Row) -> tuple[str, ...]:
    """A line as text, the env apart; rates in percent with their 95 % intervals, gains in points."""
    spread = "" if row.lowest is None or row.highest is None else f"{row.lowest:.0%}–{row.highest:.0%}"
    return (
        row.who,
        str(row.runs or ""),
        _shown(row.sampled),
        spread if row.runs > 1 else "",
        _points(row.gain),
        "" if row.greedy is None else _shown(row.greedy),
        _points(row.gain_greedy),
    )


def _shown(interval: Interval) -> str:
    return f"{100 * interval.value:.0f}% [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def _points(gain: Paired | None) -> str:
    if gain is None:
        return ""
    star = "*" if gain.p_value < 0.05 else ""
    return f"{100 * gain.difference.value:+.0f}{star}"


def drawn(study: Study, found: Sequence[Row]) -> Table:
    """The table for a terminal of 80 columns."""
    table = Table(
        title=f"{study.name}: success on {study.tasks} held-out tasks a env",
        caption="95 % intervals in brackets; gains over the warm start in points, * significant at 5 %",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in HEADS:
        table.add_column(name, justify="left" if name == "player" else "right", no_wrap=True)
    env = None
    for row in found:
        if row.env != env:
            if env is not None:
                table.add_section()
            table.add_row(row.env, style="bold")
        env = row.env
        style = "green" if row.better else "dim" if row.runs == 0 and row.who != WARM else ""
        who, *rest = cells(row)
        table.add_row(f"  {who}", *rest, style=style)
    return table


def markdown(study: Study, found: Sequence[Row]) -> str:
    """The table for documents."""
    often = "once" if study.repeats == 1 else f"{study.repeats} times"
    lines = [
        f"Success on {study.tasks} held-out tasks a env, each played {often} when sampled from and once when"
        " greedy; 95 % intervals in brackets. Gains over the warm start in points, paired by task; * is"
        " significant at 5 %.",
        "",
        "| env | " + " | ".join(HEADS) + " |",
        "|" + "---|" * (1 + len(HEADS)),
    ]
    lines += [f"| {row.env} | " + " | ".join(cells(row)) + " |" for row in found]
    return "\n".join(lines) + "\n"
