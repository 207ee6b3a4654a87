"""Options of the command `arboretum verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional, UseAppendAction


@dataclass(frozen=True)
class VerifyOptions:
    """Options of a verification.

    Attributes:
        env: Ids of the environments, or paths module:Class. None given checks those of this package.
        tasks: Number of tasks to sample, and of episodes to record.
        seed: Seed of the sample and of all episodes.
        form: Form of the output: "text", "json", or a table in "markdown".
        env_arg: Argument of the environment, as key=value, such as homes=full; only with one environment. Repeat
            the option for more.
        manifests: Folder for the manifests of OpenEnv, one folder for each environment that passes. None writes
            none.
    """

    env: Positional[tuple[str, ...]] = ()
    tasks: int = 20
    seed: int = 0
    form: Literal["text", "json", "markdown"] = "text"
    env_arg: UseAppendAction[tuple[str, ...]] = ()
    manifests: Path | None = None
