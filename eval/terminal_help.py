"""Marks of verbs and options, the choice of a verb, and its help, folded to the width of a terminal.

Tyro folds the boxes of a help, but not what stands above them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial, wraps
from itertools import chain
from typing import Annotated, Any, NoReturn, TextIO, get_args, get_origin, get_type_hints

from tyro import cli
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg, subcommand
from tyro.extras import SubcommandApp

from ..envs.errors import ConfigurationError, unknown_name

_BOX = "╭│╰+|"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_BORDERS = re.compile(r"^[│|] | [│|]$", re.MULTILINE)
_NOT_A_NUMBER = re.compile(
    r"Error parsing (\S+): .*?(?:invalid literal for (int)\(\) with base 10|could not convert string to float):"
    r" (['\"])(.*?)\3"
)
"""Message of tyro, on one line and without the borders of its box."""
_NOT_NUMBERS = re.compile(
    r"Error parsing (\S+): Could not find valid parse for arguments: (\[.*?\]) .*\[INT \.\.\.\]"
)
"""Its message about an option that takes several whole numbers."""


def as_verb(name: str) -> Any:
    """Return the mark of a sub-command whose name has no prefix."""
    return subcommand(name, prefix_name=False)


def hint(text: str, names: Iterable[str] = (), shown: str | None = None) -> Any:
    """Return the mark of an option whose help lists names, which stand in the place of `{}`.

    Args:
        text: Help.
        names: Names.
        shown: What usage and help show in the place of the value; None for its type.
    """
    return arg(help=text.format(", ".join(names)), metavar=shown)


class HelpBuffer(io.StringIO):
    """Buffer for the standard output of a help command.

    Args:
        target: Stream that the text is written to in the end; it decides on color and the characters of boxes.
    """

    def __init__(self, target: TextIO) -> None:
        super().__init__()
        self._target = target

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the target."""
        return self._target.encoding

    def isatty(self) -> bool:
        """Return True if the target is a terminal."""
        return self._target.isatty()

    def folded(self, width: int) -> str:
        """Return the text with the lines outside boxes folded to a width in columns."""
        return "".join(f"{_fold(line, width)}\n" for line in self.getvalue().splitlines())


def _fold(line: str, width: int) -> str:
    plain = _ANSI.sub("", line)
    if len(plain) <= width or plain[:1] in _BOX:
        return line
    if not plain.startswith("usage:"):
        return textwrap.fill(plain, width)  # descriptions have no color
    # An option with its value in brackets stays on one line, a list of verbs does not.
    parts = re.findall(r"\[(?:[^\[\]]|\[[^\[\]]*(?:\[[^\[\]]*\])?[^\[\]]*\])*\]|[^\s,]+,?|,", plain)
    lines = [parts[0]]
    for part, before in zip(parts[1:], parts, strict=False):
        gap = "" if before.endswith(",") else " "
        if len(lines[-1]) + len(gap) + len(part) <= width:
            lines[-1] += gap + part
        else:
            lines.append(" " * 7 + part)
    return "\n".join(lines)


def print_help(parse: Callable[[], object]) -> NoReturn:
    """Print the help that parsing the arguments of a command prints, folded to the terminal, and exit.

    Args:
        parse: Function that parses the arguments, prints the help, and exits.
    """
    buffer = HelpBuffer(sys.stdout)
    try:
        with contextlib.redirect_stdout(buffer):
            parse()
    finally:
        sys.stdout.write(buffer.folded(shutil.get_terminal_size().columns))
        sys.stdout.flush()
    sys.exit(0)


def _deferred(function: Callable[..., int]) -> Callable[..., Callable[[], int]]:
    """Return a function with the options of another, which returns its call instead of calling it."""

    @wraps(function)
    def defer(*args: Any, **options: Any) -> Callable[[], int]:
        return partial(function, *args, **options)

    return defer


