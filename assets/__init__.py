"""Packaged data: suites, studies, chat templates, vocabularies, and the sapling model."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def asset(path: str) -> Path:
    """Return the location of a packaged file or folder, such as "suites/quick.yaml"."""
    return Path(str(files(__package__) / path))
