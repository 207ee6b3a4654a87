"""The model that comes with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

SAPLING = "sapling"


def model_source(name: str | Path) -> str | Path:
    """Where a model lies: the shipped sapling's folder for "sapling", else what was named.

    A folder of one's own that is called so is "./sapling".
    """
    return Path(str(files(f"{__package__.partition('.')[0]}.assets") / SAPLING)) if name == SAPLING else name
