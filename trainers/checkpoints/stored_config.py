"""Configurations that options describe, with the stored settings of a run to resume."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path

from ..config.cli_options import Options, SFTOptions, TrainOptions
from ..config.run import SFTConfig, TrainingConfig
from .run_folder import SETTINGS_FILE, read_config


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
