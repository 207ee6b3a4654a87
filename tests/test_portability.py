"""Modules of Unix that other systems lack: imported in functions only, or behind a guard."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import arboretum

ROOT = Path(arboretum.__file__).parent
UNIX = frozenset(
    {
        "crypt",
        "fcntl",
        "grp",
        "nis",
        "ossaudiodev",
        "posix",
        "pty",
        "pwd",
        "readline",
        "resource",
        "spwd",
        "syslog",
    }
    | {"termios", "tty"}
)
"""Modules of the standard library with "Availability: Unix" in its documentation."""

FUNCTIONS = frozenset({"fork", "getuid", "geteuid", "killpg", "mkfifo", "pread", "pwrite", "setsid", "getpgid"})
"""Functions of `os` with the same remark, which no module may call without asking for them first."""


def sources() -> list[Path]:
    rooms = ("envs", "agents", "eval", "trainers", "assets")
    return sorted([*ROOT.glob("*.py"), *(path for room in rooms for path in (ROOT / room).rglob("*.py"))])


def unguarded_imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a module imports whenever it is imported, without those behind `try` or `if`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level:
            yield (child.module or "").partition(".")[0]
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.If, ast.Try)):
            yield from unguarded_imports(child)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_can_be_imported_without_the_modules_of_unix(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not UNIX & set(unguarded_imports(tree))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_of_unix_are_not_called(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    called = {
        node.func.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "os"
    }
    assert not {name for name in FUNCTIONS & called if f'hasattr(os, "{name}")' not in text}
