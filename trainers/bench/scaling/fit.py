"""Fit of the cost coefficients to measured points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from ....envs.extras import optional_module
from ....envs.files import write_atomic
from .costs import PHASES, Costs, Phase


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured time of an amount of work.

    Attributes:
        phase: Phase of the training step.
        what: Description, such as "0.4M parameters, 16 sequences".
        work: Amount of work, by the name of a coefficient.
        seconds: Measured time.
        held_out: True if the point is compared with the prediction, but not fitted.
    """

    phase: Phase
    what: str
    work: dict[str, float]
    seconds: float
    held_out: bool = False


class StepComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU seconds of a whole training step.

    Attributes:
        predicted: Seconds of the simulation.
        measured: Median over the updates of a run.
    """

    predicted: float
    measured: float


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of the file of `arboretum scaling measure`.

    Attributes:
        costs: Fitted coefficients.
        points: Measured points.
        step: A whole training step, which the fit has not seen.
    """

    costs: Costs
    points: list[Point]
    step: StepComparison


def write_measurement(measurement: Measurement, path: Path) -> None:
    """Write a measurement as JSON."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(measurement), indent=1))


def fit_costs(device: str, points: Iterable[Point]) -> Costs:
    """Return the non-negative coefficients with the least sum of squared relative errors, phase by phase.

    Relative errors give a short point the weight of a long one.

    Raises:
        ConfigurationError: SciPy is not installed.
        ValueError: A phase has no points.
    """
    nnls = optional_module("scipy.optimize", "scaling", "fitting a cost model").nnls
    fitted = [point for point in points if not point.held_out]
    seconds: dict[Phase, dict[str, float]] = {}
    for phase, names in PHASES.items():
        rows = [point for point in fitted if point.phase == phase]
        if not rows:
            raise ValueError(f"no point of phase {phase!r} was measured")
        relative = np.array([[point.work[name] / point.seconds for name in names] for point in rows])
        # Columns differ by ten orders of magnitude, which would hide the small ones from the solver's tolerance.
        scale = np.abs(relative).max(axis=0)
        scale[scale == 0.0] = 1.0
        solution, _ = nnls(relative / scale, np.ones(len(rows)))
        seconds[phase] = {name: float(value) for name, value in zip(names, solution / scale, strict=True)}
    return Costs(device, seconds, measured=True)


def relative_errors(costs: Costs, points: Sequence[Point]) -> list[float]:
    """Return prediction / measurement - 1 of every point."""
    return [costs.of(point.phase, point.work) / point.seconds - 1.0 for point in points]
