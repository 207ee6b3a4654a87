"""Options of the form key=value on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from ..envs.errors import ConfigurationError
from .yaml_files import load_yaml


def option_name(name: str) -> str:
    """Return the command-line option of a parameter, such as `--step-timeout` of `step_timeout`."""
    return f"--{name.replace('_', '-')}"


def parse_options(pairs: Sequence[str], flag: str) -> dict[str, Any]:
    """Parse `key=value` options. Values are YAML: numbers, booleans, lists and so on.

    Numbers such as 3e-4 and 1e5, which are strings in YAML 1.1, are parsed as numbers.

    Args:
        pairs: The options.
        flag: Name of the command-line flag, for error messages.

    Raises:
        ConfigurationError: An option is not of the form `key=value`, or its value is not YAML.
    """
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.replace(".", "_").isidentifier():
            raise ConfigurationError(f"{flag} takes key=value, not {pair!r}.")
        try:
            options[key] = load_yaml(value)
        except yaml.YAMLError as error:
            reason = getattr(error, "problem", None) or "it cannot be read"
            raise ConfigurationError(f"{flag} {pair!r}: the value is not YAML ({reason}).") from None
    return options
