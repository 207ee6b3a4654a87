"""Charts of a training report: selection of metrics and geometry. The page's template draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .env_metrics import env_names
from .terminal_plot import round_step

WIDTH, HEIGHT = 360, 190
"""Size of a chart in SVG units."""
LEFT, RIGHT, TOP, BOTTOM = 54, 10, 10, 24
"""Margins between the chart's edges and its plot area."""
COLORS = 7
"""Colors of curves in the style sheet; further curves repeat them."""


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _tick_label(value: float, format_value: Callable[[float], str]) -> str:
    """Return the label of a tick; large numbers are in thousands or millions, to fit beside the axis."""
    if format_value is not _number or abs(value) < 10_000:
        return format_value(value)
    return f"{value / 1e6:,.4g}M" if abs(value) >= 1e6 else f"{value / 1e3:g}k"


@dataclass(frozen=True)
class Chart:
    """Chart of one or several metrics over the updates.

    Attributes:
        title: Title above the chart.
        about: Description in one sentence.
        metrics: Labels of the curves, by metric.
        format_value: Formats values for tick labels and tooltips.
        band: Metrics of the lower and upper bound of an interval, and the metric whose curve it belongs to; None
            for no interval.
        y_max: Value that the y-axis includes in any case; None for no such value.
        x_name: Name of the values on the x-axis, which records hold as `update`.
    """

    title: str
    about: str
    metrics: Mapping[str, str]
    format_value: Callable[[float], str] = _number
    band: tuple[str, str, str] | None = None
    y_max: float | None = None
    x_name: str = "update"


CHARTS = (
    Chart(
        "Success",
        "Fraction of episodes that solve their task; the band is the 95 % confidence interval.",
        {"success": "training", "validation/success": "held out"},
        _percent,
        ("validation/low", "validation/high", "validation/success"),
        1.0,
    ),
    Chart(
        "Return",
        "Mean undiscounted return per episode.",
        {"return": "training", "validation/return": "held out"},
    ),
    Chart(
        "Return deviation within groups",
        "Standard deviation of the returns within a group, mean over groups. At zero there is no learning signal.",
        {"group_return_std": "returns", "group_penalty_std": "penalties"},
    ),
    Chart(
        "Silent groups",
        "Fraction of groups whose returns are all equal, of those that penalties alone tell apart, and of groups"
        " selected for the update.",
        {"silent_groups": "silent", "penalty_groups": "penalties alone", "groups_kept": "selected"},
        _percent,
        y_max=1.0,
    ),
    Chart("Entropy", "Mean entropy of the policy per token, in nats.", {"entropy": "entropy"}),
    Chart(
        "KL divergence",
        "Divergence of the policy from the one that sampled, and from the reference policy.",
        {"approx_kl": "sampling policy", "kl": "reference policy"},
    ),
    Chart(
        "Clipped tokens",
        "Fraction of tokens whose gradient is clipped to zero.",
        {"clip_upper": "upper", "clip_lower": "lower", "clip_dual": "dual"},
        _percent,
    ),
    Chart(
        "Gradient norm",
        "Norm before clipping; mean and maximum over the optimizer steps of an update.",
        {"grad_norm": "mean", "grad_norm_max": "maximum", "critic_grad_norm": "critic"},
    ),
    Chart("Learning rate", "Learning rate of the policy.", {"lr": "learning rate"}),
    Chart("Policy loss", "Surrogate's part of the loss, mean over the optimizer steps.", {"policy_loss": "loss"}),
    Chart("Value loss", "Loss of the critic.", {"value_loss": "loss"}),
    Chart(
        "Explained variance",
        "Fraction of the variance of the critic's targets that its values explain; 1 is a perfect critic.",
        {"explained_variance": "critic"},
        y_max=1.0,
    ),
    Chart("Reply length", "Sampled tokens per turn.", {"reply_tokens": "tokens"}),
    Chart(
        "Failed replies",
        "Replies that are not in the form of the dialogue, and replies that the limit of their length ended.",
        {"invalid_replies": "invalid", "truncated_replies": "truncated"},
    ),
    Chart("Turns", "Turns per episode.", {"turns": "turns"}),
    Chart(
        "Valid turns",
        "Fraction of turns in the required format with only legal actions.",
        {"valid_turns": "valid"},
        _percent,
        y_max=1.0,
    ),
    Chart(
        "Failed episodes",
        "Episodes that ended with an error of the environment; they count as unsolved.",
        {"failed": "training", "validation/failed": "held out"},
    ),
    Chart(
        "Sampler-trainer mismatch",
        "Absolute difference between the sampler's and the trainer's log-probability of a token.",
        {"mismatch_abs": "mean", "mismatch_abs_max": "maximum"},
    ),
    Chart(
        "Throughput",
        "Tokens per second: sampled during rollouts, and processed during training.",
        {"sampled_tokens_per_second": "sampled", "trained_tokens_per_second": "trained"},
    ),
    Chart(
        "Time",
        "Seconds per update, by phase.",
        {
            "seconds/sample": "sample",
            "seconds/learn": "train",
            "seconds/validate": "validate",
            "seconds/checkpoint": "checkpoint",
        },
    ),
)


