"""Packages of optional extras: their import, and the command that installs them."""

from __future__ import annotations

import importlib
import shlex
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

from .errors import ConfigurationError

DISTRIBUTION = "arboretum-rl"
"""Name of the package in an index. The name `arboretum` belongs to another project there."""

_ROOT = Path(__file__).resolve().parent.parent


def pip_install(*arguments: str) -> str:
    """Return the command that installs packages into the environment of this process.

    Args:
        arguments: Options of `pip install`, and requirements; the latter are quoted if the shell would read them.
    """
    pip = shutil.which("pip")
    is_ours = pip is not None and Path(pip).parent == Path(sys.executable).parent
    command = "pip install" if is_ours else f"{shlex.quote(sys.executable)} -m pip install"
    return " ".join([command, *(shlex.quote(argument) for argument in arguments)])


def install_command(extra: str) -> str:
    """Return the command that installs an extra into the environment of this process.

    A checkout is installed from its folder, and a package from an index by the name of its distribution.

    Args:
        extra: Name of the extra, such as "lm".
    """
    command = pip_install()
    if not (_ROOT / "pyproject.toml").is_file():  # only a checkout has one
        return f'{command} "{DISTRIBUTION}[{extra}]"'
    folder = "." if Path.cwd() == _ROOT else str(_ROOT)
    return f'{command} --editable "{folder}[{extra}]"'


_CLASHING = {"inspect": "docs/adapters.md", "openenv": "docs/openenv.md", "verifiers": "docs/adapters.md"}
"""Extras whose packages clash with those of other extras, and the page that says how to install them."""


def missing_extra(purpose: str, extra: str, missing: object) -> ConfigurationError:
    """Return an error for a feature whose extra is not installed.

    Args:
        purpose: Feature that needs the extra; the subject of the message.
        extra: Name of the extra.
        missing: Name of the missing package, or the error of its import.
    """
    if isinstance(missing, ImportError):
        missing = f"{missing.name} is missing" if isinstance(missing, ModuleNotFoundError) else missing
    else:
        missing = f"{missing} is missing"
    needs = f'{purpose} needs the extra "{extra}" ({missing})'
    if extra in _CLASHING:
        return ConfigurationError(f"{needs}, in a virtual environment of its own: see {_CLASHING[extra]}.")
    return ConfigurationError(f"{needs}: {install_command(extra)}")


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
        raise missing_extra(purpose, extra, error) from None
