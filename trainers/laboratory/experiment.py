"""Experiment of the laboratory: all arms on all tasks with paired seeds, in parallel processes."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import get_args

from ...envs.checks import at_least, one_of
from ...envs.errors import ConfigurationError, DataError
from ...envs.files import read_jsonl
from .arms import arm_names, get_arm, rule_digest
from .options import Regime
from .tasks import FAMILIES, get_family, make_panel
from .training import StepSize, train

DEFAULT_ARMS = tuple(name for name in arm_names() if name != "t-star-policy" and not name.endswith("-plan"))
"""All arms but the one that compares states by the policy, which takes three times as long, and those that tell
plans apart, which the default tasks do not have."""
DEFAULT_TASKS = tuple(name for name in FAMILIES if name != "lock24f1" and not name.endswith("-plans"))
LEARNING_RATES = (8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Learning rates from which the tuned regime chooses."""
FIRST_TUNING_SEED = 1_000_000
"""Number of the first seed on which learning rates are chosen, apart from those that are reported."""
BUDGET_FACTOR: Mapping[Regime, float] = {"fixed-kl": 2.0, "tuned": 1.0}
"""Budget of a run, relative to the panel's; small steps need more updates."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Experiment:
    """Comparison of arms.

    Attributes:
        tasks: Families of tasks.
        arms: Arms; the arms that they are compared with are added.
        seeds: Number of paired seeds: each has its own tasks and initial policies, the same for all arms.
        regime: Size of steps: "fixed-kl" scales every update to the same divergence, "tuned" uses the learning
            rate with the best mean AUC on other seeds, for each arm and family.
        tuning_seeds: Number of these other seeds.
    """

    tasks: tuple[str, ...] = DEFAULT_TASKS
    arms: tuple[str, ...] = DEFAULT_ARMS
    seeds: int = 30
    regime: Regime = "fixed-kl"
    tuning_seeds: int = 6

    def __post_init__(self) -> None:
        at_least("seeds", self.seeds, 1)
        at_least("tuning_seeds", self.tuning_seeds, 1)
        one_of("regime", self.regime, get_args(Regime))
        for kind, names in (("tasks", self.tasks), ("arms", self.arms)):
            if not names or len(set(names)) < len(names):
                raise ConfigurationError(f"{kind} must be different names, at least one; got {list(names)}.")
        for name in self.tasks:
            get_family(name)
        for name in self.arms:
            get_arm(name)

    @property
    def all_arms(self) -> tuple[str, ...]:
        """Arms, each after the one that it is compared with."""
        return tuple(dict.fromkeys(one for name in self.arms for one in (get_arm(name).baseline, name)))


@dataclass(frozen=True)
class Run:
    """Result of one arm with one seed.

    Attributes:
        task: Family of tasks.
        arm: Name of the arm.
        seed: Seed.
        regime: Size of steps.
        lr: Learning rate; None in the regime of fixed divergence.
        auc: Mean of the curve's points.
        final: Success at the budget.
        curve: Exact success at equally spaced numbers of generated steps from 0 to the budget.
        budget: Generated steps of the run.
        episodes: Episodes that were rolled out.
        updates: Updates.
        seconds: CPU time, in seconds.
        rule: Digest of the module of a rule of one's own, whose runs are repeated after an edit; else empty.
    """

    task: str
    arm: str
    seed: int
    regime: Regime
    lr: float | None
    auc: float
    final: float
    curve: tuple[float, ...]
    budget: float
    episodes: int
    updates: int
    seconds: float
    rule: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of the run among the results of a folder."""
        return self.task, self.arm, self.seed, self.regime, self.lr


@dataclass(frozen=True)
class _Work:
    """Runs of one panel: (arm, learning rate) each."""

    task: str
    seed: int
    regime: Regime
    runs: tuple[tuple[str, float | None], ...]


def run_panel(work: _Work) -> list[Run]:
    """Train the arms of one panel."""
    panel = make_panel(work.task, work.seed)
    budget = BUDGET_FACTOR[work.regime] * panel.budget
    results = []
    collects = gc.isenabled()
    gc.disable()  # Trees consist of many objects without cycles; looking for cycles costs a fifth of their time.
    try:
        for name, lr in work.runs:
            started = time.process_time()
            curve = train(panel, get_arm(name), StepSize(lr), seed=work.seed, budget=budget)
            results.append(
                Run(
                    work.task,
                    name,
                    work.seed,
                    work.regime,
                    lr,
                    round(curve.auc, 6),
                    round(curve.final, 6),
                    tuple(round(point, 4) for point in curve.points.tolist()),
                    round(budget, 1),
                    curve.episodes,
                    len(curve.steps) - 1,
                    round(time.process_time() - started, 3),
                    rule_digest(name),
                )
            )
    finally:
        if collects:
            gc.enable()
    return results


