"""`arboretum study`: run a study, or the laboratory by the name "credit"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from ...envs.errors import ConfigurationError
from ..laboratory.options import LaboratoryOptions
from .parsing import load_study
from .runner import run_study


def run(
    name: str,
    out: Path | None,
    laboratory: LaboratoryOptions,
    *,
    workers: int,
    envs: Sequence[str] = (),
    precision: Literal["float32", "bfloat16"] | None = None,
    console: Console,
) -> int:
    """Run a study.

    Args:
        name: Name of a study, path of its YAML file, or "credit".
        out: Folder of the study; None makes a name below runs/.
        laboratory: Options of "credit", which no other study has.
        workers: Processes.
        envs: Environments to run now; none for all. The laboratory has none.
        precision: Compute dtype instead of the study's; None keeps that. The laboratory has none.
        console: Console for progress and tables.

    Returns:
        Exit status.

    Raises:
        ConfigurationError: There is no such study, or it cannot work.
    """
    if name == "credit":
        if envs:
            raise ConfigurationError("--envs is an option of other studies; omit it, or give --tasks.")
        if precision is not None:
            raise ConfigurationError("--precision is an option of other studies; omit it.")
        from ..laboratory.command import run_laboratory

        return run_laboratory(laboratory, out or Path("runs") / "study-credit", workers=workers, console=console)
    laboratory.reject()
    study = load_study(name)
    if precision is not None:
        study = replace(study, hardware=replace(study.hardware, precision=precision))
    folder = out or Path("runs") / f"study-{study.name}"
    return run_study(study, folder, workers=workers, envs=envs, console=console)
