"""`arboretum train`: training with progress while it runs, and a model and a report at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from ...envs.files import shown_path
from ..checkpoints.export import export_checkpoint
from ..checkpoints.interruption import Interruption
from ..checkpoints.run_folder import CHECKPOINTS_FOLDER, METRICS_FILE, is_main, sole_writer
from ..checkpoints.store import CheckpointError, Checkpoints
from ..config.run import TrainingConfig
from ..reporting.progress import Progress, training_view
from ..reporting.report import write_report
from ..state import Activity
from .outcome import FAILED, OK, print_edits, report_failure, report_interrupt
from .preflight import make_trainer

if TYPE_CHECKING:
    from ..trainer import Trainer


def train(config: TrainingConfig, *, resume: bool = False, console: Console) -> int:
    """Train a policy.

    Args:
        config: Configuration of the run.
        resume: Continue the run in its folder from its last checkpoint.
        console: Console that shows progress.

    Returns:
        Exit status: 0 when done, 1 when the run ended early, 130 when interrupted. The best model (the last if
        nothing was validated) is in `<out>/model`.

    Raises:
        ConfigurationError: Settings that cannot work; raised before anything is loaded where possible.
    """
    with sole_writer(config.out):
        return _train(config, resume, console)


def _train(config: TrainingConfig, resume: bool, console: Console) -> int:
    """Train a policy in a folder that no other process writes; see `train`."""
    activity = Activity()
    interruption = Interruption(activity)
    title, optimization = f"{config.recipe.name} on {config.env_names}", config.recipe.optimization
    total, max_tokens = optimization.updates, optimization.max_tokens
    again = f"arboretum train --resume {quote(str(shown_path(config.out)))}"
    view = training_view([env.label for env in config.envs])
    trainer: Trainer | None = None
    try:
        with (
            interruption.handle_signals(),
            Progress(
                console, title, total, max_tokens=max_tokens, view=view, activity=activity, quiet=not is_main()
            ) as progress,
        ):
            restarts = resume and _has_metrics_only(config.out)
            trainer = make_trainer(config, resume=resume, activity=activity, interruption=interruption)
            from ..learning.threads import limit_threads

            limit_threads(trainer.optimizer.policy)
            if restarts and is_main():
                text = f"{shown_path(config.out)}: holds no checkpoint; starting again from update 0."
                console.print(text, soft_wrap=True, highlight=False, markup=False)
            print_edits(config.out, console)
            for metrics in trainer.history:
                progress.show(metrics)
            before = trainer.state.update
            failure, is_certain = _follow(trainer, progress)
    except KeyboardInterrupt:
        return report_interrupt(Checkpoints(config.out / CHECKPOINTS_FOLDER), again, console)
    finally:
        if trainer is not None:
            trainer.close()
            if trainer.is_main and trainer.history:
                _write_report(config.out, console)
    if failure is not None:
        report_failure(failure, activity.place, console)
        if trainer.is_main and trainer.checkpoints.last is not None:
            then = (
                "a resumed run would stop in the same way again, so begin a new one with other settings."
                if is_certain
                else f"continue from it with: {again}"
            )
            console.print(f"{trainer.checkpoints.last.name} is kept; {then}", markup=False, soft_wrap=True)
        return FAILED
    if trainer.interrupted:
        return report_interrupt(trainer.checkpoints, again, console)
    if trainer.is_main:
        _warn_if_not_better(trainer.history, trainer.checkpoints.index.score, console)
        folder = export_checkpoint(config.out)
        console.print(f"Model: {shown_path(folder)}", soft_wrap=True, highlight=False, markup=False)
        if resume and trainer.state.update == before and trainer.stopped is None:
            limit = config.recipe.optimization.max_tokens
            ended = limit is not None and trainer.state.tokens >= limit
            more = f"max_tokens={2 * limit}" if limit is not None and ended else f"updates={2 * total}"
            prolong = f"{again} --set optimization.{more}"
            console.print(f"The run was complete; prolong it with: {escape(prolong)}", soft_wrap=True)
    if trainer.stopped is not None:
        if trainer.is_main:
            console.print(f"[yellow]Ended early:[/] {escape(trainer.stopped)}")
        return FAILED
    return OK


def _follow(trainer: Trainer, progress: Progress) -> tuple[str | None, bool]:
    """Run the updates and show them.

    Returns:
        The reason if the run failed, and whether a resumed run would fail in the same way again.
    """
    from ..algorithms.part_failures import PartFailed
    from ..algorithms.selectors import NotEnoughGroups
    from ..learning.memory import OutOfMemory
    from ..learning.optimizer import Diverged
    from ..sampling.failures import SamplingFailed

    try:
        for record in trainer.run():
            progress.add(record)
    except (Diverged, NotEnoughGroups, OutOfMemory, PartFailed, SamplingFailed, CheckpointError) as error:
        # They follow from settings and weights, which a resumed run shares.
        return str(error), isinstance(error, (Diverged, NotEnoughGroups))
    return None, False


def _has_metrics_only(folder: Path) -> bool:
    """Return True if a run has made updates but has no checkpoint to continue from."""
    if Checkpoints(folder / CHECKPOINTS_FOLDER).last is not None:
        return False
    metrics = folder / METRICS_FILE
    return metrics.exists() and metrics.stat().st_size > 0


def _warn_if_not_better(history: Sequence[dict[str, float]], best: float | None, console: Console) -> None:
    first = next((m for m in history if m["update"] == 0), {}).get("validation/success")
    if first is not None and best is not None and best < first:
        console.print(
            f"[yellow]No improvement:[/] the initial model solved {first:.0%} of the held-out tasks, and no "
            f"checkpoint reached that (best: {best:.0%})."
        )


def _write_report(folder: Path, console: Console) -> None:
    """Write the report; an error such as a full disk must not hide how the run ended."""
    try:
        console.print(f"Report: {shown_path(write_report(folder))}", soft_wrap=True, highlight=False, markup=False)
    except OSError as error:
        command = escape(f"arboretum report {quote(str(shown_path(folder)))}")
        console.print(f"[red]No report:[/] {escape(str(error))}; write it with: {command}", soft_wrap=True)
