"""`arboretum compare` of numbers besides success: their units, and their intervals where they are outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

Command = Callable[..., str]

LOST, OPTIMAL = "regret in value per episode", "optimal decisions, points"
LAKES = """
  - {name: Lake, env: TextFrozenLake-v0, split: test, tasks: 6}
  - {name: Sokoban, env: TextSokoban-v0, split: test, tasks: 6}
"""
BANDIT = "  - {name: Bandit, env: TextBandit-v0, split: test, tasks: 6}\n"


def compare(command: Command, entries: str, width: int = 80) -> tuple[str, dict[str, dict[str | None, Any]]]:
    """Return the output of a comparison of the random agent with the expert, and its rows by measure and entry."""
    Path("small.yaml").write_text(f"name: small\nentries:{entries}")
    for agent in ("random", "expert"):
        arguments = ("--agent", agent, "--no-references", "--workers", 1, "--out", f"runs/the-{agent}-agent")
        command("eval", "small.yaml", *arguments)
    text = command("compare", "runs/the-random-agent", "runs/the-expert-agent", "--out", "page.html", width=width)
    rows: dict[str, dict[str | None, Any]] = {}
    for row in json.loads(Path("page.json").read_text())["differences"]:
        rows.setdefault(row["measure"], {})[row["entry"]] = row["result"]["difference"]
    return text, rows


def test_regrets_of_one_unit_have_a_mean_over_the_entries(command: Command) -> None:
    text, rows = compare(command, LAKES)
    assert list(rows[LOST]) == ["Lake", "Sokoban", None]
    assert rows[LOST][None]["value"] == pytest.approx(
        fmean(rows[LOST][name]["value"] for name in ("Lake", "Sokoban"))
    )
    assert "no mean over the entries" not in text
    assert json.loads(Path("page.json").read_text())["notes"] == {}


def test_regrets_of_different_units_have_a_sentence_instead_of_a_mean(command: Command) -> None:
    text, rows = compare(command, LAKES + BANDIT)
    assert list(rows[LOST]) == ["Lake", "Sokoban", "Bandit"] and None in rows[OPTIMAL]
    sentence = (
        "There is no mean over the entries, whose units differ: probability of success (Lake, Sokoban); payment"
        " (Bandit)."
    )
    assert sentence in " ".join(text.split()) and sentence in Path("page.html").read_text(encoding="utf-8")


def test_equal_outcomes_have_equal_intervals_in_every_measure(command: Command) -> None:
    _, rows = compare(command, LAKES + BANDIT)
    # In Sokoban an episode loses all or nothing, and is not solved or solved.
    solved, lost = rows["success"]["Sokoban"], rows[LOST]["Sokoban"]
    assert (lost["value"], lost["low"], lost["high"]) == pytest.approx(
        (-solved["value"], -solved["high"], -solved["low"])
    )
    # A bandit has one decision, which is optimal or not.
    assert -100 <= rows[OPTIMAL]["Bandit"]["low"] < rows[OPTIMAL]["Bandit"]["high"] <= 100


def test_difference_of_shares_is_no_larger_than_they_can_be(command: Command) -> None:
    """Student's interval of one task is infinite, and that of two may exceed 100 points."""
    text, rows = compare(command, "\n  - {name: Sokoban, env: TextSokoban-v0, split: test, tasks: 1}\n")
    difference = rows[OPTIMAL]["Sokoban"]
    assert 0 < difference["value"] < 100 and (difference["low"], difference["high"]) == (-100.0, 100.0)
    assert "−100.0 to +100.0" in text


def test_agents_have_whole_names_and_headings_in_a_narrow_terminal(command: Command) -> None:
    text, _ = compare(command, LAKES, width=40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.startswith("A  random\n  success ") and "\nB  expert\n  success 100.0 " in text
    assert "\n  episodes 12\n" in text
