"""Training and supervised fine-tuning from the command line: progress while they run, a model at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from ..agents.engines.model_check import check_model
from ..envs.errors import ConfigurationError, unknown_name
from ..envs.extras import missing_extra
from .checkpoints.export import export_checkpoint
from .checkpoints.interruption import Interruption
from .checkpoints.run_folder import (
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    MODEL_FOLDER,
    SETTINGS_FILE,
    check_run_folder,
    claim_run_folder,
    read_config,
)
from .checkpoints.store import CheckpointError, Checkpoints
from .config.cli_options import LoraOptions, Options, SFTOptions, TrainOptions
from .config.run import SFTConfig, TrainingConfig
from .config.serialize import from_plain
from .config.settings import HardwareConfig, SteppingConfig, ValidationConfig
from .monitor import Monitor
from .reporting.metrics import UpdateRecord
from .reporting.progress import SFT_VIEW, Progress, training_view
from .reporting.report import write_report
from .reporting.result import TrainingResult
from .state import Activity

if TYPE_CHECKING:
    from .sft import SFTTrainer
    from .trainer import Trainer

OK, FAILED, INTERRUPTED = 0, 1, 130


def resolve_training_config(
    recipe: str | None, options: TrainOptions, given: AbstractSet[str] = frozenset()
) -> TrainingConfig:
    """Return the configuration that options describe, with the stored settings of a run to resume.

    Args:
        recipe: Name of the recipe; None with `resume`.
        options: Options.
        given: See `merge`.

    Raises:
        ConfigurationError: See `TrainOptions.config` and `read_config`.
    """
    folder = _stored_run(options, complete=recipe is not None)
    return options.config(recipe, None if folder is None else read_config(folder, TrainingConfig), given)


def resolve_sft_config(options: SFTOptions, given: AbstractSet[str] = frozenset()) -> SFTConfig:
    """Return the configuration that options describe, with the stored settings of a run to resume.

    Args:
        options: Options.
        given: See `merge`.

    Raises:
        ConfigurationError: See `SFTOptions.config` and `read_config`.
    """
    folder = _stored_run(options, complete=True)
    return options.config(None if folder is None else read_config(folder, SFTConfig), given)


def _stored_run(options: Options, *, complete: bool) -> Path | None:
    """Return the folder of the run whose settings must be read; None without one.

    If a run's settings were lost, options that describe the whole run can replace them.
    """
    if options.resume is None:
        return None
    complete = complete and bool(options.env) and options.model is not None
    return options.resume if (options.resume / SETTINGS_FILE).exists() or not complete else None


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
    activity = Activity()
    interruption = Interruption(activity)
    title, optimization = f"{config.recipe.name} on {config.env_names}", config.recipe.optimization
    total, max_tokens = optimization.updates, optimization.max_tokens
    again = f"arboretum train --resume {quote(str(config.out))}"
    view = training_view([env.label for env in config.envs])
    trainer: Trainer | None = None
    try:
        with (
            interruption.handle_signals(),
            Progress(
                console, title, total, max_tokens=max_tokens, view=view, activity=activity, quiet=not _is_main()
            ) as progress,
        ):
            restarts = resume and _has_metrics_only(config.out)
            trainer = make_trainer(config, resume=resume, activity=activity, interruption=interruption)
            from .learning.threads import limit_threads

            limit_threads(trainer.optimizer.policy)
            if restarts and _is_main():
                text = f"{config.out}: holds no checkpoint; starting again from update 0."
                console.print(text, soft_wrap=True, highlight=False, markup=False)
            for metrics in trainer.history:
                progress.show(metrics)
            before = trainer.state.update
            failure = _follow(trainer, progress)
    except KeyboardInterrupt:
        return _report_interrupt(Checkpoints(config.out / CHECKPOINTS_FOLDER), again, console)
    finally:
        if trainer is not None:
            trainer.close()
            if trainer.is_main and trainer.history:
                _write_report(config.out, console)
    if failure is not None:
        _report_failure(failure, console)
        if trainer.is_main and trainer.checkpoints.last is not None:
            console.print(
                f"{trainer.checkpoints.last.name} is kept; continue from it with: {again}",
                markup=False,
                soft_wrap=True,
            )
        return FAILED
    if trainer.interrupted:
        return _report_interrupt(trainer.checkpoints, again, console)
    if trainer.is_main:
        _warn_if_not_better(trainer.history, trainer.checkpoints.index.score, console)
        folder = export_checkpoint(config.out)
        console.print(f"Model: {folder}", soft_wrap=True, highlight=False, markup=False)
        if resume and trainer.state.update == before and trainer.stopped is None:
            prolong = f"{again} --set optimization.updates={2 * total}"
            console.print(f"The run was complete; prolong it with: {escape(prolong)}", soft_wrap=True)
    if trainer.stopped is not None:
        if trainer.is_main:
            console.print(f"[yellow]Ended early:[/] {escape(trainer.stopped)}")
        return FAILED
    return OK


def train_policy(
    recipe: str | None = None,
    env: str | Sequence[str] | None = None,
    model: str | Path | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    split: str | None = "train",
    tasks: int | None = None,
    seed: int | None = None,
    env_args: Mapping[str, Any] | None = None,
    dialogue: str | None = None,
    dialogue_args: Mapping[str, Any] | None = None,
    template: str | None = None,
    hardware: Mapping[str, Any] | None = None,
    lora: Mapping[str, Any] | None = None,
    validation: Mapping[str, Any] | None = None,
    monitor: Mapping[str, Any] | None = None,
    stepping: Mapping[str, Any] | None = None,
    checkpoint_every: int | None = None,
    checkpoint_keep: int | None = None,
    trackers: str | Sequence[str] = (),
    on_record: Callable[[UpdateRecord], None] | None = None,
) -> TrainingResult:
    """Train a language model by reinforcement learning, as `arboretum train` does; available as `arboretum.train`.

    Prints nothing and handles no signals. Arguments are the options of the command line; those that are None have
    its defaults, or with `resume` the settings of the run.

    Args:
        recipe: Name of the algorithm, such as "grpo". Required for a new run.
        env: Id of the environment, such as "TextSokoban-v0", or several with their weights, such as
            ["TextSokoban-v0:3", "TextFrozenLake-v0"]. Required for a new run.
        model: Initial model: a folder, a name on the Hugging Face hub, or "sapling". Required for a new run.
        out: Folder of the run. None makes a name of algorithm, environment and seed below runs/.
        resume: Folder of a run to continue from its last checkpoint, with the settings stored there.
        settings: Settings of the recipe by path, such as {"optimization.updates": 20}.
        split, tasks, seed, dialogue, template, checkpoint_every, checkpoint_keep: See `TrainOptions`.
        env_args: Make-time options of the environment; of several, {"TextSokoban-v0.size": 8} is for one of them.
        dialogue_args: Settings of the dialogue; for one of several environments as in `env_args`.
        hardware: Fields of `HardwareConfig`, such as {"device": "cpu"}.
        lora: Fields of `LoraConfig`; an empty mapping trains adapters with its defaults, None all weights.
        validation: Fields of `ValidationConfig`, such as {"every": 5}.
        monitor: Fields of `Monitor`.
        stepping: Fields of `SteppingConfig`, such as {"ray": "auto"}.
        trackers: Trackers of Accelerate that receive the metrics as well.
        on_record: Called with the record of the validation before training and of every update.

    Returns:
        Folder, best model and metrics of the run.

    Raises:
        ConfigurationError: Settings that cannot work; raised before anything is loaded where possible.
        DataError: A stored run is damaged.
        RuntimeError: The run failed: its gradients diverged, every episode ended with an error, or a checkpoint
            could not be written. The last checkpoint is kept.
    """
    nested = {"validation": validation or {}, "monitor": monitor or {}, "lora": lora or {}}
    plain = {"seed": seed, "checkpoint_every": checkpoint_every, "checkpoint_keep": checkpoint_keep}
    given = {name: from_plain(int, value, name) for name, value in plain.items() if value is not None}
    options = TrainOptions(
        env=(env,) if isinstance(env, str) else tuple(env or ()),
        model=None if model is None else str(model),
        out=None if out is None else Path(out),
        resume=None if resume is None else Path(resume),
        split=None if split is None else from_plain(str, split, "split"),
        tasks=None if tasks is None else from_plain(int, tasks, "tasks"),
        env_arg=_as_pairs(env_args),
        dialogue=dialogue,
        dialogue_arg=_as_pairs(dialogue_args),
        template=template,
        hardware=from_plain(HardwareConfig, hardware or {}, "hardware"),
        use_lora=lora is not None,
        lora=from_plain(LoraOptions, nested["lora"], "lora"),
        set=_as_pairs(settings),
        tracker=(trackers,) if isinstance(trackers, str) else tuple(trackers),
        validation=from_plain(ValidationConfig, nested["validation"], "validation"),
        monitor=from_plain(Monitor, nested["monitor"], "monitor"),
        stepping=from_plain(SteppingConfig, stepping or {}, "stepping"),
        **given,
    )
    names = {
        *given,
        *(hardware or {}),
        *(stepping or {}),
        *(f"{kind}.{name}" for kind, fields in nested.items() for name in fields),
    }
    if lora is not None:
        names.add("lora")
    config = resolve_training_config(recipe, options, names)
    activity = Activity()
    trainer = make_trainer(
        config, resume=resume is not None, activity=activity, interruption=Interruption(activity)
    )
    try:
        for record in trainer.run():
            if on_record is not None:
                on_record(record)
    finally:
        trainer.close()
        if trainer.is_main and trainer.history:
            write_report(config.out)
    if trainer.is_main:
        export_checkpoint(config.out)
    trainer.accelerator.wait_for_everyone()
    return TrainingResult(config.out, config.out / MODEL_FOLDER, tuple(trainer.history), trainer.stopped)


def _as_pairs(options: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return options in the form key=value, as the command line has them.

    Raises:
        ConfigurationError: A value is of a type that the command line has no form for.
    """
    pairs = []
    for name, value in (options or {}).items():
        try:
            pairs.append(f"{name}={json.dumps(os.fspath(value) if isinstance(value, os.PathLike) else value)}")
        except TypeError:
            raise ConfigurationError(
                f"{name} is {value!r}; pass numbers, texts, paths, lists or mappings, as on the command line."
            ) from None
    return tuple(pairs)


