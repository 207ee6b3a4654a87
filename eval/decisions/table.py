"""Table of the quality of decisions for an 80-column terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ...envs.terminal import fit_parts
from ..report import number
from .coverage import describe_unknown
from .labels import SOLVED
from .statistics import DecisionLine

_TABLE_WIDTH = 80
"""Columns that the table needs."""

_NAME = 12
"""Columns of an agent's name."""

_REASONS = _NAME + 20 + 7 + 7 + 7 + 6 + 2
"""Columns before the reasons of failure."""

_LEGEND = (
    "Optimal: of the actions of all episodes, taken while something could be lost. Lost: {lost} that the decisions"
    " of an episode gave away. Fatal at: median number of the action after which nothing could be reached."
    " {repeated}: same action as before in the same state."
)


def fit_decisions(lines: Sequence[DecisionLine], width: int) -> Text:
    """Return the table of decisions, or in a narrow terminal a few short lines for each agent.

    Args:
        lines: Statistics of entries and agents.
        width: Width of the terminal in columns.
    """
    return decisions_table(lines) if width >= _TABLE_WIDTH else _narrow(lines, width)


def decisions_table(lines: Sequence[DecisionLine]) -> Text:
    """Return a table of 80 columns; the last column says why tasks were not solved, one reason below the other.

    Entries head their agents' rows, and a long name of an agent has a row of its own, so that no number is folded.
    """
    text = Text(overflow="fold")
    text.append(f"\n{'':{_NAME}}           optimal %   lost  extra  fatal  same\n")
    text.append(f"{'decisions':{_NAME}}  95 % interval      %  steps     at     %  why not solved\n")
    text.append("─" * 79 + "\n", style="dim")
    previous = None
    for line in lines:
        if line.entry != previous:
            text.append(f"{_head(line)}\n", style="bold")
        previous = line.entry
        name = f"  {line.agent}"
        if len(name) > _NAME:
            text.append(f"{name}\n")
            name = ""
        reasons = describe_failures(line) or ["–"]
        text.append(f"{name:{_NAME}}")
        text.append_text(_share(line))
        cells = (
            f"{number(100 * line.value_regret.value, 1):>7}",
            f"{number(line.step_regret.value, 1):>7}",
            f"{number(line.first_fatal, 0):>7}",
            f"{number(100 * line.repeated.value, 1):>6}",
        )
        text.append(f"{''.join(cells)}  {reasons[0]}\n")
        for reason in reasons[1:]:
            text.append(f"{'':{_REASONS}}{reason}\n")
    return text


def _narrow(lines: Sequence[DecisionLine], width: int) -> Text:
    text = Text(overflow="fold")
    previous = None
    for line in lines:
        if line.entry != previous:
            text.append(f"\n{_head(line)}\n", style="bold")
        previous = line.entry
        text.append(f"  {line.agent}\n    optimal {_share(line).plain.strip()} %\n")
        parts = [f"{number(100 * line.value_regret.value, 1)} % lost"]
        parts.append(f"{number(line.step_regret.value, 1)} extra steps")
        if line.first_fatal is not None:
            parts.append(f"fatal at {number(line.first_fatal, 0)}")
        parts.append(f"{number(100 * line.repeated.value, 1)} % repeated")
        text.append(f"{fit_parts(parts, width, indent='    ')}\n", style="dim")
        for reason in describe_failures(line):
            text.append(f"    {reason}\n", style="dim")
    return text


def describe_failures(line: DecisionLine) -> list[str]:
    """Return the share of each outcome other than a solved task, most frequent first, such as "dead end 12 %"."""
    total = sum(line.outcomes.values())
    return [
        f"{outcome} {100 * count / total:.0f} %" if 200 * count >= total else f"{outcome} < 1 %"
        for outcome, count in line.outcomes.items()
        if outcome != SOLVED
    ]


def describe_basis(lines: Sequence[DecisionLine], width: int) -> list[str]:
    """Return the explanation of the table, and sentences on what has no known optimum, or no labels.

    Args:
        lines: Statistics of entries and agents.
        width: Width of the terminal in columns.
    """
    measures = list(dict.fromkeys(line.measure for line in lines if line.measure))
    repeated = "Same" if width >= _TABLE_WIDTH else "Repeated"
    notes = [_LEGEND.format(lost=" or ".join(measures), repeated=repeated)] if measures else []
    notes += describe_unknown(lines)
    for line in lines:
        for reason, count in line.problems.items():
            notes.append(
                f"{line.entry}, {line.agent}: {count} of {line.episodes} episodes have no labels. {reason}"
            )
    return notes


def _head(line: DecisionLine) -> str:
    """Return the name of an entry, with a remark where its optimum is not proven."""
    return line.entry if line.exact else f"{line.entry}, over the shortest known"


def _share(line: DecisionLine) -> Text:
    """Format the share of optimal decisions with its interval, in 20 columns."""
    if not line.judged:
        return Text(f"{'–':>20}")
    text = Text(f"{100 * line.optimal.value:5.1f}", style="bold")
    text.append(f" {100 * line.optimal.low:5.1f} to {100 * line.optimal.high:5.1f}", style="dim not bold")
    text.append(" ")
    return text
