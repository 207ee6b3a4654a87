"""Progress of a run in the terminal: live curve and table of the last updates; in a log, one line per update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .terminal_plot import Series, plot, running_mean

if TYPE_CHECKING:
    from .metrics import UpdateRecord

_Format = Callable[[float], str]


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def _number(value: float) -> str:
    """Format a number in at most six characters."""
    magnitude = abs(value)
    if magnitude >= 1e4:
        return f"{value / 1e3:.3g}k" if magnitude < 1e6 else f"{value:.0e}"
    if magnitude >= 100 or magnitude == 0:
        return f"{value:.0f}"
    return f"{value:.3g}" if magnitude >= 0.1 else f"{value:.2g}" if magnitude >= 1e-3 else f"{value:.0e}"


@dataclass(frozen=True)
class View:
    """Selection of the metrics to show of a kind of run.

    Attributes:
        columns: Columns of the table: heading and format by metric.
        training: Metric of the training curve, which every update has, and its label.
        held_out: Metric of the held-out curve, which only some updates have, and its label.
        format_value: Format of the tick labels beside the curve.
        y_max: Upper limit of the curve's y-axis; None for no limit.
    """

    columns: Mapping[str, tuple[str, _Format]]
    training: tuple[str, str]
    held_out: tuple[str, str]
    format_value: _Format
    y_max: float | None = None


TRAINING_VIEW = View(
    {
        "validation/success": ("val", _percent),
        "success": ("success", _percent),
        "return": ("return", _number),
        "group_return_std": ("std", _number),
        "silent_groups": ("silent", _percent),
        "valid_turns": ("valid", _percent),
        "entropy": ("entropy", _number),
        "approx_kl": ("KL", _number),
        "grad_norm": ("grad", _number),
        "reply_tokens": ("reply", _number),
        "sampled_tokens_per_second": ("tok/s", _number),
    },
    ("success", "success in training"),
    ("validation/success", "held out"),
    _percent,
    1.0,
)
SFT_VIEW = View(
    {
        "loss": ("loss", _number),
        "held_out/loss": ("held out", _number),
        "entropy": ("entropy", _number),
        "grad_norm": ("grad", _number),
        "lr": ("lr", _number),
        "tokens_per_second": ("tok/s", _number),
    },
    ("loss", "loss"),
    ("held_out/loss", "held out"),
    _number,
)


def plot_progress(records: Sequence[Mapping[str, float]], view: View, total: int, width: int, height: int) -> Text:
    """Plot a run: a dot per update, the running mean of updates as a line, and marks for held-out values.

    Args:
        records: Metrics of the updates, in order.
        view: Metrics to show.
        total: Total number of updates.
        width, height: Size in characters.
    """
    (metric, label), (held_out_metric, held_out_label) = view.training, view.held_out
    points = [(r["update"], r[metric]) for r in records if metric in r]
    held_out = [(r["update"], r[held_out_metric]) for r in records if held_out_metric in r]
    window = max(1, round(total / 20))
    if window > 1:
        label = f"{label}, mean of {window}"
    series = [
        Series("", points, "dim cyan", "dots"),
        Series(label, running_mean(points, window), "cyan"),
        *([Series(held_out_label, held_out, "bold green", "marks")] if held_out else []),
    ]
    return plot(series, x_max=total, y_max=view.y_max, width=width, height=height, format_value=view.format_value)


class Progress:
    """Live curve and table of the last updates; alarms and notes are printed above them.

    A log cannot be redrawn: there, each update is one line, and the curve follows at the end.

    Args:
        console: Console to print to.
        title: Title of the table.
        total: Total number of updates.
        view: Metrics to show.
        quiet: Print nothing.
    """

    MAX_WIDTH, MAX_HEIGHT = 100, 15
    """Maximum size of the curve in characters."""
    MAX_ROWS = 8
    """Maximum number of updates in the table."""

    def __init__(
        self, console: Console, title: str, total: int, *, view: View = TRAINING_VIEW, quiet: bool = False
    ) -> None:
        self._console = console
        self._title = title
        self._total = total
        self._view = view
        self._quiet = quiet
        self._records: list[Mapping[str, float]] = []
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Progress:
        if not self._quiet and self._console.is_terminal:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._quiet:
            return
        if self._console.is_terminal:
            self._live.__exit__(*exception)
        elif len(self._records) > 1:
            width = min(self._console.width, 80)
            self._console.print(plot_progress(self._records, self._view, self._total, width, self.MAX_HEIGHT))

    def add(self, record: UpdateRecord) -> None:
        """Show an update with its alarms and notes."""
        if self._quiet:
            return
        for alarm in record.alarms:
            self._console.print(f"[yellow]Warning:[/] {escape(str(alarm))}")
        for note in record.notes:
            self._console.print(f"[red]{escape(note)}[/]")
        self.show(record.metrics)

    def show(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an update."""
        if self._quiet:
            return
        self._records.append(metrics)
        if self._console.is_terminal:
            self._live.update(self._render(), refresh=True)
            return
        columns = self._view.columns.items()
        shown = [
            f"{heading} {format_value(metrics[name])}"
            for name, (heading, format_value) in columns
            if name in metrics
        ]
        line = f"update {metrics['update']:g} of {self._total}: {', '.join(shown)}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        """Return the curve and the table, with as many lines as the terminal's height allows."""
        lines_left = self._console.height - 1
        height = min(self.MAX_HEIGHT, lines_left - 4)
        parts = []
        if height >= 8 and len(self._records) > 1:
            width = min(self._console.width, self.MAX_WIDTH)
            parts.append(plot_progress(self._records, self._view, self._total, width, height))
            lines_left -= height
        return Group(*parts, self._table(min(self.MAX_ROWS, max(lines_left - 2, 1))))

    def _table(self, rows: int) -> Table:
        title = f"{self._title}: {self._records[-1]['update']:g} of {self._total}"
        table = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("update", justify="right", no_wrap=True)
        for heading, _ in self._view.columns.values():
            table.add_column(heading, justify="right", no_wrap=True)
        for record in self._records[-rows:]:
            cells = [
                format_value(record[name]) if name in record else ""
                for name, (_, format_value) in self._view.columns.items()
            ]
            table.add_row(f"{record['update']:g}", *cells)
        return table
