"""The model that comes with the package."""

from __future__ import annotations

from pathlib import Path

from ...assets import asset

SAPLING = "sapling"


def model_source(name: str | Path) -> str | Path:
    """Where a model lies: the shipped sapling's folder for "sapling", else what was named.

    A folder of one's own that is called so is "./sapling".
    """
    return asset(SAPLING) if name == SAPLING else name
