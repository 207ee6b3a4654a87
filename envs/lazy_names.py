"""Public names of a package that are imported when they are first used, so that importing the package is fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
        package: Name of the package.
        modules: Public names, separated by spaces, by the module relative to the package that defines them. A name
            that differs in its module is written as public:defined.
    """
    owners = {}
    for module, names in modules.items():
        for name in names.split():
            public, _, defined = name.partition(":")
            owners[public] = (module, defined or public)

    def getattr_(name: str) -> Any:
        if name not in owners:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, defined = owners[name]
        return getattr(import_module(module, package), defined)

    return getattr_, lambda: sorted({*vars(sys.modules[package]), *owners})