def make_trainer(
    config: TrainingConfig, *, resume: bool, activity: Activity, interruption: Interruption
) -> Trainer:
    """Check a configuration, claim its folder, and load the models.

    Args:
        config: Configuration of the run.
        resume: Continue the run in its folder from its last checkpoint.
        activity, interruption: See `Trainer`.

    Raises:
        ConfigurationError: Settings that cannot work; raised before anything is loaded where possible.
    """
    activity.begin("checking the settings")
    config.check()
    check_run_folder(config, resume=resume)
    if not resume or _loads_initial_model(config):
        check_model(config.model)
    activity.begin("importing PyTorch")
    require_torch()
    _check_device(config)
    _check_trackers(config.trackers)
    claim_run_folder(config, resume=resume)
    from .trainer import Trainer

    return Trainer(config, resume=resume, activity=activity, interruption=interruption)


def _loads_initial_model(config: TrainingConfig) -> bool:
    """Return True unless a resumed run has all weights that it needs in its checkpoint."""
    hardware, recipe = config.hardware, config.recipe
    frozen = recipe.needs_reference and recipe.objective.reference_decay is None
    if hardware.lora is not None or hardware.engine == "vllm" or frozen or recipe.sampler.asynchronous:
        return True
    return Checkpoints(config.out / CHECKPOINTS_FOLDER).last is None


