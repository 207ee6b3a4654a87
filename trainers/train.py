"""Training as a person runs it: settings checked first, progress while it learns, a model at the end."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..envs.errors import ConfigurationError, unknown_name
from .config.run import FILE, MODEL, Lesson, Run, settings_in
from .reporting.progress import LESSON, Progress

OK, FAILED, INTERRUPTED = 0, 1, 130


def train(run: Run, *, resume: bool = False, console: Console) -> int:
    """Train a policy.

    Args:
        run: the settings.
        resume: continue the run in its folder from its last checkpoint.
        console: where progress is shown.

    Returns:
        Exit status: 0 when done, 1 when the run ended early, 130 when interrupted. The best model (the last where
        nothing was validated) lies in `<out>/model`.

    Raises:
        ConfigurationError: settings that cannot work; said before anything is loaded where that is possible.
    """
    run.check()
    need_torch()
    _need_trackers(run.trackers)
    run.claim(resume=resume)
    from .algorithms.selectors import Starved
    from .checkpoints.store import CheckpointError
    from .learning.optimizer import Diverged
    from .sampling.sampler import Unplayable
    from .trainer import Training

    training = Training(run, resume=resume)
    recipe, world = run.recipe.name, run.world.id
    again = f"arboretum train {recipe} … --out {run.out} --resume"
    try:
        total = run.recipe.optimisation.updates
        with Progress(console, f"{recipe} on {world}", total, quiet=not training.is_main) as progress:
            for record in training.history:
                progress.show(record)
            for entry in training.go():
                progress.add(entry)
    except KeyboardInterrupt:
        kept = training.checkpoints.last
        where = f"the last checkpoint is {kept.name}; continue with" if kept else "there is no checkpoint yet; run"
        console.print(f"[yellow]Interrupted;[/] {where}: {escape(again)}")
        return INTERRUPTED
    except (Diverged, Starved, Unplayable, CheckpointError) as error:
        console.print("[red]Stopped:[/] ", end="")
        console.print(str(error), markup=False)
        if training.checkpoints.last is not None:
            console.print(f"{training.checkpoints.last.name} is kept; go on from it with: {again}", markup=False)
        return FAILED
    finally:
        training.close()
        if training.is_main and training.history:
            _report(run.out, console)
    if training.is_main:
        first = next((m for m in training.history if m["update"] == 0), {}).get("validation/success")
        best = training.checkpoints.index.score
        if first is not None and best is not None and best < first:
            console.print(
                f"[yellow]No better:[/] the model began at {first:.0%} on held-out tasks, and no checkpoint "
                f"reached that (best: {best:.0%})."
            )
        folder = export_checkpoint(run.out)
        console.print(f"Model: {folder}", soft_wrap=True, highlight=False, markup=False)
    if training.stopped is not None:
        console.print(f"[yellow]Ended early:[/] {escape(training.stopped)}")
        return FAILED
    return OK


def _report(folder: Path, console: Console) -> None:
    """Write the report; what hinders it (a full disk) must not hide how the run ended."""
    from .reporting.report import write_report

    try:
        console.print(f"Report: {write_report(folder)}", soft_wrap=True, highlight=False, markup=False)
    except OSError as error:
        console.print(
            f"[red]No report:[/] {escape(str(error))}; write it with: arboretum report {escape(str(folder))}"
        )


def export_checkpoint(run: Path, which: str = "best", out: Path | None = None) -> Path:
    """Write the policy of a run's checkpoint as a plain Hugging Face folder, adapters merged.

    Args:
        run: the run's folder.
        which: "best" (where nothing was validated the last, unless that one has collapsed and there is a good one)
            or "last".
        out: where to; default `<run>/model`, which is replaced.

    Raises:
        ConfigurationError: the run has no checkpoint; or adapters, and no settings to tell whose.
    """
    from .checkpoints.store import Checkpoints

    checkpoints = Checkpoints(run / "checkpoints")
    source = (checkpoints.best or checkpoints.sound if which == "best" else None) or checkpoints.last
    if source is None:
        raise ConfigurationError(f"{run}: holds no checkpoint, so there is no model to write.")
    folder = out or run / MODEL
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    if (source / "model").is_dir():
        shutil.copytree(source / "model", part)
    else:
        from ..agents.engines.local.load import load_model, load_tokenizer

        settings = settings_in(run)
        if settings is None:
            raise ConfigurationError(
                f"{run}: holds no {FILE}, which says what model the adapters are for; see Run.claim."
            )
        load_model(settings["model"], "cpu", "float32", source / "adapter").save_pretrained(part)
        load_tokenizer(source / "adapter").save_pretrained(part)
    if folder.exists():
        shutil.rmtree(folder)
    part.rename(folder)
    return folder


def sft(lesson: Lesson, *, resume: bool = False, console: Console) -> int:
    """Fine-tune a model on expert episodes; the result lies in `<out>/model`.

    Args:
        lesson: the settings.
        resume: continue the warm start in its folder from its last checkpoint.
        console: where progress is shown.

    Returns:
        Exit status: 0 when done, 1 when the run diverged, 130 when interrupted.

    Raises:
        ConfigurationError: settings that cannot work; said before anything is loaded where that is possible.
    """
    lesson.check()
    need_torch()
    lesson.claim(resume=resume)
    done = lesson.out / MODEL
    if resume and done.exists():
        console.print(f"Model: {done} (done before)", soft_wrap=True, highlight=False, markup=False)
        return OK
    from .checkpoints.store import CheckpointError
    from .learning.optimizer import Diverged
    from .sft import Tuning

    tuning = Tuning(lesson, resume)
    shown = ", ".join(f"{name} {value:.3g}" for name, value in tuning.quality().items())
    console.print(f"{len(tuning.demonstrations)} demonstrations: {shown}", highlight=False)
    try:
        with Progress(console, f"warm start on {lesson.world.id}", tuning.steps, view=LESSON) as progress:
            for record in tuning.history:
                progress.show({"update": record["step"], **record})
            for record in tuning.go():
                progress.show({"update": record["step"], **record})
        folder = tuning.export()
    except KeyboardInterrupt:
        kept = tuning.checkpoints.last
        where = f"the last checkpoint is {kept.name}" if kept else "there is no checkpoint yet"
        console.print(f"[yellow]Interrupted;[/] {where}: go on with the same command and --resume.")
        return INTERRUPTED
    except (Diverged, CheckpointError) as error:
        console.print("[red]Stopped:[/] ", end="")
        console.print(str(error), markup=False)
        return FAILED
    finally:
        tuning.close()
    console.print(f"Model: {folder}", soft_wrap=True, highlight=False, markup=False)
    return OK


def need_torch() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "accelerate") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"training needs {', '.join(missing)}: pip install 'arboretum[lm]'")
    from transformers.utils import logging

    logging.disable_progress_bar()  # of loading and writing weights: it would tear the live table


def _need_trackers(names: Sequence[str]) -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    installed = {str(name) for name in get_available_trackers()}
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise unknown_name("tracker", name, sorted(LOGGER_TYPE_TO_CLASS))
        if name not in installed:
            package = "'arboretum[tensorboard]'" if name == "tensorboard" else name.replace("_", "-")
            raise ConfigurationError(f"tracker {name!r} is not installed: pip install {package}")
