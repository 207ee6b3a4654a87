"""`arboretum.train`: training from Python, with the options of the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

from ...envs.checks import user_path
from ...envs.errors import ConfigurationError
from ...envs.files import shown_path, started_here
from ...envs.plain import plain_numbers
from ..checkpoints.export import export_checkpoint
from ..checkpoints.interruption import Interruption
from ..checkpoints.run_folder import MODEL_FOLDER, sole_writer
from ..checkpoints.stored_config import resolve_training_config
from ..config.cli_options import LoraOptions, TrainOptions
from ..config.run import TrainingConfig
from ..config.serialize import from_plain
from ..config.settings import HardwareConfig, SteppingConfig, ValidationConfig
from ..monitor import Monitor
from ..reporting.metrics import UpdateRecord
from ..reporting.report import write_report
from ..reporting.result import TrainingResult
from ..state import Activity
from .preflight import make_trainer


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
    trackers: str | Sequence[str] | None = None,
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
        ConfigurationError: Settings that cannot work, or another process is writing the folder; raised before
            anything is loaded where possible.
        DataError: A stored run is damaged.
        RuntimeError: The run failed: its gradients diverged, a part of the recipe or every episode failed, or a
            checkpoint could not be written. The last checkpoint is kept.
    """
    nested = plain_numbers({"validation": validation or {}, "monitor": monitor or {}, "lora": lora or {}})
    settings, env_args, dialogue_args = plain_numbers((settings, env_args, dialogue_args))
    hardware, stepping, tasks = plain_numbers((hardware, stepping, tasks))
    plain = plain_numbers({"seed": seed, "checkpoint_every": checkpoint_every, "checkpoint_keep": checkpoint_keep})
    given = {name: from_plain(int, value, name) for name, value in plain.items() if value is not None}
    options = TrainOptions(
        env=_env_ids(env),
        model=None if model is None else str(model),
        out=None if out is None else user_path("out", out),
        resume=None if resume is None else user_path("resume", resume),
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
        tracker=(trackers,) if isinstance(trackers, str) else tuple(trackers or ()),
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
    with sole_writer(config.out):
        result = _train(config, resume is not None, on_record)
    named = options.resume or options.out
    if named is not None and named.is_absolute():
        return result
    return replace(result, folder=shown_path(result.folder), model=shown_path(result.model))


@started_here()
def _train(
    config: TrainingConfig, resume: bool, on_record: Callable[[UpdateRecord], None] | None
) -> TrainingResult:
    """Train a policy in a folder that no other process writes; see `train_policy`."""
    activity = Activity()
    trainer = make_trainer(config, resume=resume, activity=activity, interruption=Interruption(activity))
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


def _env_ids(env: object) -> tuple[str, ...]:
    named = (env,) if not isinstance(env, Iterable) or isinstance(env, str) else tuple(env)
    for one in named:
        if not isinstance(one, (str, NoneType)):
            raise ConfigurationError(
                f"env must be the id of an environment, such as TextSokoban-v0 or my_envs:Maze, not {one!r:.80}."
            )
    return tuple(one for one in named if one is not None)


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