def _follow(trainer: Trainer, progress: Progress) -> str | None:
    """Run the updates and show them; return the reason if the run failed."""
    from .algorithms.selectors import NotEnoughGroups
    from .learning.memory import OutOfMemory
    from .learning.optimizer import Diverged
    from .sampling.failures import SamplingFailed

    try:
        for record in trainer.run():
            progress.add(record)
    except (Diverged, NotEnoughGroups, OutOfMemory, SamplingFailed, CheckpointError) as error:
        return str(error)
    return None


def _is_main() -> bool:
    """Return True in the process that prints; known before Accelerate is loaded, from its launcher's variable."""
    return os.environ.get("RANK", "0") == "0"


def _has_metrics_only(folder: Path) -> bool:
    """Return True if a run has made updates but has no checkpoint to continue from."""
    if Checkpoints(folder / CHECKPOINTS_FOLDER).last is not None:
        return False
    metrics = folder / METRICS_FILE
    return metrics.exists() and metrics.stat().st_size > 0


def _report_failure(failure: str, console: Console) -> None:
    if _is_main():
        console.print(f"[red]Stopped:[/] {escape(failure)}")


def _report_interrupt(checkpoints: Checkpoints, again: str, console: Console) -> int:
    last = checkpoints.last
    where = f"the last checkpoint is {last.name}" if last else "there is no checkpoint yet"
    if _is_main():
        console.print(f"[yellow]Interrupted:[/] {where}; continue with: {escape(again)}", soft_wrap=True)
    return INTERRUPTED


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
        console.print(f"Report: {write_report(folder)}", soft_wrap=True, highlight=False, markup=False)
    except OSError as error:
        command = escape(f"arboretum report {quote(str(folder))}")
        console.print(f"[red]No report:[/] {escape(str(error))}; write it with: {command}", soft_wrap=True)


