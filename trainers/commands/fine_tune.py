"""`arboretum sft`: supervised fine-tuning with progress while it runs, and a model at the end."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from rich.console import Console

from ...agents.engines.model_check import check_model
from ...envs.files import shown_path
from ..checkpoints.interruption import Interruption
from ..checkpoints.run_folder import (
    CHECKPOINTS_FOLDER,
    MODEL_FOLDER,
    check_run_folder,
    claim_run_folder,
    is_main,
    sole_writer,
    undo_if_refused,
)
from ..checkpoints.store import CheckpointError, Checkpoints
from ..config.run import SFTConfig
from ..reporting.progress import SFT_VIEW, Progress
from ..state import Activity
from .outcome import FAILED, OK, print_edits, report_failure, report_interrupt
from .preflight import check_run_device, require_torch

if TYPE_CHECKING:
    from ..sft import SFTTrainer


def fine_tune(config: SFTConfig, *, resume: bool = False, console: Console) -> int:
    """Fine-tune a model on expert episodes; the result is in `<out>/model`.

    Args:
        config: Configuration of the run.
        resume: Continue the run in its folder from its last checkpoint.
        console: Console that shows progress.

    Returns:
        Exit status: 0 when done, 1 when the run diverged, 130 when interrupted.

    Raises:
        ConfigurationError: Settings that cannot work; raised before anything is loaded where possible.
    """
    activity = Activity()
    interruption = Interruption(activity)
    title = f"fine-tuning on {config.env.id}"
    again = f"arboretum sft --resume {quote(str(shown_path(config.out)))}"
    try:
        with (
            sole_writer(config.out),
            interruption.handle_signals(),
            Progress(console, title, 0, view=SFT_VIEW, activity=activity, quiet=not is_main()) as progress,
        ):
            activity.begin("checking the settings")
            config.check()
            check_run_folder(config, resume=resume)
            check_model(config.model)
            activity.begin("importing PyTorch")
            require_torch()
            check_run_device(config)
            finished = config.out / MODEL_FOLDER
            if resume and finished.exists():
                if is_main():
                    text = f"Model: {shown_path(finished)} (finished before)"
                    console.print(text, soft_wrap=True, highlight=False, markup=False)
                return OK
            with undo_if_refused(config):
                claim_run_folder(config, resume=resume)
                from ..learning.threads import limit_threads
                from ..sft import SFTTrainer

                trainer = SFTTrainer(config, resume, activity=activity, interruption=interruption)
            limit_threads(trainer.optimizer.policy)
            print_edits(config.out, console)
            progress.total = trainer.steps
            failure = _follow(trainer, progress, console)
    except KeyboardInterrupt:
        return report_interrupt(Checkpoints(config.out / CHECKPOINTS_FOLDER), again, console)
    if failure is not None:
        report_failure(failure, activity.place, console)
        return FAILED
    if trainer.interrupted:
        return report_interrupt(trainer.checkpoints, again, console)
    if is_main():
        folder = config.out / MODEL_FOLDER
        console.print(f"Model: {shown_path(folder)}", soft_wrap=True, highlight=False, markup=False)
    return OK


def _follow(trainer: SFTTrainer, progress: Progress, console: Console) -> str | None:
    """Run the steps, show them, and export the model; return the reason if the run failed."""
    from ..learning.memory import OutOfMemory
    from ..learning.optimizer import Diverged
    from ..sampling.demonstrations import demonstration_quality

    quality = demonstration_quality(trainer.demonstrations)
    shown = ", ".join(f"{name} {value:.3g}" for name, value in quality.items())
    if is_main():
        console.print(f"{len(trainer.demonstrations)} demonstrations: {shown}", highlight=False)
        if trainer.failures.failed:
            text = f"{trainer.failures.describe('demonstrations')}; they are left out."
            console.print(text, highlight=False, markup=False)
    try:
        for record in trainer.history:
            progress.show({"update": record["step"], **record})
        for record in trainer.run():
            progress.show({"update": record["step"], **record})
        if not trainer.interrupted:
            trainer.export()
    except (Diverged, OutOfMemory, CheckpointError) as error:
        return str(error)
    finally:
        trainer.close()
    return None
