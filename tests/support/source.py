"""The package's source files, each parsed once in a test session."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import arboretum

ROOT = Path(arboretum.__file__).parent


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
