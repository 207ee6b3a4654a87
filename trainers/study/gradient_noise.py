"""`arboretum study STUDY --gradients N`: how noisy is the policy gradient of each credit rule, before training?

All rules see the same episodes of the warm start. Products of gradients of different batches, whose noise is
independent, estimate the squared length of the mean gradient without bias; the rest of their power is noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...envs.checks import at_least
from ...envs.errors import ConfigurationError, unknown_name
from ..algorithms.credit.base import Credit
from ..algorithms.recipes import get_recipe, recipe_names
from ..algorithms.samplers import Chains
from ..checkpoints.interruption import Interruption
from ..commands.outcome import FAILED, INTERRUPTED, OK
from ..commands.preflight import require_torch
from ..state import Activity
from .definition import Study, env_folder
from .gradients import measure_gradients, read_counter, read_products
from .progress import StatusProgress
from .runner import claim_folder
from .workers import WorkItem, run_phase, single_threaded_workers

Array = NDArray[np.float64]

UNBIASED = "rloo"
"""Recipe whose rule the others are compared with."""
DRAWS = 1000
"""Samples of the bootstrap."""
LEAST_BATCHES = 8
_NOTES = """\
signal: squared length of the mean gradient over the noise of a batch, × 100
over RLOO: ratio of the signals, with an interval over batches (bootstrap)
direction: cosine of the mean gradient with RLOO's; an estimate may exceed 1"""


class Noise(NamedTuple):
    """Noise of the gradient of one rule.

    Attributes:
        signal: Squared length of the mean gradient over the noise of one batch.
        ratio: Signal over that of RLOO; NaN if RLOO's gradient cannot be told from noise.
        low: Lower end of the 95 % interval of `ratio`.
        high: Upper end; infinite where RLOO's signal is not positive in over 2.5 % of the bootstrap's samples.
        direction: Cosine of the mean gradient with RLOO's; NaN if one of them cannot be told from noise.
    """

    signal: float
    ratio: float
    low: float
    high: float
    direction: float


class GradientProgress(StatusProgress):
    """Numbers of finished environments, and of the batches of those in progress.

    Args:
        out: Folder of the study.
        batches: Batches of an environment.
        total: Number of environments.
        console: Console to print to.
    """

    def __init__(self, out: Path, batches: int, total: int, console: Console) -> None:
        super().__init__(total, console)
        self._out, self._batches = out, batches

    def _render(self, running: Sequence[str], line: Text) -> RenderableType:
        if not running:
            return line
        counts = [f"{env} {read_counter(self._out / env_folder(env))}" for env in running]
        return Text.assemble(line, Text(f"\nof {self._batches} batches: {', '.join(counts)}", style="dim"))


