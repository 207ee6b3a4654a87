"""Models as plain Hugging Face folders, LoRA adapters merged, as `transformers` and vLLM load them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...envs.checksums import write_checksums
from ...envs.errors import ConfigurationError
from ...envs.files import replace_folder
from ..config.resolve import resolve_dialogue
from ..config.run import TrainingConfig
from .run_folder import CHECKPOINTS_FOLDER, MODEL_FOLDER, SETTINGS_FILE, read_config, read_run_settings
from .store import Checkpoints, verify_checkpoint
from .taught_dialogue import record_dialogue

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def export_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model and its tokenizer, replacing what the folder held before.

    Args:
        model: Model, with or without adapters.
        tokenizer: Tokenizer of the model.
        folder: Folder to create or replace.
        weights: Result of `merged_weights`; None computes it here, which works in a single process only.
    """
    from ..learning.sharding import merged_weights

    with replace_folder(folder) as part:
        model.save_pretrained(part, state_dict=dict(merged_weights(model) if weights is None else weights))
        tokenizer.save_pretrained(part)
        write_checksums(part)


def export_checkpoint(run: Path, which: Literal["best", "last"] = "best", out: Path | None = None) -> Path:
    """Write the policy of a run's checkpoint, adapters merged.

    Args:
        run: Folder of the run.
        which: "best" (the last if none has a score, unless that one collapsed and there is a good one) or "last".
        out: Folder to create or replace; default `<run>/model`.

    Returns:
        The folder of the model.

    Raises:
        ConfigurationError: The run has no checkpoint; or adapters, and no settings that name their base model.
        DataError: The checkpoint is damaged.
    """
    checkpoints = Checkpoints(run / CHECKPOINTS_FOLDER)
    source = (checkpoints.best or checkpoints.sound if which == "best" else None) or checkpoints.last
    if source is None:
        raise ConfigurationError(f"{run}: holds no checkpoint, so there is no model to export.")
    verify_checkpoint(source)
    folder = out or run / MODEL_FOLDER
    if (source / "model").is_dir():
        with replace_folder(folder) as part:
            shutil.copytree(source / "model", part, dirs_exist_ok=True)
            write_checksums(part)
        return folder
    from ...agents.engines.local.load import load_model, load_tokenizer

    if read_run_settings(run) is None:
        raise ConfigurationError(f"{run}: holds no {SETTINGS_FILE}, which names the base model of the adapters.")
    config = read_config(run, TrainingConfig)
    with replace_folder(folder) as part:
        model = load_model(config.model, "cpu", "float32", source / "adapter")
        record_dialogue(model, resolve_dialogue(config.dialogue, config.recipe.sampler).name)
        model.save_pretrained(part)
        load_tokenizer(source / "adapter").save_pretrained(part)
        write_checksums(part)
    return folder
