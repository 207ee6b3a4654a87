"""Progress in the terminal: a curve, and the last updates in a table; in a log, a line for each update."""

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
    """In at most six characters."""
    size = abs(value)
    if size >= 1e4:
        return f"{value / 1e3:.3g}k" if size < 1e6 else f"{value:.0e}"
    if size >= 100 or size == 0:
        return f"{value:.0f}"
    return f"{value:.3g}" if size >= 0.1 else f"{value:.2g}" if size >= 1e-3 else f"{value:.0e}"


@dataclass(frozen=True)
class View:
    """What is shown of a run.

    Attributes:
        columns: metric -> (heading, format), of the table.
        seen: metric of the curve that every update has, and its name.
        held_out: metric of the curve that few updates have, and its name.
        form: of the numbers beside the curve.
        top: the curve's axis ends here; None for no bound.
    """

    columns: Mapping[str, tuple[str, _Format]]
    seen: tuple[str, str]
    held_out: tuple[str, str]
    form: _Format
    top: float | None = None


TRAINING_VIEW = View(
    {
        "validation/success": ("held", _percent),
        "success": ("success", _percent),
        "return": ("return", _number),
        "group_return_std": ("spread", _number),
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


def curve(records: Sequence[Mapping[str, float]], view: View, end: int, width: int, height: int) -> Text:
    """The curve of a run: every update as a dot, their running mean as a line, what was held out with marks.

    Args:
        records: metrics by update.
        view: which metrics.
        end: updates in all.
        width, height: in characters.
    """
    (metric, name), (rare, rare_name) = view.seen, view.held_out
    points = [(r["update"], r[metric]) for r in records if metric in r]
    held_out = [(r["update"], r[rare]) for r in records if rare in r]
    mean = max(1, round(end / 20))
    label = name if mean == 1 else f"{name}, mean of {mean}"
    series = [
        Series("", points, "dim cyan", "dots"),
        Series(label, running_mean(points, mean), "cyan"),
        *([Series(rare_name, held_out, "bold green", "marks")] if held_out else []),
    ]
    return plot(series, end=end, width=width, height=height, form=view.form, top=view.top)


class Progress:
    """A live curve and a table of the last updates, with alarms and notes above them.

    In a log, which cannot be redrawn, each update is a line, and one curve comes at the end.

    Args:
        console: where to.
        title: of the table.
        total: updates in all.
        view: what is shown.
        quiet: show nothing.
    """

    WIDTH, HEIGHT = 100, 15
    """Of the curve, at most."""
    ROWS = 8
    """Of the table, at most."""

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
            self._console.print(curve(self._records, self._view, self._total, min(self._console.width, 80), 15))

    def add(self, record: UpdateRecord) -> None:
        """Show an update and what there is to say of it."""
        if self._quiet:
            return
        for alarm in record.alarms:
            self._console.print(f"[yellow]Warning:[/] {escape(str(alarm))}")
        for note in record.notes:
            self._console.print(f"[red]{escape(note)}[/]")
        self.show(record.metrics)

    def show(self, metrics: Mapping[str, float]) -> None:
        """Show numbers."""
        if self._quiet:
            return
        self._records.append(metrics)
        if self._console.is_terminal:
            self._live.update(self._picture(), refresh=True)
            return
        columns = self._view.columns.items()
        shown = [f"{head} {form(metrics[name])}" for name, (head, form) in columns if name in metrics]
        line = f"update {metrics['update']:g} of {self._total}: {', '.join(shown)}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _picture(self) -> Group:
        """As much as the terminal has room for: the curve first, then as many rows as are left."""
        room = self._console.height - 1
        height = min(self.HEIGHT, room - 4)
        parts = []
        if height >= 8 and len(self._records) > 1:
            parts.append(
                curve(self._records, self._view, self._total, min(self._console.width, self.WIDTH), height)
            )
            room -= height
        return Group(*parts, self._table(min(self.ROWS, max(room - 2, 1))))

    def _table(self, rows: int) -> Table:
        title = f"{self._title}: {self._records[-1]['update']:g} of {self._total}"
        table = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("update", justify="right", no_wrap=True)
        for heading, _ in self._view.columns.values():
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self._records[-rows:]:
            cells = [form(row[name]) if name in row else "" for name, (_, form) in self._view.columns.items()]
            table.add_row(f"{row['update']:g}", *cells)
        return table
