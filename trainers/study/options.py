"""Options of the studies that a file defines; light, since the command line imports them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from ...envs.errors import ConfigurationError

_INSTEAD = {"envs": ", or give --tasks", "recipes": ", or give --arms"}


@dataclass(frozen=True)
class StudyOptions:
    """Options of a study.

    Attributes:
        envs: Environments of the study to run now. None given takes all.
        precision: Compute dtype, where the processor is slow in the study's. None takes the study's.
        gradients: Instead of training, measure the gradients of the recipes' credit rules on so many batches of
            the warm start's episodes: their noise, and their direction beside RLOO's. None trains.
        recipes: Recipes whose credit rules --gradients compares, of the study or any others. None given takes
            the study's.
    """

    envs: tuple[str, ...] = ()
    precision: Literal["float32", "bfloat16"] | None = None
    gradients: int | None = None
    recipes: tuple[str, ...] = ()

    def reject(self) -> None:
        """Raise a `ConfigurationError` if an option was given for the laboratory, which does not have it."""
        for name, value in asdict(self).items():
            if value not in ((), None):
                raise ConfigurationError(
                    f"--{name} is an option of other studies; omit it{_INSTEAD.get(name, '')}."
                )
