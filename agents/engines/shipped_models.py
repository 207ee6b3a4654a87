"""Folders of models: those that have a name here, and the integrity of exported ones."""

from __future__ import annotations

import json
from pathlib import Path

from ...assets import asset
from ...envs.checks import expand_home
from ...envs.checksums import SUMS_FILE, verify_checksums
from .packaged_model import SMOLLM2, smollm2_folder

SAPLING = "sapling"
BLOCKSWORLD_SAPLING = "sapling-blocksworld"
ALFWORLD_SAPLING = "sapling-alfworld"
SEARCH_SAPLING = "sapling-search"
THOUGHTS_SAPLING = "sapling-thoughts"

SHIPPED_MODELS = (SAPLING, BLOCKSWORLD_SAPLING, ALFWORLD_SAPLING, SEARCH_SAPLING, THOUGHTS_SAPLING)
"""Names of the shipped models, which are those of their folders in `assets/`."""

DIALOGUE_KEY = "arboretum_dialogue"
"""Key of `config.json` with the name of the dialogue that training recorded."""

CHECKSUMS_FIX = (
    "restore it from a copy or export the model again; if you changed it on purpose, delete SHA256SUMS beside it."
)
"""What the user can do about a damaged model, as the end of an error's message."""

NAMED_MODELS = (*SHIPPED_MODELS, SMOLLM2)
"""Names that stand for the folder of a model."""


def model_source(name: str | Path) -> str | Path:
    """Return the folder of a model that has a name here, and any other name or path unchanged but for `~`.

    A folder of such a name in the working directory can be passed as "./sapling". A folder with `SHA256SUMS`, as
    training and `arboretum sapling` write it, is verified; see `envs.checksums`.

    Raises:
        ConfigurationError: The path begins with the name of an unknown user, or see `smollm2_folder`.
        DataError: A file of the model is damaged.
    """
    if name == SMOLLM2:
        return smollm2_folder()
    source = asset(str(name)) if name in SHIPPED_MODELS else name
    if str(source).startswith("~"):
        source = expand_home(source)
    if (Path(source) / SUMS_FILE).exists():
        verify_checksums(Path(source), CHECKSUMS_FIX)
    return source


def read_taught_dialogue(name: str | Path) -> str | None:
    """Return the name of the dialogue that a model was last trained with; None if no folder states it.

    Args:
        name: Folder of the model, or name of a shipped one.
    """
    folder = asset(str(name)) if name in SHIPPED_MODELS else expand_home(name)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # Loading the model says so.
        return None
    taught = config.get(DIALOGUE_KEY) if isinstance(config, dict) else None
    return taught if isinstance(taught, str) else None