class Results:
    """Runs of a folder, in `results.jsonl`; each is one line, written as soon as its panel is done.

    Args:
        path: File; None keeps the runs in memory only.

    Raises:
        DataError: A line of the file does not hold a run.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._runs: dict[tuple[object, ...], Run] = {}
        if path is not None:
            for record in read_jsonl(path, damaged="skip"):
                try:
                    run = Run(**{**record, "curve": tuple(record["curve"])})
                except (KeyError, TypeError):
                    raise DataError(path, "does not hold runs of the laboratory; choose another --out.") from None
                if run.rule == rule_digest(run.arm):  # else the rule was edited since
                    self._runs[run.key] = run

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def add(self, runs: Iterable[Run]) -> None:
        """Add runs, and append them to the file."""
        runs = list(runs)
        self._runs |= {run.key: run for run in runs}
        if self._path is not None:
            with self._path.open("ab+") as file:
                file.seek(max(0, file.tell() - 1))
                torn = file.read(1) not in (b"", b"\n")  # by a kill; the line is skipped when it is read
                lines = "".join(json.dumps(asdict(run)) + "\n" for run in runs)
                file.write(b"\n" * torn + lines.encode())

    def lacks(self, work: _Work) -> _Work:
        """Return the part of some work that has no result yet."""
        missing = [
            (arm, lr) for arm, lr in work.runs if (work.task, arm, work.seed, work.regime, lr) not in self._runs
        ]
        return _Work(work.task, work.seed, work.regime, tuple(missing))

    def reported(self, experiment: Experiment, task: str, arm: str) -> dict[int, Run]:
        """Return the runs of the reported seeds of one arm, by seed."""
        lr = self.chosen_rate(experiment, task, arm) if experiment.regime == "tuned" else None
        return {
            seed: run
            for seed in range(experiment.seeds)
            if (run := self._runs.get((task, arm, seed, experiment.regime, lr))) is not None
        }

    def chosen_rate(self, experiment: Experiment, task: str, arm: str) -> float | None:
        """Return the learning rate of the best mean AUC on the tuning seeds; the smaller of equal ones."""
        seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + experiment.tuning_seeds)
        means = {}
        for lr in LEARNING_RATES:
            runs = [self._runs.get((task, arm, seed, experiment.regime, lr)) for seed in seeds]
            if None not in runs:
                means[lr] = fmean(run.auc for run in runs if run is not None)
        return max(means, key=lambda lr: means[lr], default=None)


def run_experiment(
    experiment: Experiment, results: Results, *, workers: int = 1, progress: Callable[[int, int], None]
) -> None:
    """Do the runs of an experiment that have no result yet.

    Args:
        experiment: Experiment.
        results: Results so far, to which the new ones are added.
        workers: Number of processes; 1 runs everything in this one.
        progress: Called with the number of finished and of all panels of a stage.

    Raises:
        ConfigurationError: A worker process died.
    """
    arms = experiment.all_arms
    if experiment.regime == "tuned":
        rates = tuple((arm, lr) for arm in arms for lr in LEARNING_RATES)
        seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + experiment.tuning_seeds)
        tuning = [_Work(task, seed, "tuned", rates) for seed in seeds for task in experiment.tasks]
        _do(tuning, results, workers, progress)
    work = []
    for seed in range(experiment.seeds):
        for task in experiment.tasks:
            runs: list[tuple[str, float | None]] = [(arm, None) for arm in arms]
            if experiment.regime == "tuned":
                runs = [(arm, results.chosen_rate(experiment, task, arm)) for arm in arms]
            work.append(_Work(task, seed, experiment.regime, tuple(runs)))
    _do(work, results, workers, progress)


def _do(work: Sequence[_Work], results: Results, workers: int, progress: Callable[[int, int], None]) -> None:
    """Do the missing runs of panels, in the order given."""
    missing = [part for part in (results.lacks(one) for one in work) if part.runs]
    progress(len(work) - len(missing), len(work))
    if workers == 1 or len(missing) < 2:
        for number, part in enumerate(missing, 1):
            results.add(run_panel(part))
            progress(len(work) - len(missing) + number, len(work))
        return
    for name in _THREADS:
        os.environ.setdefault(name, "1")
    pool = ProcessPoolExecutor(
        min(workers, len(missing)), mp_context=get_context("spawn"), initializer=_ignore_interrupts
    )
    try:
        futures = [pool.submit(run_panel, part) for part in missing]
        for number, future in enumerate(as_completed(futures), 1):
            results.add(future.result())
            progress(len(work) - len(missing) + number, len(work))
    except BrokenProcessPool:
        raise ConfigurationError(
            "a worker process died, perhaps for want of memory; finished panels are kept: run the same command "
            "to continue, with fewer --workers."
        ) from None
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupts() -> None:
    """Leave SIGINT to the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
