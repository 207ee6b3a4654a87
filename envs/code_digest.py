"""Digests of the code of users' classes, by which runs tell that it was edited."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from .user_code import is_user_module

if TYPE_CHECKING:
    import ast


_NEVER = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "t.TYPE_CHECKING", "__name__ == '__main__'")
"""Conditions that are false when a module is imported."""


def code_digests(classes: Iterable[type]) -> dict[str, str]:
    """Return the digests of those of some classes that are a user's by their names, such as "my_envs:Maze"."""
    named = {f"{kind.__module__}:{kind.__qualname__}": code_digest(kind) for kind in classes}
    return {name: digest for name, digest in sorted(named.items()) if digest is not None}


def code_digest(kind: type) -> str | None:
    """Return a digest of the code of a user's class; None if neither it nor a base of it is a user's.

    The files are those that define the class and its bases, and the user's modules that these import at any depth,
    but not within functions: such modules may not be loaded yet. The digest does not depend on their folder.
    """
    found: dict[str, Path] = {}
    modules = [one.__module__ for one in kind.__mro__]
    while modules:
        name = modules.pop()
        if name not in found and (path := _user_file(name)) is not None:
            found[name] = path
            modules += _imported(name, path)
    digest = blake2b(digest_size=6)
    for path in dict.fromkeys(found[name] for name in sorted(found)):
        digest.update(path.read_bytes())
    return digest.hexdigest() if found else None


def _user_file(module: str) -> Path | None:
    path = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    return path if path.is_file() and is_user_module(module, path) else None


def _imported(name: str, path: Path) -> Iterator[str]:
    """Yield the modules that a module imports, and names that it imports from them, which may be modules."""
    import ast

    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # It was edited since it was imported.
        return
    package = (getattr(sys.modules[name], "__package__", None) or "").split(".")
    for statement in _executed(tree):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield from _with_parents(alias.name)
        elif isinstance(statement, ast.ImportFrom):
            parents = package[: len(package) - statement.level + 1] if statement.level else []
            base = ".".join([*parents, *([statement.module] if statement.module else [])])
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in statement.names)


def _with_parents(module: str) -> list[str]:
    """Return the name of a module after those of its packages, which are imported with it."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node that are executed when the module is imported."""
    import ast

    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)):
            continue
        yield child
        if isinstance(child, ast.If) and ast.unparse(child.test) in _NEVER:
            for statement in child.orelse:
                yield statement
                yield from _executed(statement)
        else:
            yield from _executed(child)
