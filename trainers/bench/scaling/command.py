"""The verbs of `arboretum scaling`."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from ....envs.errors import ConfigurationError, unknown_name
from ....envs.extras import optional_module
from ....envs.terminal import Terminal
from .devices import DEVICES, Assumptions
from .model_shape import PUBLISHED, find_shape

PAUSE = 10.0
"""Least seconds between lines of progress on standard error, where there is no terminal."""

if TYPE_CHECKING:
    from .episodes import Lengths
    from .fit import Measurement
    from .plan import Plan


@dataclass(frozen=True)
class MeasureCosts:
    """Measure sampling, scoring and updates on one thread of this machine, and fit the cost model.

    Takes a few minutes on a quiet machine. A model that the fit has not seen, and a whole training step, show how
    far its predictions are off.

    Attributes:
        out: File to write, with points and coefficients, which must not exist.
    """

    out: Path = Path("scaling.json")

    def run(self, console: Console) -> None:
        """Measure, print a table, and write the file."""
        self._check()
        from .fit import Measurement, fit_costs, write_measurement
        from .full_step import compare_step
        from .measure import measure_points

        points = []
        with console.status("measuring …") as status:
            for point in measure_points():
                points.append(point)
                status.update(f"measured: {point.phase}, {point.what}")
            costs = fit_costs(platform.machine(), points)
            status.update("measuring a whole training step …")
            measurement = Measurement(costs, points, compare_step(costs))
        write_measurement(measurement, self.out)
        console.print(_fit_table(measurement))
        step = measurement.step
        console.print(
            f"A whole training step: {step.predicted:.2f} s predicted, {step.measured:.2f} s measured"
            f" ({100 * (step.predicted / step.measured - 1):+.0f} %)."
        )
        console.print(f"Coefficients: {self.out}", markup=False, soft_wrap=True)

    def _check(self) -> None:
        """Raise before anything is measured if the result cannot be fitted or written."""
        from ....eval.output_path import check_parent

        if self.out.is_dir():
            raise ConfigurationError(f"--out {self.out}: is a folder; name a file in it.")
        if self.out.exists():
            raise ConfigurationError(f"--out {self.out}: exists; name another file, or delete this one.")
        check_parent(self.out)
        optional_module("scipy.optimize", "scaling", "fitting a cost model")


def _fit_table(measurement: Measurement) -> Table:
    from .costs import PHASES
    from .fit import relative_errors

    table = Table(box=SIMPLE, pad_edge=False, show_edge=False)
    table.add_column("phase")
    for name in ("points", "mean error", "worst", "held out", "mean error", "worst"):
        table.add_column(name, justify="right")
    for phase in PHASES:
        cells = []
        for held_out in (False, True):
            points = [one for one in measurement.points if one.phase == phase and one.held_out == held_out]
            errors = [abs(error) for error in relative_errors(measurement.costs, points)]
            cells.append(str(len(errors)))
            cells.append(f"{100 * sum(errors) / len(errors):.0f} %" if errors else "–")
            cells.append(f"{100 * max(errors):.0f} %" if errors else "–")
        table.add_row(phase, *cells)
    return table


@dataclass(frozen=True)
class PlanTraining:
    """Simulate training on 8 to 512 GPUs: the time of an update, where it goes, and how to divide the GPUs.

    Predictions follow from published peaks of the GPU and assumed fractions of them; nothing is run on a GPU.

    Attributes:
        model: Model whose sizes are used.
        gpu: Kind of GPU.
        gpus: Numbers of GPUs.
        batch: Episodes per update.
        run_folder: Folder of an evaluation, whose episodes have the lengths to draw from. None uses 64 episodes
            of generated homes, with an average of 44 turns and 530 tokens.
        reply_scale: Factor on the length of replies, such as 50 for a model that reasons before it acts.
        env_seconds: Seconds of a turn in the environment. None uses the measured ones.
        in_flight: Maximum number of conversations in progress on a sampling replica.
        scores: Passes that score the episodes before an update: 1 for the policy, and 1 for a reference policy.
        seed: Seed of the simulation.
        assume: Assumed fractions and delays.
    """

    model: Annotated[Positional[str], arg(help=f"Model: {', '.join(PUBLISHED)}, or a folder.")] = "Qwen2.5-7B"
    gpu: Annotated[str, arg(help=f"Kind of GPU: {', '.join(DEVICES)}.")] = "H100"
    gpus: tuple[int, ...] = (8, 32, 128, 512)
    batch: int = 512
    run_folder: Annotated[Path | None, arg(name="run")] = None
    reply_scale: float = 50.0
    env_seconds: float | None = None
    in_flight: int = 256
    scores: int = 1
    seed: int = 0
    assume: Assumptions = field(default_factory=Assumptions)

    def run(self, console: Console) -> None:
        """Simulate, and print a table."""
        from .cluster import Cluster
        from .costs import assumed_costs
        from .plan import make_plans

        self._check()
        device = DEVICES[self.gpu]
        costs = assumed_costs(self.gpu, device, self.assume)
        cluster = Cluster(find_shape(self.model), costs, device, self.assume, scores=self.scores)
        plans = []
        log = Terminal(stderr=True, highlight=False)
        shown = time.monotonic()
        with console.status("simulating …") as status:
            for plan in make_plans(
                cluster, self._lengths(), self.gpus, self.batch, self.in_flight, seed=self.seed
            ):
                plans.append(plan)
                status.update(f"simulated: {plan.name}, {plan.gpus} GPUs")
                if not console.is_terminal and time.monotonic() - shown >= PAUSE:
                    log.print(f"simulated: {plan.name}, {plan.gpus} GPUs", markup=False)
                    shown = time.monotonic()
        console.print(_plan_table(plans))
        if small := sorted(set(self.gpus) - {plan.gpus for plan in plans}):
            console.print(f"Too few for this model: {', '.join(map(str, small))}.")
        console.print(
            "Shares of the time of all GPUs. Lag: updates between the weights that began an episode and those"
            f" that it trains. Predicted from the peaks of {self.gpu} and assumed fractions of them, not measured"
            " on GPUs."
        )

    def _check(self) -> None:
        if self.gpu not in DEVICES:
            raise unknown_name("GPU", self.gpu, [*DEVICES])
        if not self.gpus:
            raise ConfigurationError("--gpus needs at least one number.")
        for name, value, least in (
            ("--gpus", min(self.gpus), 1),
            ("--batch", self.batch, 1),
            ("--in-flight", self.in_flight, 1),
            ("--scores", self.scores, 0),
            ("--seed", self.seed, 0),
            ("--env-seconds", self.env_seconds or 0.0, 0),
        ):
            if not value >= least:
                raise ConfigurationError(f"{name} must be at least {least}, not {value}.")

    def _lengths(self) -> list[Lengths]:
        """Return the lengths of the episodes to draw from."""
        from .episodes import read_lengths, scale_replies, shipped_lengths

        lengths = shipped_lengths() if self.run_folder is None else read_lengths(self.run_folder)
        lengths = scale_replies(lengths, self.reply_scale)
        if self.env_seconds is None:
            return lengths
        seconds = self.env_seconds
        return [tuple(turn._replace(env_seconds=seconds) for turn in episode) for episode in lengths]


def _plan_table(plans: list[Plan]) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("GPUs", justify="right")
    table.add_column("schedule", no_wrap=True)
    # "sample/learn" is too wide for 80 columns.
    for name in ("split", "s/update", "sample", "learn", "send", "idle", "tokens/s", "lag"):
        table.add_column(name, justify="right", no_wrap=True)
    previous = None
    for plan in plans:
        schedule, result = plan.schedule, plan.result
        if previous not in (None, plan.gpus):
            table.add_section()
        shares = (result.sampling, result.learning, result.transfer, result.idle)
        table.add_row(
            "" if plan.gpus == previous else str(plan.gpus),
            plan.name,
            f"{schedule.samplers * schedule.devices}+{schedule.learners}" if schedule.learners else "",
            f"{result.seconds:,.1f}",
            *(f"{100 * share:.0f} %" for share in shares),
            f"{result.tokens:,.0f}",
            f"{result.lag:.1f}",
        )
        previous = plan.gpus
    return table
