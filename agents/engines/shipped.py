"""The model that comes with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

SEED = "seed"


def model_source(name: str | Path) -> str | Path:
    """Where a model lies: the shipped seed model's folder for "seed", else what was named.

    A folder of one's own that is called so is "./seed".
    """
    return Path(str(files(f"{__package__.partition('.')[0]}.assets") / SEED)) if name == SEED else name
