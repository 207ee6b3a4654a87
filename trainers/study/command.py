"""`arboretum study`: run a study, or the laboratory by the name "credit"."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ..laboratory.options import LaboratoryOptions
from .parsing import load_study
from .runner import run_study


def run(name: str, out: Path | None, laboratory: LaboratoryOptions, *, workers: int, console: Console) -> int:
    """Run a study.

    Args:
        name: Name of a study, path of its YAML file, or "credit".
        out: Folder of the study; None makes a name below runs/.
        laboratory: Options of "credit", which no other study has.
        workers: Processes.
        console: Console for progress and tables.

    Returns:
        Exit status.

    Raises:
        ConfigurationError: There is no such study, or it cannot work.
    """
    if name == "credit":
        from ..laboratory.command import run_laboratory

        return run_laboratory(laboratory, out or Path("runs") / "study-credit", workers=workers, console=console)
    laboratory.reject()
    study = load_study(name)
    return run_study(study, out or Path("runs") / f"study-{study.name}", workers=workers, console=console)
