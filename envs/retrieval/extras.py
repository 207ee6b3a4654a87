"""Packages of the optional extras: imported when first needed, or missed with one clear sentence."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from ..errors import ConfigurationError


def optional_module(name: str, extra: str, purpose: str) -> Any:
    """A module that an extra installs.

    Args:
        purpose: what needs it, to begin the sentence with.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of bindings' own making (SWIG)
            return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"{purpose} needs {name} ({error}); pip install 'arboretum[{extra}]'.") from None
