"""Reference pages of the public classes and functions, generated from their signatures and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

from ...envs.docstrings import markdown_table

_PACKAGE = __name__.split(".")[0]
_SECTION = re.compile(r"(Args|Attributes|Class attributes|Raises|Returns|Yields):")
_ENTRY = re.compile(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): (.*)")
_PROSE_SECTIONS = ("Returns", "Yields")
_LONGEST_SIGNATURE = 100


class Page(NamedTuple):
    """Page of the reference of classes and functions.

    Attributes:
        file: Name of the file.
        title: Title of the page.
        names: Public names by the module that they are imported from, in order.
    """

    file: str
    title: str
    names: dict[str, Sequence[str]]


API_PAGES = (
    Page(
        "api-envs.md",
        "Python: environments",
        {
            "envs": ("TextEnv", "Outcome", "Optimum", "Snapshot", "ConfigurationError", "DataError"),
            "envs.registry": ("make_env", "EnvSpec"),
            "envs.tools": ("Tool", "Parameter"),
            "envs.seeding": ("stable_seed",),
        },
    ),
    Page(
        "api-agents.md",
        "Python: agents, dialogues and engines",
        {
            "agents.base": ("Agent", "Seat", "Reply", "Stop"),
            "agents.reference": ("RandomAgent", "ExpertAgent"),
            "agents.registry": ("make_agent",),
            "agents.play": ("play", "Job"),
            "agents.forks": ("Origin", "Fork"),
            "agents.episode": ("Episode", "Turn", "Move"),
            "agents.episode_chat": ("EpisodeChat", "Heard"),
            "agents.dialogue": ("make_dialogue", "Dialogue", "Parsed"),
            "agents.engines.registry": ("make_engine",),
            "agents.engines.base": ("Engine", "Request", "Message", "Sampling", "Completion", "Usage"),
        },
    ),
    Page(
        "api-eval.md",
        "Python: evaluation",
        {
            "": ("evaluate",),
            "eval.api": ("Evaluation",),
            "eval.summary": ("Summary", "Line"),
            "eval.statistics": ("Interval", "wilson", "rate", "paired", "Paired"),
            "eval.suite": ("load_suite", "suite_of", "Suite", "Entry"),
            "eval.run_index": ("open_index",),
            "eval.episode_filter": ("EpisodeFilter",),
            "eval.store": ("read_episode",),
            "eval.decisions": ("label_episode", "EpisodeDecisions", "Decision"),
        },
    ),
    Page(
        "api-trainers.md",
        "Python: training",
        {
            "": ("train",),
            "trainers.reporting.result": ("TrainingResult", "Validation"),
            "trainers.algorithms.recipes": ("get_recipe",),
            "trainers.algorithms.recipe": ("Recipe", "Optimization", "Critic"),
            "trainers.algorithms.samplers": ("Sampler", "Chains", "Trees"),
            "trainers.algorithms.selectors": ("Selector", "Selection"),
            "trainers.algorithms.rewards": ("Rewards",),
            "trainers.algorithms.credit.base": ("Credit", "Advantages", "PolicyProbe"),
            "trainers.algorithms.objectives.settings": ("Objective", "Kl"),
            "trainers.algorithms.objectives.term": ("Term", "PairTerm"),
            "trainers.data.rollouts": ("Rollouts",),
            "trainers.data.segments": ("discounted_sums", "group_statistics", "GroupStatistics"),
        },
    ),
)

_DESCRIBED = {name for page in API_PAGES for names in page.names.values() for name in names}


def api_page(page: Page) -> str:
    """Return the text of a page below its title: a table of the names, then each with its members."""
    rows: list[tuple[str, str, str]] = []
    sections = []
    anchors: dict[str, int] = {}
    for module, names in page.names.items():
        path = ".".join(part for part in (_PACKAGE, module) if part)
        for name in names:
            value = getattr(import_module(path), name)
            doc = inspect.cleandoc(value.__doc__ or "")
            repeat = anchors[name.lower()] = anchors.get(name.lower(), -1) + 1
            anchor = f"{name.lower()}-{repeat}" if repeat else name.lower()  # as GitHub makes them
            rows.append((f"[`{name}`](#{anchor})", f"`{path}`", doc.partition("\n\n")[0].replace("\n", " ")))
            sections += [f"## `{name}`\n", _block(_signature(f"{path}.{name}", value)), markdown_of(doc)]
            if inspect.isclass(value):
                sections += [*_attribute_list(value), *_member_sections(name, value)]
    return markdown_table(("name", "module", "description"), rows) + "\n" + "\n".join(sections)


def _attribute_list(cls: type) -> Iterator[str]:
    """Yield the list of attributes that have a docstring of their own below them."""
    node = _node(cls)
    assert isinstance(node, ast.ClassDef)
    lines = []
    for part, below in pairwise(node.body):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if is_text and isinstance(part, (ast.AnnAssign, ast.Assign)):
            name = ast.unparse(part.target if isinstance(part, ast.AnnAssign) else part.targets[0])
            text = inspect.cleandoc(ast.literal_eval(below.value)).replace("\n\n", "\n")  # type: ignore[attr-defined]
            lines += [f"* `{name}`: {text}".replace("\n", "\n  ")] if not name.startswith("_") else []
    if lines:
        yield "**Attributes**\n\n" + "\n".join(lines) + "\n"


def _member_sections(name: str, cls: type) -> Iterator[str]:
    for member, value in _members(cls):
        is_property = isinstance(value, property)
        function: Any = value.fget if isinstance(value, property) else inspect.unwrap(_function(value))
        yield f"### `{name}.{member}`\n"
        yield _block([*(["@property"] if is_property else []), *_header(function, member)])
        yield markdown_of(inspect.cleandoc(value.__doc__ or ""))


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties of a class, and those of bases that no page describes."""
    seen = set()
    for base in cls.__mro__:
        if base.__module__.split(".")[0] != _PACKAGE or (base is not cls and base.__name__ in _DESCRIBED):
            continue
        for name, value in vars(base).items():
            is_member = isinstance(value, property) or inspect.isfunction(_function(value))
            if is_member and value.__doc__ and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _function(member: Any) -> Any:
    return member.__func__ if isinstance(member, (classmethod, staticmethod)) else member


