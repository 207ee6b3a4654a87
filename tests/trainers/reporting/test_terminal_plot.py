"""Terminal plots and live progress: positions of points, axes, and layout within the terminal's size."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from arboretum.trainers.reporting.progress import SFT_VIEW, TRAINING_VIEW, Progress, plot_progress
from arboretum.trainers.reporting.terminal_plot import Series, plot, running_mean


def dots(lines: list[str], left: int) -> set[tuple[int, int]]:
    """Return the dots of braille text as (x, y), y downward. Unicode numbers the dots 1, 2, 3, 7 on the left."""
    positions = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    found = set()
    for row, line in enumerate(lines):
        for column, character in enumerate(line[left:]):
            bits = ord(character) - 0x2800
            if 0 < bits < 256:
                found |= {
                    (2 * column + x, 4 * row + y) for bit, (x, y) in enumerate(positions) if bits & (1 << bit)
                }
    return found


def test_points_are_drawn_at_their_axis_positions() -> None:
    points = [(0.0, 0.0), (10.0, 0.25), (20.0, 1.0), (40.0, 0.5)]
    text = plot(
        [Series("x", points, "", "dots")],
        x_max=40,
        width=80,
        height=15,
        format_value=lambda v: f"{v:.2f}",
        y_max=1.0,
    )
    legend, *rows, axis, labels = text.plain.split("\n")
    assert len(rows) == 12 and "x" in legend and max(map(len, text.plain.split("\n"))) <= 80
    left = axis.index("└") + 1
    found = dots(rows, left)
    right, bottom = 2 * (len(axis) - left) - 1, 4 * len(rows) - 1
    assert found == {(round(x / 40 * right), round((1 - y) * bottom)) for x, y in points}
    # Each label is in the row of its value.
    assert rows[0].startswith("1.00 ┤") and rows[-1].startswith("0.00 ┤")
    assert labels.split()[0] == "0" and labels.endswith("update 40")


def test_line_has_no_gaps() -> None:
    points = [(float(x), (x * 7 % 13) / 13) for x in range(30)]
    text = plot([Series("", points, "")], x_max=29, width=60, height=12)
    rows = text.plain.split("\n")[1:-2]
    found = dots(rows, rows[0].index("┤") + 1)
    assert {x for x, _ in found} == set(range(max(x for x, _ in found) + 1))
    for x, y in found - {max(found)}:  # each dot touches another
        assert any((x + dx, y + dy) in found for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx or dy)


@pytest.mark.parametrize("highest", [0.004, 0.19, 0.2, 0.77, 1.0, 3.3, 49.0, 1e6])
def test_y_axis_ends_at_round_number_above_all_values(highest: float) -> None:
    rows = plot([Series("", [(1, highest), (2, highest / 3)], "")], x_max=2).plain.split("\n")
    top = float(rows[1].split("┤")[0])
    assert highest <= top <= 2 * highest and f"{top:.0e}"[0] in "123456789"


def test_empty_series_nan_and_points_beyond_the_axis_are_skipped() -> None:
    assert "┤" in plot([Series("loss", [], "")], x_max=3).plain
    text = plot([Series("", [(1, math.nan), (2, 0.5), (9, 0.5)], "", "marks")], x_max=4).plain
    assert text.count("●") == 1  # neither NaN nor a point beyond the end of the x-axis
    assert plot([Series("", [(1, 0.0)], "", "marks")], x_max=1, y_max=1.0).plain.count("●") == 1


def test_running_mean_covers_fewer_points_at_the_beginning() -> None:
    assert running_mean([(1, 2.0), (2, 4.0), (3, 9.0), (4, 2.0)], 2) == [(1, 2.0), (2, 3.0), (3, 6.5), (4, 5.5)]


RECORDS = [{"update": 0.0, "validation/success": 0.25}] + [
    {"update": float(t), "success": t / 40, "entropy": 1.0, **({"validation/success": t / 40} if t == 20 else {})}
    for t in range(1, 21)
]


def show_progress(terminal: bool, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, height=height, color_system=None)
    with Progress(console, "grpo on an environment", 40) as progress:
        for record in RECORDS:
            progress.show(record)
    return console.file.getvalue().split("\n")  # type: ignore[attr-defined,no-any-return]


def test_log_has_one_line_per_update_and_one_curve_at_the_end() -> None:
    lines = show_progress(terminal=False)
    assert [line.partition(":")[0] for line in lines[:21]] == [f"update {t} of 40" for t in range(21)]
    assert sum("┴" in line for line in lines) == 1 and sum("●" in line for line in lines) > 1
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 50), (80, 16), (80, 8)])
def test_live_display_fits_the_terminal(width: int, height: int) -> None:
    """A live display that is taller than the terminal would leave a copy behind at every refresh."""
    text = "\n".join(show_progress(terminal=True, width=width, height=height))
    last = re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "", text.rpartition("\x1b[2K")[2])
    drawn = [line for line in last.split("\n") if line.strip()]
    assert len(drawn) < height and max(map(len, drawn)) <= width
    assert any("20 of 40" in line for line in drawn)
    assert any("⠒●⠒ held out" in line for line in drawn) == (height >= 13)
    assert "…" not in text  # no heading or number is truncated


def test_legend_names_the_metrics_of_each_view() -> None:
    text = plot_progress(RECORDS, TRAINING_VIEW, 40, 80, 15).plain
    assert "⠒●⠒ held out" in text and "success in training, mean of 2" in text and "50% ┤" in text
    assert "⠒⠒ loss" in plot_progress([{"update": 1, "loss": 2.0}], SFT_VIEW, 10, 80, 15).plain


def test_long_legend_is_continued_on_a_further_line_within_the_height() -> None:
    series = [
        Series(name, [(0.0, 0.5)], "", "marks") for name in ("held out", "TextSokoban-v0", "TextFrozenLake-v0")
    ]
    lines = plot(series, x_max=2, y_max=1.0, width=50, height=10).plain.split("\n")
    assert len(lines) == 10 and max(map(len, lines)) <= 50
    assert lines[0].split() == ["⠒●⠒", "TextFrozenLake-v0", "⠒●⠒", "TextSokoban-v0"]
    assert lines[1].split() == ["⠒●⠒", "held", "out"]


def test_letters_tell_series_apart_without_colors() -> None:
    series = [
        Series(name, [(0.0, 0.1), (9.0, end)], "red", letter=letter)
        for name, end, letter in (("one", 0.9, "A"), ("two", 0.2, "B"), ("three", 0.2, "C"))
    ]
    legend, *rows = plot(series, x_max=10, y_max=1.0, width=60, height=14).plain.split("\n")
    assert legend.split() == ["⠒C⠒", "three", "⠒B⠒", "two", "⠒A⠒", "one"]
    places = {
        letter: (line.index(letter), row) for row, line in enumerate(rows) for letter in "ABC" if letter in line
    }
    assert places["A"][1] < 3 and places["A"][0] == places["B"][0] and places["B"][1] == places["C"][1]
    assert places["B"][0] - places["C"][0] == 1  # side by side at the same end


def test_letters_of_many_equal_ends_stay_in_their_row_and_hide_no_mark() -> None:
    held_out = Series("", [(0.0, 0.2), (10.0, 0.5)], "", "marks")
    runs = [Series(f"run {letter}", [(0.0, 0.5), (10.0, 0.5)], "", letter=letter) for letter in "ABCDEFG"]
    _, *rows = plot([*runs, held_out], x_max=10, y_max=1.0, width=60, height=16).plain.split("\n")
    (row,) = (line for line in rows if "G" in line)
    assert row.rstrip().endswith("GFEDCBA●") and sum("●" in line for line in rows) == 2
