"""Settings of a recipe that are given as options of `arboretum train`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise, takewhile
from shlex import quote
from typing import Any

from ...envs.errors import ConfigurationError
from ..algorithms.recipes import get_recipe, recipe_names
from .cli_options import TrainOptions
from .settings import HardwareConfig, SteppingConfig

_OPTIONS = frozenset(one.name for kind in (TrainOptions, HardwareConfig, SteppingConfig) for one in fields(kind))
"""Names of the command's options, or of the groups that they belong to."""
_ENV_ID = re.compile(r"[\w/]+-v\d+")


def check_misplaced(arguments: Sequence[str]) -> None:
    """Raise if a setting of the recipe is given as an option, such as --lr 3e-4 for --set optimization.lr=3e-4.

    Args:
        arguments: Arguments of `arboretum train`.

    Raises:
        ConfigurationError: An unknown option is the path of a setting of the recipe, or the last name of one; or
            the id of an environment stands beside the recipe's name or in its place.
    """
    if {"-h", "--help"} & set(arguments):
        return
    for argument in takewhile(lambda one: not one.startswith("-"), arguments):
        if _ENV_ID.fullmatch(argument):
            raise ConfigurationError(f"{argument} is an environment, not a recipe; pass --env {argument}.")
    for argument, following in pairwise([*arguments, "--"]):
        option, equals, value = argument.partition("=")
        name = option[2:].replace("-", "_")
        if not option.startswith("--") or name.partition(".")[0].removeprefix("no_") in _OPTIONS:
            continue
        if ":" in arguments[0] and not arguments[0].startswith("-"):
            recipe = arguments[0]  # a path such as "my_recipes:MINE"
        else:
            recipe = next((one for one in arguments if one in recipe_names()), "grpo")
        meant = [path for path in _setting_paths(get_recipe(recipe)) if name in (path, path.rpartition(".")[2])]
        if meant:
            value = value if equals else "VALUE" if following.startswith("--") else following
            sets = " or ".join(f"--set {quote(f'{path}={value}')}" for path in meant)
            raise ConfigurationError(f"{option} is a setting of the recipe, not an option; pass {sets}.")


def _setting_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all settings below a dataclass, such as "objective.kl.coef"."""
    for field in fields(value):
        inner, here = getattr(value, field.name), f"{path}.{field.name}" if path else field.name
        if is_dataclass(inner):
            yield from _setting_paths(inner, here)
        elif path:
            yield here