def _block(lines: Sequence[str]) -> str:
    return "```py\n" + "\n".join(lines) + "\n```\n"


# ---------------------------------------------------------------------- signatures


def _node(value: Any) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _signature(name: str, value: Any) -> list[str]:
    """Return the lines of a signature as it is in the source: fields of a dataclass, else parameters."""
    node = _node(value)
    if not isinstance(node, ast.ClassDef):
        return _header(value, name)
    internal = {
        base.__name__
        for base in value.__bases__
        if base.__module__.split(".")[0] == _PACKAGE and base.__name__ not in _DESCRIBED
    }
    bases = ", ".join(ast.unparse(base) for base in node.bases if ast.unparse(base) not in internal)
    head = f"class {name}({bases})" if bases else f"class {name}"
    init = vars(value).get("__init__")
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        body = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
        body = [field for field in body if not field.startswith("_")]
    else:
        body = _header(init, "__init__") if inspect.isfunction(init) else []
    return [f"{head}:", *(f"    {line}" for line in body)] if body else [head]


def _header(function: Any, name: str) -> list[str]:
    """Return the lines of a function's first statement, one line per parameter if it is long."""
    node = _node(function)
    assert isinstance(node, ast.FunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    parameters = list(_parameters(node.args))
    line = f"def {name}({', '.join(parameters)}){returns}"
    if len(line) <= _LONGEST_SIGNATURE:
        return [line]
    return [f"def {name}(", *(f"    {parameter}," for parameter in parameters), f"){returns}"]


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    """Yield the parameters of a function one by one, with annotations and defaults."""
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    for index, one in enumerate(positional):
        yield _parameter(one, arguments.defaults[index - required] if index >= required else None)
        if index + 1 == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(one, default)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(one)
    return f"{ast.unparse(one)}{' = ' if one.annotation else '='}{ast.unparse(default)}"


# ---------------------------------------------------------------------- docstrings


def markdown_of(docstring: str) -> str:
    """Return a docstring, which is Markdown with sections such as `Args:`, as Markdown alone.

    Entries of a section become a list, other sections a paragraph, and headings one level lower.
    """
    lines = docstring.splitlines()
    written: list[str] = []
    index = 0
    while index < len(lines):
        section = _SECTION.fullmatch(lines[index])
        indented = index + 1
        while indented < len(lines) and (not lines[indented] or lines[indented].startswith("    ")):
            indented += 1
        if section and indented > index + 1:
            body = textwrap.dedent("\n".join(lines[index + 1 : indented])).strip()
            written += [f"**{section[1]}**", "", *_section_lines(section[1], body), ""]
            index = indented
        elif lines[index].startswith("    >>> "):
            example = textwrap.dedent("\n".join(lines[index:indented])).strip()
            written += ["```pycon", *example.splitlines(), "```", ""]
            index = indented
        else:
            written.append(re.sub(r"^#", "##", lines[index]))
            index += 1
    return "\n".join(written).rstrip() + "\n"


def _section_lines(title: str, body: str) -> Iterator[str]:
    """Yield the lines of a section: entries as a list whose items may have several lines."""
    for line in body.splitlines():
        entry = _ENTRY.fullmatch(line)
        if title in _PROSE_SECTIONS:
            yield line
        elif entry:
            yield f"* {', '.join(f'`{name}`' for name in entry[1].split(', '))}: {entry[2]}"
        else:
            yield re.sub("^    ", "  ", line)
