"""Checks before a run starts, in the order of what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...agents.engines.model_check import check_model
from ...envs.errors import ConfigurationError, unknown_name
from ...envs.extras import missing_extra
from ..checkpoints.interruption import Interruption
from ..checkpoints.run_folder import CHECKPOINTS_FOLDER, check_run_folder, claim_run_folder, undo_if_refused
from ..checkpoints.store import Checkpoints
from ..config.run import SFTConfig, TrainingConfig
from ..state import Activity

if TYPE_CHECKING:
    from ..trainer import Trainer


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
    check_run_device(config)
    _check_trackers(config.trackers)
    with undo_if_refused(config):
        claim_run_folder(config, resume=resume)
        from ..trainer import Trainer

        return Trainer(config, resume=resume, activity=activity, interruption=interruption)


def _loads_initial_model(config: TrainingConfig) -> bool:
    """Return True unless a resumed run has all weights that it needs in its checkpoint."""
    hardware, recipe = config.hardware, config.recipe
    frozen = recipe.needs_reference and recipe.objective.reference_decay is None
    if hardware.lora is not None or hardware.engine == "vllm" or frozen or recipe.sampler.asynchronous:
        return True
    return Checkpoints(config.out / CHECKPOINTS_FOLDER).last is None


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


def check_run_device(config: TrainingConfig | SFTConfig) -> None:
    """Raise a `ConfigurationError` if there is no such device as the run asks for."""
    if config.hardware.device is not None:
        from ...agents.engines.local.device import check_device

        check_device(config.hardware.device)


def _check_trackers(names: Sequence[str]) -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    installed = {str(name) for name in get_available_trackers()}
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise unknown_name("tracker", name, sorted(LOGGER_TYPE_TO_CLASS))
        if name not in installed:
            if name == "tensorboard":
                raise missing_extra("tracker 'tensorboard'", "tensorboard", name)
            raise ConfigurationError(f"tracker {name!r} is not installed: pip install {name.replace('_', '-')}")
