"""The command `arboretum export`."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from ...envs.errors import ConfigurationError
from ...envs.files import PART, move_file, move_folder
from ..output_path import check_parent, write_failure
from . import Format
from .atif import write_atif, write_atif_files
from .decision_data import write_preference, write_stepwise
from .inspect_log import write_inspect
from .source import Source
from .tables import write_csv, write_parquet
from .training_data import write_sft


class _Kind(NamedTuple):
    """Format of an export.

    Attributes:
        name: Name of the file or folder in the folder of the run, if none is given.
        write: Function that writes the episodes of a source to a new file or an empty folder, and returns the
            number of rows.
        rows: Name of the rows.
        is_folder: True if the format is a folder of files.
    """

    name: str
    write: Callable[[Source, Path], int]
    rows: str = "episodes"
    is_folder: bool = False


_KINDS: dict[str, _Kind] = {
    "parquet": _Kind("episodes.parquet", write_parquet),
    "csv": _Kind("episodes.csv", write_csv),
    "sft": _Kind("sft.jsonl", write_sft, "conversations"),
    "preference": _Kind("preference.jsonl", write_preference, "pairs"),
    "stepwise": _Kind("stepwise.jsonl", write_stepwise),
    "inspect": _Kind("inspect", write_inspect, is_folder=True),
    "atif": _Kind("atif", write_atif_files, "trajectories", is_folder=True),
}


def export_run(
    run: Path,
    to: Format,
    out: Path | None,
    *,
    agents: Sequence[str] = (),
    everything: bool = False,
    console: Console,
) -> int:
    """Export the episodes of a run, and return the exit status.

    The file or folder appears only once it is complete.

    Args:
        run: Folder of an evaluation run, finished or not.
        to: Format.
        out: File or folder to write; None for a name of the format in the folder of the run.
        agents: Names of the agents whose episodes are exported; empty for all.
        everything: Also export unsuccessful episodes; for the format `sft` only.
        console: Terminal.

    Raises:
        ConfigurationError: There is no such run, it has nothing to export, the output exists, or an extra is not
            installed.
    """
    if everything and to != "sft":
        raise ConfigurationError(f"--all-episodes has an effect with --to sft only, not with {to}; remove it.")
    kind = _KINDS[to]
    if to == "atif" and out is not None and out.suffix not in ("", ".jsonl"):
        raise ConfigurationError(
            f"{out}: has another ending than .jsonl; name a file of that ending, or a folder without one."
        )
    if to == "sft":
        kind = kind._replace(write=partial(write_sft, everything=everything))
    if to == "atif" and out is not None and out.suffix == ".jsonl":
        kind = kind._replace(write=write_atif, is_folder=False)
    source = Source(run, agents)
    path = out or run / kind.name
    if path.exists() or path.is_symlink():
        raise ConfigurationError(f"{path}: exists; delete it, or choose another --out.")
    check_parent(path)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PART}")
    try:
        if kind.is_folder:
            part.mkdir()
        rows = kind.write(source, part)
        source.problems += source.describe_lost()
        if kind.is_folder:
            move_folder(part, path, overwrite=False)
        else:
            move_file(part, path)
    except ConfigurationError:
        _print_problems(source, console)
        raise
    except OSError as error:
        if str(part) not in str(error):
            raise
        raise write_failure(OSError(error.errno, os.strerror(error.errno or 0), str(path)), path) from error
    finally:
        if kind.is_folder:
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
    _print_problems(source, console)
    console.print(f"{rows:,} {kind.rows}: {path}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _print_problems(source: Source, console: Console) -> None:
    for problem in source.problems:
        console.print(problem, markup=False, style="yellow", soft_wrap=True)