def sft(config: SFTConfig, *, resume: bool = False, console: Console) -> int:
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
    title, again = f"fine-tuning on {config.env.id}", f"arboretum sft --resume {quote(str(config.out))}"
    try:
        with (
            interruption.handle_signals(),
            Progress(console, title, 0, view=SFT_VIEW, activity=activity, quiet=not _is_main()) as progress,
        ):
            activity.begin("checking the settings")
            config.check()
            check_run_folder(config, resume=resume)
            check_model(config.model)
            activity.begin("importing PyTorch")
            require_torch()
            _check_device(config)
            claim_run_folder(config, resume=resume)
            finished = config.out / MODEL_FOLDER
            if resume and finished.exists():
                if _is_main():
                    text = f"Model: {finished} (finished before)"
                    console.print(text, soft_wrap=True, highlight=False, markup=False)
                return OK
            from .learning.threads import limit_threads
            from .sft import SFTTrainer

            trainer = SFTTrainer(config, resume, activity=activity, interruption=interruption)
            limit_threads(trainer.optimizer.policy)
            progress.total = trainer.steps
            failure = _follow_sft(trainer, progress, console)
    except KeyboardInterrupt:
        return _report_interrupt(Checkpoints(config.out / CHECKPOINTS_FOLDER), again, console)
    if failure is not None:
        _report_failure(failure, console)
        return FAILED
    if trainer.interrupted:
        return _report_interrupt(trainer.checkpoints, again, console)
    if _is_main():
        folder = config.out / MODEL_FOLDER
        console.print(f"Model: {folder}", soft_wrap=True, highlight=False, markup=False)
    return OK


def _follow_sft(trainer: SFTTrainer, progress: Progress, console: Console) -> str | None:
    """Run the steps, show them, and export the model; return the reason if the run failed."""
    from .learning.memory import OutOfMemory
    from .learning.optimizer import Diverged
    from .sampling.demonstrations import demonstration_quality

    quality = demonstration_quality(trainer.demonstrations)
    shown = ", ".join(f"{name} {value:.3g}" for name, value in quality.items())
    if _is_main():
        console.print(f"{len(trainer.demonstrations)} demonstrations: {shown}", highlight=False)
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


def require_torch() -> None:
    """Raise unless the packages for training are installed.

    Raises:
        ConfigurationError: A package is missing.
    """
    missing = [name for name in ("torch", "transformers", "accelerate") if find_spec(name) is None]
    if missing:
        raise missing_extra("training", "lm", missing[0])
    from transformers.utils import logging

    logging.disable_progress_bar()  # Progress bars would corrupt the live table.


def _check_device(config: TrainingConfig | SFTConfig) -> None:
    if config.hardware.device is not None:
        from ..agents.engines.local.device import check_device

        check_device(config.hardware.device)


def _check_trackers(names: Sequence[str]) -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    installed = {str(name) for name in get_available_trackers()}
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise unknown_name("tracker", name, sorted(LOGGER_TYPE_TO_CLASS))
        if name not in installed:
            if name == "tensorboard":
                raise missing_extra("this tracker", "tensorboard", name)
            raise ConfigurationError(f"tracker {name!r} is not installed: pip install {name.replace('_', '-')}")