def _parse_in_words(parse: Callable[[], Callable[[], int]]) -> Callable[[], int]:
    """Return the call that parsing the arguments of a command makes.

    Args:
        parse: Parses the arguments; where it fails, it prints a box to standard error and exits.

    Raises:
        ConfigurationError: The value of an option is not a number.
    """
    printed = HelpBuffer(sys.stderr)
    try:
        with contextlib.redirect_stderr(printed):
            call = parse()
    except SystemExit:
        text = " ".join(_BORDERS.sub("", _ANSI.sub("", printed.getvalue())).split())
        if (found := _NOT_A_NUMBER.search(text)) is not None:
            option, is_whole, _, value = found.groups()
            kind = "a whole number" if is_whole else "a number"
            raise ConfigurationError(f"{option}: {value!r} is not {kind}.") from None
        if (found := _NOT_NUMBERS.search(text)) is not None:
            option, values = found[1], ast.literal_eval(found[2])
            value = next((one for one in values if not re.fullmatch(r"[+-]?\d+", one)), values[0])
            raise ConfigurationError(f"{option}: {value!r} is not a whole number.") from None
        sys.stderr.write(printed.getvalue())
        raise
    sys.stderr.write(printed.getvalue())  # warnings
    return call


def _sub_verbs(function: Callable[..., int]) -> dict[str, Any]:
    """Return the classes of a verb's sub-commands by the names that `as_verb` gave them."""
    annotations = get_type_hints(function, include_extras=True)
    first = next(iter(annotations.values()))
    members = [get_args(one) for one in get_args(get_args(first)[0])] if get_args(first) else []
    marked = [(member, getattr(mark, "name", None)) for member, *marks in filter(None, members) for mark in marks]
    return {name: member for member, name in marked if name is not None}


def _list_options(owner: Callable[..., Any]) -> Iterator[str]:
    """Yield the names of the options of a verb, or of a class of options, that take several values at once.

    A prefix, such as that of `--monitor.fatal`, is left out.
    """
    for name, annotation in get_type_hints(owner, include_extras=True).items():
        kind, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        if isinstance(kind, type) and is_dataclass(kind):
            yield from _list_options(kind)
        elif get_args(kind)[1:] == (...,) and UseAppendAction not in marks and Positional not in marks:
            yield name


def _join_repeated(arguments: Sequence[str], owner: Callable[..., Any]) -> list[str]:
    """Return the arguments with all values of a repeated option behind its first occurrence.

    Of an option that takes several values, tyro keeps the last occurrence only.

    Args:
        arguments: Arguments of a verb.
        owner: Function or class with the verb's options.
    """
    options = {*_list_options(owner)}
    first: dict[str, list[str]] = {}
    current: list[str] = []
    parts = [current]
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.replace("-", "_")
        if name in first:
            current = first[name]
            current += [value] if equals else []
        elif argument.startswith("--"):
            current = [argument]
            parts.append(current)
            if name[2:].rpartition(".")[2] in options:
                first[name] = current
        else:
            current.append(argument)
    return [*chain.from_iterable(parts)]


def run_verb(
    app: SubcommandApp, verbs: Mapping[str, Callable[..., int]], arguments: Sequence[str], description: str
) -> int:
    """Call the function of the verb that the first argument names, and return its exit status.

    The other arguments are parsed for this verb alone, so that a mistyped option is compared with its options.

    Args:
        app: Command of all verbs, whose help is printed where no verb is named.
        verbs: Functions of the verbs, by name.
        arguments: One or more arguments of the command.
        description: One line on the command.

    Raises:
        ConfigurationError: There is no such verb, or a value is not a number.
    """
    name, *rest = arguments
    is_help = bool({"-h", "--help"} & set(arguments))
    parse: Callable[[], Callable[[], int]]
    if name.startswith("-"):
        parse = partial(partial, app.cli, args=arguments, prog="arboretum", description=description)
    elif name not in verbs:
        raise unknown_name("command", name, verbs)
    elif rest and not is_help and (job := _sub_verbs(verbs[name]).get(rest[0])) is not None:
        # Parsed as a command of its own, so that errors point to its help.
        prog = f"arboretum {name} {rest[0]}"
        of_job = partial(cli, job, args=_join_repeated(rest[1:], job), prog=prog, config=(OmitArgPrefixes,))

        def parse() -> Callable[[], int]:
            return partial(verbs[name], of_job())

    else:
        parse = partial(
            cli, _deferred(verbs[name]), args=_join_repeated(rest, verbs[name]), prog=f"arboretum {name}"
        )
    if is_help:
        print_help(lambda: parse()())
    return _parse_in_words(parse)()
