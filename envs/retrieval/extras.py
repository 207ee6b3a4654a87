"""Imports of packages from optional extras."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from ..errors import ConfigurationError


def optional_module(name: str, extra: str, purpose: str) -> Any:
    """Import a module that an optional extra installs.

    Args:
        name: Full name of the module.
        extra: Extra of this package that installs the module.
        purpose: Feature that needs the module; the subject of the error message.

    Raises:
        ConfigurationError: The module is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # SWIG bindings emit them on import.
            return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"{purpose} needs {name} ({error}); pip install 'arboretum[{extra}]'.") from None
