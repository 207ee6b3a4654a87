"""Check of `--out` for pages, before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..envs.errors import ConfigurationError
from .decisions.file import FILE as DECISIONS_FILE
from .manifest import MANIFEST_COPY, MANIFEST_FILE, SUMMARY_FILE
from .run_index import EPISODES_FILE

PAGE = ".html"
DATA = ".json"

_RUN_FILES = (MANIFEST_FILE, MANIFEST_COPY, EPISODES_FILE, DECISIONS_FILE, SUMMARY_FILE, "metrics.jsonl")
"""Names by which a folder is told to hold a run, or a study."""
_COMPARISON_KEYS = {"suite", "agents", "differences"}


def check_output(path: Path, suffixes: Sequence[str] = (PAGE,), *, with_data: bool = False) -> None:
    """Raise if a page cannot be written to a path, or if it would replace a file of a run.

    Args:
        path: File to write; a device is accepted whatever its name is.
        suffixes: Endings that its name may have.
        with_data: A JSON file is written beside the page.

    Raises:
        ConfigurationError: The path is a folder, has another ending, is in no folder, or is a file of a run.
    """
    wanted = f"name a file that ends in {' or '.join(suffixes)}"
    if path.is_dir():
        raise ConfigurationError(f"{path}: is a folder; {wanted}, such as {path / ('comparison' + PAGE)}.")
    if path.exists() and not path.is_file():
        return  # A device, such as /dev/stdout.
    if path.suffix not in suffixes:
        raise ConfigurationError(f"{path}: has another ending than a page; {wanted}.")
    check_parent(path)
    if with_data:
        _check_data(path.with_suffix(DATA))


def check_parent(path: Path) -> None:
    """Raise if the folder of a file to write does not exist.

    Raises:
        ConfigurationError: There is no such folder.
    """
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path.parent}: is no folder; create it, or choose another --out.")


def describe_failure(error: OSError, path: Path) -> str:
    """Return a sentence about a file that could not be written, without its full stop.

    Args:
        error: Error of the system.
        path: File, named where the error names none.
    """
    return f"{error.filename or path}: could not be written ({error.strerror or error})"


def write_failure(error: OSError, path: Path) -> ConfigurationError:
    """Return the error of a file of `--out` that could not be written; see `describe_failure`."""
    return ConfigurationError(f"{describe_failure(error, path)}; choose another --out.")


def _check_data(path: Path) -> None:
    """Raise if the JSON file of a comparison would replace another file."""
    if path.is_dir():
        raise ConfigurationError(
            f"{path}: is a folder, and the data would be written there; choose another --out."
        )
    is_run = any((path.parent / name).exists() for name in _RUN_FILES)
    if (is_run and path.name in _RUN_FILES) or (path.is_file() and not _is_comparison(path)):
        what = "file of a run" if is_run else "file, and no comparison"
        raise ConfigurationError(
            f"{path}: is a {what}, which the data of the comparison would replace; choose another --out."
        )


def _is_comparison(path: Path) -> bool:
    """Return True if a file holds the data of a comparison."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.keys() >= _COMPARISON_KEYS
