"""Folders of models: the model that ships with the package, and the integrity of exported ones."""

from __future__ import annotations

from pathlib import Path

from ...assets import asset
from ...envs.checksums import SUMS_FILE, verify_checksums

SAPLING = "sapling"


_FIX = (
    "restore it from a copy or export the model again; if you changed it on purpose, delete SHA256SUMS beside it."
)


def model_source(name: str | Path) -> str | Path:
    """Return the folder of the shipped model for "sapling", and any other name or path unchanged but for `~`.

    A folder of that name in the working directory can be passed as "./sapling". A folder with `SHA256SUMS`, as
    training and `arboretum sapling` write it, is verified; see `envs.checksums`.

    Raises:
        DataError: A file of the model is damaged.
    """
    source = asset(SAPLING) if name == SAPLING else name
    if str(source).startswith("~"):
        source = Path(source).expanduser()
    if (Path(source) / SUMS_FILE).exists():
        verify_checksums(Path(source), _FIX)
    return source
