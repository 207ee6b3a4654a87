"""Descriptions of errors in classes of other packages and of users, with the lines that they come from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from .errors import ConfigurationError

USER_ERRORS = (Exception, SystemExit)
"""Errors of users' code that end an episode and not the process, such as `sys.exit` in an environment."""

_PACKAGE = __name__.partition(".")[0]
_LINE = "arboretum_line"
_PLUGINS: set[str] = set()
"""Top-level modules of plug-ins, whose lines are a user's even if they are installed."""


def note_plugin(module: str) -> None:
    """Count the lines of a module, and of its package, as a user's."""
    _PLUGINS.add(module.partition(".")[0])


def describe_error(error: BaseException) -> str:
    """Return the kind and the text of an error, with the line of the user's code that led to it.

    That line is the innermost one of the traceback that belongs neither to this package nor to an installed one,
    such as "ValueError: no such box (my_parts.py, line 21, in Terse.parse)". There may be none.
    """
    text = " ".join(str(error).split())
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    where = _line_of(error)
    return described if where is None else f"{described} ({where})"


def describe_failure(what: str, error: BaseException) -> str:
    """Return the sentence, without its end, that something failed; see `describe_error`."""
    return f"{what} failed: {describe_error(error)}"


def cannot_be_made(what: str, settings: Mapping[str, Any], error: BaseException) -> ConfigurationError:
    """Return the error that an object cannot be made with settings, whose secrets it leaves out.

    Args:
        what: Name of the object, such as "TextSokoban-v0" or "agent mine:Agent".
        settings: Arguments of its class.
        error: Error of the class.
    """
    from .addresses import is_secret  # not needed at start-up

    given = ", ".join(f"{name}={'***' if is_secret(name) else repr(value)}" for name, value in settings.items())
    return ConfigurationError(f"{what} cannot be made{given and f' with {given}'}: {describe_error(error)}.")


def keep_line(error: BaseException) -> None:
    """Note in an error the line that `describe_error` adds; a pickled error has no traceback."""
    error.__dict__[_LINE] = _line_of(error)


def describe_method(method: Callable[..., Any]) -> str:
    """Return the name of a method with the line of its definition: "Terse.parse (my_parts.py, line 20)"."""
    function = getattr(method, "__func__", method)
    code = getattr(function, "__code__", None)
    name = _short(getattr(function, "__qualname__", repr(function)))
    return name if code is None else f"{name} ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def wrong_result(method: Callable[..., Any], expected: str, found: object) -> TypeError:
    """Return the error of a method that returned `found` in the place of what is expected."""
    return TypeError(f"{describe_method(method)} must return {expected}, not {found!r:.80}")


def is_ours(kind: type) -> bool:
    """Return True if a class is one of this package."""
    return kind.__module__.partition(".")[0] == _PACKAGE


def _line_of(error: BaseException) -> str | None:
    if isinstance(error, SyntaxError):  # It names its file and line itself.
        return None
    if _LINE in error.__dict__:
        kept: str | None = error.__dict__[_LINE]
        return kept
    import traceback

    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _is_user_code(frame.f_globals, frame.f_code):
            return _place(frame.f_code, line)
    return None


def _place(code: CodeType, line: int) -> str:
    name = _short(code.co_qualname)
    return f"{Path(code.co_filename).name}, line {line}{'' if name == '<module>' else f', in {name}'}"


def _short(name: str) -> str:
    """Return a qualified name without the functions around it; comprehensions have the name of theirs."""
    named = [part for part in name.split(".<locals>.") if not part.startswith("<")]
    return named[-1] if named else name


def _is_user_code(module: dict[str, Any], code: CodeType) -> bool:
    # The name of a module that is run as a program is "__main__"; its package has the name that it is run by.
    names = [(module.get(key) or "").partition(".")[0] for key in ("__name__", "__package__")]
    if _PACKAGE in names or code.co_filename.startswith("<"):
        return False
    return is_user_module(names[0], Path(code.co_filename))


def is_user_module(name: str, path: Path) -> bool:
    """Return True if a module is a user's: neither of this package, nor installed or of Python's library."""
    top = name.partition(".")[0]
    if top in _PLUGINS:
        return True
    is_installed = {"site-packages", "dist-packages"} & set(path.parts)
    return top != _PACKAGE and not is_installed and top not in sys.stdlib_module_names
