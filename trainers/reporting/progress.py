"""Progress of a run: in a terminal a live curve, table and phase; in a log a line per update, and few between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..state import Activity
from .status import describe_phase, describe_time, format_duration, run_seconds_left
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
        details: Further metrics, which are shown of the last update only.
        parts: Further held-out metrics, such as those of single environments, and their labels.
    """

    columns: Mapping[str, tuple[str, _Format]]
    training: tuple[str, str]
    held_out: tuple[str, str]
    format_value: _Format
    y_max: float | None = None
    details: Mapping[str, tuple[str, _Format]] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)


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
    {
        "graph/divergences": ("divergences", _number),
        "pairs": ("pairs", _number),
        "policy_loss": ("policy loss", _number),
        "explained_variance": ("explained variance", _number),
        "invalid_replies": ("invalid replies", _number),
        "truncated_replies": ("truncated", _number),
    },
)
_PART_STYLES = ("bold magenta", "bold yellow", "bold blue", "bold red")


def training_view(envs: Sequence[str]) -> View:
    """Return the view of a training run, with the success in each of several environments.

    Args:
        envs: Names of the run's environments.
    """
    if len(envs) == 1:
        return TRAINING_VIEW
    details = dict(TRAINING_VIEW.details)
    for env in envs:
        details[f"success/{env}"] = (env, _percent)
        details[f"validation/success/{env}"] = (f"{env} held out", _percent)
    return replace(TRAINING_VIEW, details=details, parts={f"validation/success/{env}": env for env in envs})


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
    for place, (part, part_label) in enumerate(view.parts.items()):
        marks = [(r["update"], r[part]) for r in records if part in r]
        if marks:
            series.append(Series(part_label, marks, _PART_STYLES[place % len(_PART_STYLES)], "marks"))
    return plot(series, x_max=total, y_max=view.y_max, width=width, height=height, format_value=view.format_value)


class Progress:
    """Live curve, table of the last updates and phase in progress; alarms and notes are printed above them.

    A log cannot be redrawn: there, each update is one line, and the curve follows at the end. The phase in
    progress is a line when nothing else was printed for a while.

    Args:
        console: Console to print to.
        title: Title of the table.
        total: Total number of updates.
        max_tokens: Generated tokens after which the run ends before; None without such a limit.
        view: Metrics to show.
        activity: Phase in progress.
        quiet: Print nothing.

    Attributes:
        total: Total number of updates; 0 as long as it is unknown.
    """

    MAX_WIDTH, MAX_HEIGHT = 100, 15
    """Maximum size of the curve in characters."""
    MAX_ROWS = 8
    """Maximum number of updates in the table."""
    FIRST_PAUSE, LAST_PAUSE = 5.0, 60.0
    """Seconds without output after which a log receives the phase in progress; doubled each time."""

    def __init__(
        self,
        console: Console,
        title: str,
        total: int,
        *,
        max_tokens: int | None = None,
        view: View = TRAINING_VIEW,
        activity: Activity | None = None,
        quiet: bool = False,
    ) -> None:
        self.total = total
        self._console = console
        self._title = title
        self._max_tokens = max_tokens
        self._view = view
        self._activity = activity or Activity()
        self._quiet = quiet
        self._records: list[Mapping[str, float]] = []
        self._closed = threading.Event()
        self._last_output = time.monotonic()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=2)
        self._logger = threading.Thread(target=self._log_phases, daemon=True)

    def __enter__(self) -> Progress:
        if not self._quiet and self._console.is_terminal:
            self._live.__enter__()
        elif not self._quiet:
            self._logger.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._quiet:
            return
        self._closed.set()
        if self._console.is_terminal:
            self._live.transient = not self._records  # Otherwise an empty line would remain.
            self._live.__exit__(*exception)
            return
        self._logger.join()
        if len(self._records) > 1:
            width = min(self._console.width, 80)
            self._console.print(plot_progress(self._records, self._view, self.total, width, self.MAX_HEIGHT))

    def add(self, record: UpdateRecord) -> None:
        """Show an update with its alarms and notes."""
        if self._quiet:
            return
        in_log = not self._console.is_terminal
        for alarm in record.alarms:
            self._console.print(f"[yellow]Warning:[/] {escape(str(alarm))}", soft_wrap=in_log)
        for note in record.notes:
            self._console.print(f"[red]{escape(note)}[/]", soft_wrap=in_log)
        self.show(record.metrics)

    def show(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of an update."""
        if self._quiet:
            return
        self._records.append(metrics)
        if self._console.is_terminal:
            self._live.refresh()
            return
        columns = [*self._view.columns.items(), *self._view.details.items()]
        self._log(f"update {metrics['update']:g} of {self.total}: {_format_metrics(metrics, columns)}")

    # ------------------------------------------------------------------ in a log

    def _log(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._last_output = time.monotonic()

    def _log_phases(self) -> None:
        """Print the phase in progress after pauses of growing length, and notices at once; runs in a thread."""
        pause, notice = 0.0, ""
        while not self._closed.wait(min(self.FIRST_PAUSE / 5, 0.2)):
            if self._activity.notice != notice:
                notice = self._activity.notice
                self._log(notice)
            phase = self._activity.phase
            if phase is not None and time.monotonic() - self._last_output >= pause:
                left = run_seconds_left(self._records, self.total, self._max_tokens)
                run = "" if left is None else f"; run: about {format_duration(left)} left"
                self._log(f"{describe_phase(self._activity, phase)} ({describe_time(phase)}{run})")
                pause = min(max(2 * pause, self.FIRST_PAUSE), self.LAST_PAUSE)

    # ------------------------------------------------------------------ in a terminal

    def _render(self) -> Group:
        """Return the curve, the table and the phase, with as many lines as the terminal's height allows."""
        status = [] if self._closed.is_set() else self._status_lines()
        details = self._detail_lines()
        lines_left = self._console.height - 1 - len(status) - len(details)
        if not self._records:
            return Group(*status)
        height = min(self.MAX_HEIGHT, lines_left - 4)
        parts = []
        if height >= 8 and len(self._records) > 1:
            width = min(self._console.width, self.MAX_WIDTH)
            parts.append(plot_progress(self._records, self._view, self.total, width, height))
            lines_left -= height
        table = self._table(min(self.MAX_ROWS, max(lines_left - 2, 1)))
        return Group(*parts, table, *details, *status)

    def _detail_lines(self) -> list[Text]:
        """Return the further metrics of the last update, in at most one line."""
        details = _format_metrics(self._records[-1], self._view.details.items()) if self._records else ""
        return [Text(details, "dim", no_wrap=True, overflow="ellipsis")] if details else []

    def _status_lines(self) -> list[Text]:
        """Return the phase in progress, and its time and that of the run."""
        phase = self._activity.phase
        lines = [(describe_phase(self._activity, phase), "cyan")]
        left = run_seconds_left(self._records, self.total, self._max_tokens)
        times = [describe_time(phase), "" if left is None else f"run: about {format_duration(left)} left"]
        lines += [("; ".join(filter(None, times)), "dim"), (self._activity.notice, "yellow")]
        return [Text(line, style, no_wrap=True, overflow="ellipsis") for line, style in lines if line]

    def _table(self, rows: int) -> Table:
        title = f"{self._title}: {self._records[-1]['update']:g} of {self.total}"
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


def _format_metrics(record: Mapping[str, float], columns: Iterable[tuple[str, tuple[str, _Format]]]) -> str:
    """Return the metrics of a record that it has, each with its heading."""
    return ", ".join(
        f"{heading} {format_value(record[name])}" for name, (heading, format_value) in columns if name in record
    )
