"""The comparison of evaluation runs in a terminal of 80 columns or fewer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..report import p_value, percent, signed, signed_interval
from ..statistics.power import ALPHA
from ..table import TABLE_WIDTH, RepeatsRow, fit_repeats
from .analysis import SUCCESS, Agent, Difference, RunComparison
from .measures import find_measure

OVERALL = "all, mean"
"""Name of the row of the mean over entries."""

SUCCESS_NOTE = (
    "{pair}: the value of {first} minus that of {second}, paired by task. p: McNemar's exact test with one episode"
    " per task, else sign flips over tasks; Holm's correction for the rows of the table. n: shared tasks. shows:"
    " smallest difference that as many tasks show with a power of 80 % at the level of 5 %, as far as agents"
    " differ on single tasks as these did."
)
NEEDS_NOTE = " needs: tasks that would show {:g} points so."
MEASURE_NOTE = (
    "Numbers besides success: Student's interval and a sign-flip test over tasks; where all are 0 or 100 %, or"
    " regrets of 0 or 1, the interval and the test of success. Decisions are measured by the environment's"
    " optimum, or where it is not proven by the shortest known."
)


def print_comparison(comparison: RunComparison, console: Console) -> None:
    """Print agents, differences, repeats, what was paired, and the settings that differ."""
    is_wide = console.width >= TABLE_WIDTH
    console.print(_agents(comparison) if is_wide else _listed_agents(comparison))
    for measure, rows in comparison.measures.items():
        console.print(f"difference in {_heading(measure)}", style="bold", markup=False)
        table = _differences(rows, comparison.wanted) if is_wide else _listed(rows, comparison.wanted)
        console.print(table)
        console.print(describe(comparison, measure), style="dim", markup=False)
        console.print()
    if len(comparison.measures) > 1:
        console.print(MEASURE_NOTE, style="dim", markup=False)
        console.print()
    repeated = repeats_rows(comparison)
    if repeated:
        console.print(fit_repeats(repeated, console.width))
    for sentence in comparison.randomness:
        console.print(sentence, markup=False)
    for sentence in (*comparison.left_out, *comparison.problems):
        console.print(sentence, markup=False, style="yellow")
    console.print(_settings(comparison) if is_wide else _listed_settings(comparison))


def describe(comparison: RunComparison, measure: str) -> str:
    """Return the sentences below the table of a measure."""
    if measure != SUCCESS:
        note = comparison.notes.get(measure)
        return " ".join(filter(None, (find_measure(measure).meaning, note)))
    row = comparison.measures[SUCCESS][0]
    note = SUCCESS_NOTE.format(pair=pair_name(row), first=row.first, second=row.second)
    return note + ("" if comparison.wanted is None else NEEDS_NOTE.format(100 * comparison.wanted))


def repeats_rows(comparison: RunComparison) -> list[RepeatsRow]:
    """Return the entries and agents that have repeats, with their statistics."""
    rows = [
        RepeatsRow(one.entry, agent.letter, one.repeats)
        for agent in comparison.agents
        for one in agent.rates
        if one.repeats is not None
    ]
    entries = list(dict.fromkeys(row.entry for row in rows))
    return sorted(rows, key=lambda row: entries.index(row.entry))


def _heading(measure: str) -> str:
    return "success, percentage points" if measure == SUCCESS else measure


def _agents(comparison: RunComparison) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True, style="bold")
    table.add_column("agent", overflow="fold")
    table.add_column("success %", justify="right", no_wrap=True)
    table.add_column("episodes", justify="right", no_wrap=True)
    for agent in comparison.agents:
        table.add_row(agent.letter, Text(agent.name), Text(_success(agent)), _count(agent))
    return table


def _listed_agents(comparison: RunComparison) -> Text:
    """Return the agents as short lines, for a narrow terminal."""
    text = Text(overflow="fold")
    for agent in comparison.agents:
        text.append(f"{agent.letter}  {agent.name}\n", style="bold")
        text.append(f"  success {' '.join(_success(agent).split())} %\n  episodes {_count(agent)}\n")
    return text


def _success(agent: Agent) -> str:
    """Format a success rate with its interval, in aligned columns."""
    value = agent.success
    if math.isnan(value.value):
        return "–"
    return f"{percent(value.value)} {percent(value.low):>5} to {percent(value.high):>5}"


def _count(agent: Agent) -> str:
    return str(agent.episodes) if agent.episodes == agent.expected else f"{agent.episodes}/{agent.expected}"


def _differences(rows: Sequence[Difference], wanted: float | None) -> Table:
    is_success = rows[0].measure == SUCCESS
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("env", overflow="fold", max_width=28)
    names = ["pair", "difference", "95 % interval", "p (Holm)", "n"]
    names += (["shows"] if is_success else []) + (["needs"] if is_success and wanted is not None else [])
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    previous = None
    has_entries = len({row.entry for row in rows}) > 1
    for row in rows:
        pair = (row.first, row.second)
        if has_entries and previous is not None and pair != previous:
            table.add_section()
        previous = pair
        style = "bold" if row.adjusted < ALPHA else ""
        table.add_row(Text(row.entry or OVERALL), *(Text(cell, style) for cell in _cells(row, wanted).values()))
    return table


def pair_name(row: Difference) -> str:
    """Return the name of a difference, such as `B − A` for the value of B minus that of A."""
    return f"{row.first} − {row.second}"


def _cells(row: Difference, wanted: float | None) -> dict[str, str]:
    """Return the cells of a row by the headings of their columns."""
    is_success = row.measure == SUCCESS
    scale = 100.0 if is_success else 1.0
    digits = 1 if is_success else find_measure(row.measure).digits
    difference = row.result.difference
    cells = {
        "pair": pair_name(row),
        "difference": signed(scale * difference.value, digits),
        "95 % interval": signed_interval(scale * difference.low, scale * difference.high, digits),
        "p (Holm)": p_value(row.adjusted),
        "n": str(row.result.n),
    }
    if is_success:
        cells["shows"] = "–" if row.smallest is None else f"{100 * row.smallest:.1f}"
    if is_success and wanted is not None:
        cells["needs"] = "–" if row.needed is None else f"{row.needed:,}"
    return cells


def _listed(rows: Sequence[Difference], wanted: float | None) -> Text:
    """Return the differences as short lines, for a narrow terminal."""
    text = Text(overflow="fold")
    for row in rows:
        cells = _cells(row, wanted)
        text.append(f"{row.entry or OVERALL}, {cells['pair']}\n", style="bold")
        text.append(f"  {cells['difference']} ({cells['95 % interval'].strip()})\n")
        more = "".join(f", {name} {cells[name]}" for name in ("shows", "needs") if name in cells)
        text.append(f"  p {cells['p (Holm)']}, n {cells['n']}{more}\n", style="dim")
    return text


def _settings(comparison: RunComparison) -> Group | Text:
    if not comparison.settings:
        return Text("All settings of the agents are the same.")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("setting", style="dim", overflow="fold", min_width=len("setting"))
    for agent in comparison.agents:
        table.add_column(agent.letter, overflow="fold")
    for name, values in comparison.settings.items():
        table.add_row(Text(name), *map(Text, values))
    return Group(Text("settings that differ", style="italic"), table)


def _listed_settings(comparison: RunComparison) -> Text:
    text = Text("settings that differ\n" if comparison.settings else "All settings of the agents are the same.")
    letters = [agent.letter for agent in comparison.agents]
    for name, values in comparison.settings.items():
        pairs = ", ".join(f"{letter} {value}" for letter, value in zip(letters, values, strict=True))
        text.append(f"{name}: {pairs}\n", style="dim")
    return text
