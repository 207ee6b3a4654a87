"""Environments of a run as the command line names them: `--env [NAME=]ID[:WEIGHT]`, options for one or all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...envs.errors import ConfigurationError, unknown_name
from .settings import EnvConfig

_VERSIONED = re.compile(r"-v\d+$")
_NAME = re.compile(r"[\w-]+")


class EnvSpec(NamedTuple):
    """One `--env`, parsed.

    Attributes:
        id: Id of the environment.
        name: Name within the run; None uses the id.
        weight: Share of the run's prompts; None if it was not given.
    """

    id: str
    name: str | None = None
    weight: float | None = None

    @property
    def label(self) -> str:
        """Name of the environment within its run."""
        return self.name or self.id


def parse_env(text: str) -> EnvSpec:
    """Parse `[NAME=]ID[:WEIGHT]`, such as TextSokoban-v0:3 or small=TextSokoban-v0:0.5.

    A colon also separates module and class of an environment, as in package.module:Class.

    Raises:
        ConfigurationError: The name, the id or the weight is missing, or the weight is no number.
    """
    name, equals, rest = text.partition("=")
    if not equals:
        name, rest = "", text
    id, colon, tail = rest.rpartition(":")
    weight = _number(tail) if colon else None
    if not colon or (weight is None and not _VERSIONED.search(id)):
        id, weight = rest, None
    elif weight is None:
        raise ConfigurationError(f"--env {text}: the weight {tail!r} is no number; write --env {id}:3, or {id}.")
    if not id or (equals and not _NAME.fullmatch(name)):
        raise ConfigurationError(
            f"--env takes [NAME=]ID[:WEIGHT], such as TextSokoban-v0:3 or small=TextSokoban-v0, not {text!r}."
        )
    return EnvSpec(id, name or None, weight)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def divide_options(
    pairs: Sequence[str], labels: Sequence[str], flag: str
) -> tuple[list[str], dict[str, list[str]]]:
    """Divide options into those of all environments, key=value, and those of one, LABEL.key=value.

    Args:
        pairs: The options.
        labels: Names of the run's environments.
        flag: Name of the command-line flag, for messages.

    Returns:
        Options of all environments, and those of single ones by label, in the form key=value.

    Raises:
        ConfigurationError: An option is for an environment that the run does not have.
    """
    shared: list[str] = []
    own: dict[str, list[str]] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        label, dot, key = path.rpartition(".")
        if not dot:
            shared.append(pair)
        elif label in labels:
            own.setdefault(label, []).append(f"{key}{equals}{value}")
        else:
            raise ConfigurationError(f"{flag} {pair}: {unknown_name('environment of this run', label, labels)}")
    return shared, own


def check_environments(envs: Sequence[EnvConfig]) -> None:
    """Raise unless the environments of a run have positive weights, different names, and differ from each other.

    Raises:
        ConfigurationError: They do not.
    """
    seen: dict[str, EnvConfig] = {}
    for env in envs:
        env.check()
        if env.label in seen:
            raise ConfigurationError(
                f"{env.label} is named twice; to train on it with different options, name each of them, such as "
                f"--env small={env.id} --env large={env.id} --env-arg large.KEY=VALUE."
            )
        for other in seen.values():
            if _identity(other) == _identity(env):
                raise ConfigurationError(
                    f"{other.label} and {env.label} are the same environment with the same options; name it once, "
                    f"with the sum of the weights, or set --env-arg {env.label}.KEY=VALUE."
                )
        seen[env.label] = env


def _identity(env: EnvConfig) -> tuple[str, Mapping[str, Any], str | None, int | None, Mapping[str, Any]]:
    return env.id, dict(env.kwargs), env.split, env.tasks, dict(env.dialogue)
