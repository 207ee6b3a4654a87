"""The model that ships with the package."""

from __future__ import annotations

from pathlib import Path

from ...assets import asset

SAPLING = "sapling"


def model_source(name: str | Path) -> str | Path:
    """Return the folder of the shipped model for "sapling", and any other name or path unchanged but for `~`.

    A folder of that name in the working directory can be passed as "./sapling".
    """
    if name == SAPLING:
        return asset(SAPLING)
    return Path(name).expanduser() if str(name).startswith("~") else name
