"""The command `arboretum data`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from ..checks import expand_home
from ..errors import ConfigurationError
from ..retrieval.progress import progress_bar
from .downloads import data_get, data_list, data_verify, folder_states


def run_data_command(
    verb: Literal["list", "get", "verify"], name: str | None, root: Path | None, console: Console
) -> int:
    """List, download or verify public data sets.

    Args:
        verb: See `arboretum data`.
        name: Name of the data set, for "get" and "verify".
        root: Data folder. None uses ARBORETUM_DATA.
        console: Console for the results.

    Returns:
        Exit status: 1 if a file is missing or differs from its checksum.

    Raises:
        ConfigurationError: The name is missing.
        DataError: See `data_get` and `data_verify`.
    """
    if verb == "list":
        _print_list(root, console)
        return 0
    if name is None:
        raise ConfigurationError(f"name the data set to {verb}; `arboretum data list` shows all of them.")
    if verb == "get":
        with progress_bar() as progress:
            folder = data_get(name, root, progress=progress)
        console.print(f"{name} is in {folder}", markup=False, soft_wrap=True)
        if folder.parent != expand_home(os.environ.get("ARBORETUM_DATA") or ""):
            export = f"export ARBORETUM_DATA={shlex.quote(str(folder.parent.resolve()))}"
            console.print(f"Environments find it after: {export}", markup=False, soft_wrap=True)
        return 0
    states = data_verify(name, root)
    for file, state in states.items():
        console.print(f"{file}: {state}", markup=False)
    return 0 if all(state in ("ok", "unknown") for state in states.values()) else 1


def _print_list(root: Path | None, console: Console) -> None:
    named = root or os.environ.get("ARBORETUM_DATA")
    folder = f"{expand_home(named)}" if named else "none; name one with --root, or set ARBORETUM_DATA to it"
    console.print(f"Data folder: {folder}", markup=False, soft_wrap=bool(named))  # A path is not broken.
    console.print("\nRead by environments in place of tasks that they generate:", markup=False)
    for one, state in folder_states(root):
        console.print(f"{one.folder:<12} {state:<7} {one.license}; get it with\n  {one.download}", markup=False)
    console.print("\nDownloaded by `arboretum data get NAME`:", markup=False)
    listed = data_list(root)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=max(len(known.name) for known, _ in listed))  # never shortened
    table.add_column(no_wrap=True, min_width=max(len(state) for _, state in listed))
    for _ in range(2):
        table.add_column(overflow="fold")
    for known, state in listed:
        table.add_row(known.name, state, known.size, known.license)
    console.print(table)
    console.print("\nThe suites search an index of Wikipedia, made in the data folder with", markup=False)
    console.print("  `arboretum index build --corpus wiki-18/corpus.jsonl.gz --out wiki-18/index`", markup=False)
