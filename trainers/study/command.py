"""`arboretum study`: run a study, or the laboratory by the name "credit"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ...envs.errors import ConfigurationError
from ..checkpoints.run_folder import sole_writer
from ..laboratory.options import LaboratoryOptions
from .options import StudyOptions
from .parsing import load_study
from .runner import run_study


def run(
    name: str,
    out: Path | None,
    options: StudyOptions,
    laboratory: LaboratoryOptions,
    *,
    workers: int,
    console: Console,
) -> int:
    """Run a study.

    Args:
        name: Name of a study, path of its YAML file, or "credit".
        out: Folder of the study; None makes a name below runs/.
        options: Options of every study but "credit".
        laboratory: Options of "credit", which no other study has.
        workers: Processes.
        console: Console for progress and tables.

    Returns:
        Exit status.

    Raises:
        ConfigurationError: There is no such study, it cannot work, or another process is writing its folder.
    """
    if name == "credit":
        options.reject()
        from ..laboratory.command import run_laboratory

        out = out or Path("runs") / "study-credit"
        with sole_writer(out):
            return run_laboratory(laboratory, out, workers=workers, console=console)
    laboratory.reject()
    study = load_study(name)
    if options.precision is not None:
        study = replace(study, hardware=replace(study.hardware, precision=options.precision))
    # Environments may change the working directory.
    folder = (out or Path("runs") / f"study-{study.name}").absolute()
    if options.gradients is None and options.recipes:
        raise ConfigurationError(
            "--recipes chooses what --gradients measures; give both. A study trains the recipes of its file."
        )
    with sole_writer(folder):
        if options.gradients is None:
            return run_study(study, folder, workers=workers, envs=options.envs, console=console)
        from .gradient_noise import run_gradients

        return run_gradients(
            study,
            folder,
            options.gradients,
            recipes=options.recipes,
            envs=options.envs,
            workers=workers,
            console=console,
        )
