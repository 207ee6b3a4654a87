"""The curves of a training report: which metrics, and where their points lie. Geometry only; the page draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .terminal_plot import round_step

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 24
"""Of the plot within its picture."""


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        title: above it.
        about: what is shown, in a sentence.
        metrics: metric -> name of its curve.
        form: writes a number.
        band: metrics of the lower and upper bound of an interval, and the metric that it belongs to.
        top: the axis reaches at least this high; None for no bound.
    """

    title: str
    about: str
    metrics: Mapping[str, str]
    form: Callable[[float], str] = _plain
    band: tuple[str, str, str] | None = None
    top: float | None = None


CHARTS = (
    Chart(
        "Success",
        "Share of episodes that solve their task; the band is the 95 % interval.",
        {"success": "in training", "validation/success": "held out"},
        _percent,
        ("validation/low", "validation/high", "validation/success"),
        1.0,
    ),
    Chart("Return", "Mean undiscounted return.", {"return": "in training", "validation/return": "held out"}),
    Chart(
        "Spread within groups",
        "Standard deviation of the returns of one start, mean over starts. Without it nothing can be learnt.",
        {"group_return_std": "deviation"},
    ),
    Chart(
        "Silent groups",
        "Share of groups whose returns are all equal, and of those that were learnt from.",
        {"silent_groups": "silent", "groups_kept": "learnt from"},
        _percent,
        top=1.0,
    ),
    Chart("Entropy", "Of the policy, a token, in nats.", {"entropy": "entropy"}),
    Chart(
        "KL divergence",
        "From the policy that sampled (of the steps), and from the reference.",
        {"approx_kl": "of the steps", "kl": "to the reference"},
    ),
    Chart(
        "Clipped tokens",
        "Share of tokens whose gradient was clipped away.",
        {"clip_upper": "upper", "clip_lower": "lower", "clip_dual": "dual"},
        _percent,
    ),
    Chart(
        "Gradient norm",
        "Before clipping; mean and largest of an update's steps.",
        {"grad_norm": "mean", "grad_norm_max": "largest", "critic_grad_norm": "critic"},
    ),
    Chart("Learning rate", "Of the policy.", {"lr": "learning rate"}),
    Chart("Value loss", "Of the critic.", {"value_loss": "loss"}),
    Chart("Reply length", "Tokens a turn.", {"reply_tokens": "tokens"}),
    Chart("Turns", "An episode.", {"turns": "turns"}),
    Chart(
        "Valid turns",
        "Share of turns that kept to the format and held only actions that the world took.",
        {"valid_turns": "valid"},
        _percent,
        top=1.0,
    ),
    Chart(
        "Sampler and trainer",
        "Difference of the two log-probabilities of a sampled token: mean and largest.",
        {"mismatch_abs": "mean", "mismatch_abs_max": "largest"},
    ),
    Chart(
        "Tokens a second",
        "Sampled while playing, and run through the model while learning.",
        {"sampled_tokens_per_second": "sampled", "learnt_tokens_per_second": "learnt"},
    ),
    Chart(
        "Seconds",
        "Of an update, by phase.",
        {
            "seconds/sample": "play",
            "seconds/learn": "learn",
            "seconds/validate": "validate",
            "seconds/checkpoint": "checkpoint",
        },
    ),
)


def drawn(history: Sequence[Mapping[str, float]], marks: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    """The charts that have anything to show, as the page's template wants them.

    Args:
        history: the metrics of every record.
        marks: updates to be marked in every chart, and why.
    """
    pictures = (_draw(chart, history, marks) for chart in CHARTS)
    return [picture for picture in pictures if picture is not None]


def _draw(
    chart: Chart, history: Sequence[Mapping[str, float]], marks: Sequence[tuple[int, str]]
) -> dict[str, Any] | None:
    curves = {
        name: [(r["update"], r[metric]) for r in history if metric in r and math.isfinite(r[metric])]
        for metric, name in chart.metrics.items()
    }
    curves = {name: points for name, points in curves.items() if points}
    if not curves or (all(y == 0 for points in curves.values() for _, y in points) and len(chart.metrics) > 1):
        return None
    low, high, of = chart.band or ("", "", "")
    band = [(r["update"], r[low], r[high]) for r in history if low in r and high in r]
    values = [y for points in curves.values() for _, y in points] + [upper for _, _, upper in band]
    floor, ceiling, ticks = _axis(min(*values, 0.0), max(*values, 0.0), chart.top)
    end = max(max(r["update"] for r in history), 1.0)

    def x(update: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * update / end, 1)

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (ceiling - value) / (ceiling - floor), 1)

    step = max(1, round(round_step(end, 6)))
    lines = []
    for series, (name, points) in enumerate(curves.items(), 1):
        metric = next(metric for metric, other in chart.metrics.items() if other == name)
        lines.append(
            {
                "name": name,
                "series": series,
                "last": chart.form(points[-1][1]),
                "path": " ".join(f"{x(u)},{y(v)}" for u, v in points),
                "rare": metric.startswith("validation/") or len(points) == 1,
                "dots": [
                    {"x": x(u), "y": y(v), "title": f"update {u:g}: {name} {chart.form(v)}"} for u, v in points
                ],
            }
        )
    there_and_back = [(u, upper) for u, _, upper in band] + [(u, lower) for u, lower, _ in reversed(band)]
    return {
        "title": chart.title,
        "about": chart.about,
        "lines": lines,
        "band": " ".join(f"{x(u)},{y(v)}" for u, v in there_and_back),
        "band_series": next((n for n, name in enumerate(curves, 1) if name == chart.metrics.get(of)), 0),
        "y_ticks": [{"y": y(tick), "label": chart.form(tick)} for tick in ticks],
        "x_ticks": [{"x": x(tick), "label": f"{tick}"} for tick in range(0, int(end) + 1, step)],
        "marks": [{"x": x(update), "title": text} for update, text in marks],
    }


def _axis(lowest: float, highest: float, top: float | None) -> tuple[float, float, list[float]]:
    """The ends of a y-axis that holds 0, and its ticks."""
    if top is not None:
        highest = max(highest, top)
    span = highest - lowest or 1.0
    step = round_step(span, 4)
    first, last = math.floor(lowest / step + 1e-9), math.ceil(highest / step - 1e-9)
    last = max(last, first + 1)
    return first * step, last * step, [step * i for i in range(first, last + 1)]