def estimate(products: Array, chosen: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the signal of each rule, and the cosine of each mean gradient with the first rule's.

    Args:
        products: Dot products [rules, rules, batches, batches] of gradients.
        chosen: Batches to use; one that is repeated is not independent of its copy.
    """
    part = products[:, :, chosen][:, :, :, chosen]
    different = chosen[:, None] != chosen[None, :]
    means = (part * different).sum((2, 3)) / different.sum()
    power = np.trace(np.diagonal(part), axis1=0, axis2=1) / len(chosen)
    squares = np.diagonal(means)
    lengths = np.sqrt(np.where(squares > 0, squares, np.nan))
    with np.errstate(invalid="ignore", divide="ignore"):
        return squares / (power - squares), means[0] / (lengths[0] * lengths)


def noise_of(products: Array) -> list[Noise]:
    """Return the noise of each rule; the first is RLOO. Intervals are over batches, by the bootstrap."""
    batches = products.shape[-1]
    signals, cosines = estimate(products, np.arange(batches))
    generator = np.random.default_rng(0)
    samples = generator.integers(batches, size=(DRAWS, batches))
    drawn = np.array([estimate(products, chosen)[0] for chosen in samples])
    # A ratio to something that is not positive is beyond every other.
    ratios = np.full(drawn.shape, math.inf)
    np.divide(drawn, drawn[:, :1], out=ratios, where=drawn[:, :1] > 0)
    low, high = np.percentile(ratios, [2.5, 97.5], axis=0, method="closest_observation")
    known = signals[0] > 0
    return [
        Noise(*map(float, (signal, signal / signals[0] if known else math.nan, *ends, cosine)))
        for signal, *ends, cosine in zip(signals, low, high, cosines, strict=True)
    ]


def run_gradients(
    study: Study,
    out: Path,
    batches: int,
    *,
    recipes: Sequence[str],
    envs: Sequence[str],
    workers: int,
    console: Console,
) -> int:
    """Measure the gradients of a study's credit rules, environment by environment, and print a table.

    Args:
        study: Study.
        out: Folder of the study; receives `gradients.json` in the folder of each environment, which is kept:
            measuring again with the same rules and batches only prints the table.
        batches: Batches of episodes.
        recipes: Recipes of the study or of the library whose rules to compare; none for the study's.
        envs: Environments of the study; none for all.
        workers: Environments that are measured at the same time.
        console: Console that shows progress.

    Returns:
        Exit status: 0, 1 when an environment failed, 130 when interrupted.

    Raises:
        ConfigurationError: Something cannot work.
    """
    at_least("workers", workers, 1)
    at_least("--gradients", batches, LEAST_BATCHES)
    for env in envs:
        if env not in study.envs:
            raise unknown_name(f"environment of the study {study.name}", env, study.envs)
    envs = envs or list(study.envs)
    credits = {env: _credits(study, env, recipes) for env in envs}
    require_torch()
    paths = {env: out / env_folder(env) / "gradients.json" for env in envs}
    missing = [env for env in envs if read_products(paths[env], credits[env], batches) is None]
    if missing:
        study.check_models(missing)
    claim_folder(study, out, is_done=not missing)
    work = [WorkItem(env, measure_gradients, (study, env, credits[env], batches, paths[env])) for env in missing]
    try:
        with (
            Interruption(Activity()).handle_signals(),
            single_threaded_workers(),
            GradientProgress(out, batches, len(work), console) as progress,
        ):
            failures = run_phase(work, out, workers, progress) if work else []
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted:[/] finished environments are kept; run the same command to continue.")
        return INTERRUPTED
    found = {env: read_products(paths[env], credits[env], batches) for env in envs}
    console.print(
        noise_table(
            {
                env: dict(zip(credits[env], noise_of(products), strict=True))
                for env, products in found.items()
                if products is not None
            },
            batches,
        ),
        _NOTES,
        highlight=False,
    )
    for failure in failures:
        console.print(f"[red]Failed:[/] {escape(failure)}", highlight=False)
    return FAILED if failures else OK


def noise_table(noise: Mapping[str, Mapping[str, Noise]], batches: int) -> Table:
    """Return the table of some environments, with a row for each rule."""
    table = Table(
        title=f"Gradients of {batches} batches of a warm start's episodes",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("rule", no_wrap=True)
    for name in ("signal", "over RLOO", "95 % interval", "direction"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, (env, rules) in enumerate(noise.items()):
        if number:
            table.add_section()
        table.add_row(env, style="bold")
        for rule, one in rules.items():
            table.add_row(f" {rule}", *_cells(one, is_unit=rule == UNBIASED))
    return table


def _cells(noise: Noise, *, is_unit: bool) -> list[str]:
    def number(value: float) -> str:
        return "?" if math.isnan(value) else "∞" if math.isinf(value) else f"{value:.2f}"

    interval = "" if is_unit else f"{number(noise.low)} to {number(noise.high)}"
    return [number(100 * noise.signal), number(noise.ratio), interval, number(noise.direction)]


def _credits(study: Study, env: str, recipes: Sequence[str]) -> dict[str, Credit]:
    """Return the credit rules to compare by the names of their recipes, RLOO's first.

    Raises:
        ConfigurationError: A recipe is unknown, its rule needs what chains of a warm start do not have, or there
            is none to compare with RLOO.
    """
    if not isinstance(study.first_recipe(env).sampler, Chains):
        raise ConfigurationError(
            f"the first recipe of the study {study.name} samples trees, and gradients are measured on chains; "
            "take a study whose first recipe samples chains."
        )
    credits = {UNBIASED: get_recipe(UNBIASED).credit}
    for name in recipes or study.recipes:
        if name not in study.recipes and name not in recipe_names():
            raise unknown_name("recipe", name, dict.fromkeys([*study.recipes, *recipe_names()]))
        recipe = study.recipe(name, env) if name in study.recipes else get_recipe(name)
        reason = _unmeasured(recipe.credit, samples_chains=isinstance(recipe.sampler, Chains))
        if reason is None and (recipes or recipe.credit not in credits.values()):
            credits[name] = recipe.credit
        elif recipes and reason is not None:
            raise ConfigurationError(f"--recipes: the rule of {name} {reason}; leave it out.")
    if len(credits) == 1:
        raise ConfigurationError(
            f"the study {study.name} has no rule to compare with that of {UNBIASED}; name some with --recipes."
        )
    return credits


def _unmeasured(credit: Credit, *, samples_chains: bool) -> str | None:
    """Return why the gradient of a rule cannot be measured; None if it can."""
    if credit.needs_critic:
        return "needs a critic, which a warm start does not have"
    if credit.needs_trees or not samples_chains:
        return "is for trees, and these episodes are chains"
    return None