def env_charts(names: Sequence[str]) -> list[Chart]:
    """Return the charts that compare the environments of a run; none without names."""
    charts = []
    for title, about, metric, format_value, y_max in (
        ("Success in training", "Fraction of episodes that solve their task", "success", _percent, 1.0),
        ("Success on held-out tasks", "Fraction of solved held-out tasks", "validation/success", _percent, 1.0),
        ("Return in training", "Mean undiscounted return per episode", "return", _number, None),
        ("Return on held-out tasks", "Mean undiscounted return", "validation/return", _number, None),
    ):
        curves = {f"{metric}/{name}": name for name in names}
        charts.append(
            Chart(f"{title} by environment", f"{about}, in each environment.", curves, format_value, y_max=y_max)
        )
    return charts if names else []


def draw_charts(history: Sequence[Mapping[str, float]], marks: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    """Return the charts for which the history has values, as variables of the page's template.

    Args:
        history: Metrics of all records.
        marks: Updates to mark in every chart, with a description of each.
    """
    by_env = env_charts(env_names(history))
    charts = (draw_chart(chart, history, marks) for chart in (*CHARTS[:2], *by_env, *CHARTS[2:]))
    return [chart for chart in charts if chart is not None]


def draw_overlays(
    names: Sequence[str], histories: Sequence[Sequence[Mapping[str, float]]]
) -> list[dict[str, Any]]:
    """Return a chart for each metric with values, as variables of the page's template, with a curve for each run.

    Args:
        names: Names of the runs.
        histories: Metrics of all records of each run.
    """
    charts = []
    by_env = env_charts(env_names([record for history in histories for record in history]))
    for chart in (*CHARTS, *by_env):
        for metric, label in chart.metrics.items():
            overlay = replace(
                chart,
                title=chart.title if len(chart.metrics) == 1 else f"{chart.title}: {label}",
                metrics={f"{metric} {place}": name for place, name in enumerate(names)},
                # Bands over each other could not be told apart; their description follows a semicolon.
                about=chart.about if chart.band is None else f"{chart.about.partition(';')[0]}.",
                band=None,
            )
            records = [
                {"update": record["update"], f"{metric} {place}": record[metric]}
                for place, history in enumerate(histories)
                for record in history
                if metric in record
            ]
            charts.append(draw_chart(overlay, records, ()) if records else None)
    return [chart for chart in charts if chart is not None]


def draw_chart(
    chart: Chart, history: Sequence[Mapping[str, float]], marks: Sequence[tuple[int, str]]
) -> dict[str, Any] | None:
    """Return the geometry of a chart, as variables of the page's template; None if there is nothing to show.

    Args:
        chart: Chart.
        history: Records with an `update` and metrics.
        marks: Updates to mark, each with a description.
    """
    curves = {
        metric: [(r["update"], r[metric]) for r in history if metric in r and math.isfinite(r[metric])]
        for metric in chart.metrics
    }
    curves = {metric: points for metric, points in curves.items() if points}
    all_zero = all(value == 0 for points in curves.values() for _, value in points)
    if not curves or (all_zero and len(chart.metrics) > 1):
        return None
    places = {metric: place for place, metric in enumerate(chart.metrics)}
    low, high, band_metric = chart.band or ("", "", "")
    band = [(r["update"], r[low], r[high]) for r in history if low in r and high in r]
    values = [value for points in curves.values() for _, value in points] + [upper for _, _, upper in band]
    y_low, y_high, y_ticks = _y_axis(min(*values, 0.0), max(*values, 0.0), chart.y_max)
    x_max = max(max(r["update"] for r in history), 1.0)

    def x(update: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * update / x_max, 1)

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (y_high - value) / (y_high - y_low), 1)

    x_step = max(1, round(round_step(x_max, 6)))
    format_value, place = chart.format_value, chart.x_name
    lines = []
    for metric, points in curves.items():
        label, series = chart.metrics[metric], 1 + places[metric] % COLORS
        lines.append(
            {
                "name": label,
                "series": series,
                "last": format_value(points[-1][1]),
                "path": " ".join(f"{x(update)},{y(value)}" for update, value in points),
                "sparse": metric.startswith("validation/") or len(points) == 1,
                "dots": [
                    {"x": x(update), "y": y(value), "title": f"{place} {update:g}: {label} {format_value(value)}"}
                    for update, value in points
                ],
            }
        )
    outline = [(update, upper) for update, _, upper in band]
    outline += [(update, lower) for update, lower, _ in reversed(band)]
    return {
        "title": chart.title,
        "about": chart.about,
        "x_name": chart.x_name,
        "lines": lines,
        "band": " ".join(f"{x(update)},{y(value)}" for update, value in outline),
        "band_series": 1 + places.get(band_metric, -1),
        "y_ticks": [{"y": y(tick), "label": _tick_label(tick, format_value)} for tick in y_ticks],
        "x_ticks": [{"x": x(tick), "label": f"{tick}"} for tick in range(0, int(x_max) + 1, x_step)],
        "marks": [{"x": x(update), "title": description} for update, description in marks],
    }


def _y_axis(lowest: float, highest: float, y_max: float | None) -> tuple[float, float, list[float]]:
    """Return the ends of a y-axis that includes 0, and its ticks."""
    if y_max is not None:
        highest = max(highest, y_max)
    step = round_step(highest - lowest or 1.0, 4)
    first, last = math.floor(lowest / step + 1e-9), math.ceil(highest / step - 1e-9)
    last = max(last, first + 1)
    return first * step, last * step, [step * i for i in range(first, last + 1)]
