"""Fields of classes with their types, defaults and meanings, and tables of them in Markdown."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

_SECTIONS = ("Attributes:", "Args:")
_ENTRY = re.compile(r"    ([*\w]+(?:, [*\w]+)*): (.*)")
_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
REQUIRED = "required"
"""Default of a field that has none."""


class Field(NamedTuple):
    """Documented field of a class.

    Attributes:
        name: Name of the field.
        kind: Type in words, such as "number or null".
        default: Default as YAML, or `REQUIRED`.
        meaning: Description from the docstring; "" if there is none.
    """

    name: str
    kind: str
    default: str
    meaning: str


def meanings(cls: type) -> dict[str, str]:
    """Return the entries of the sections `Attributes` and `Args` in the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(inspect.getmro(cls)):
        found |= _entries(vars(base).get("__doc__") or "")
    return found


def _entries(docstring: str) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in inspect.cleandoc(docstring).splitlines():
        entry = _ENTRY.match(line)
        if line in _SECTIONS:
            inside = True
        elif inside and entry:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif inside and line.startswith("        ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        elif line and not line.startswith(" "):
            inside = False
    return found


def fields_of(cls: Any) -> list[Field]:
    """Return the fields of a dataclass or named tuple that its constructor takes, in order."""
    hints = get_type_hints(cls)
    texts = meanings(cls)
    if not dataclasses.is_dataclass(cls):
        defaults = cls._field_defaults
        return [
            Field(name, type_words(hints[name]), _default(defaults.get(name, REQUIRED)), texts.get(name, ""))
            for name in cls._fields
        ]
    found = []
    for field in dataclasses.fields(cls):
        default: Any = REQUIRED
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.init:
            meaning = texts.get(field.name, "")
            found.append(Field(field.name, type_words(hints[field.name]), _default(default), meaning))
    return found


def parameters_of(cls: type, *, without: Iterable[str] = ()) -> list[Field]:
    """Return the parameters of a class's constructor, and of those of its bases that it forwards (`**options`)."""
    texts, skipped = meanings(cls), set(without)
    found: dict[str, Field] = {}
    for base in inspect.getmro(cls):
        if "__init__" not in vars(base) or base is object:
            continue
        _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        for one in parameters:
            if one.kind is not one.VAR_KEYWORD and one.name not in {*found, *skipped}:
                default = REQUIRED if one.default is one.empty else one.default
                kind = _annotation_words(str(one.annotation))
                found[one.name] = Field(one.name, kind, _default(default), texts.get(one.name, ""))
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return list(found.values())


def _annotation_words(annotation: str) -> str:
    """Return the words for an annotation that cannot be evaluated, because it names optional packages."""
    words = {"str": "text", "Path": "path", "int": "integer", "float": "number", "bool": "true or false"}
    parts = [part.partition("[")[0].strip() for part in annotation.split(" | ")]
    named = [words.get(part, "mapping" if part == "Mapping" else "") for part in parts if part != "None"]
    known = list(dict.fromkeys(word for word in named if word))
    return " or ".join([*known, *(["null"] if "None" in parts else [])]) or "object"


def type_words(hint: Any) -> str:
    """Return a type in words, such as "integer or null"."""
    origin, inner = get_origin(hint), get_args(hint)
    simple: dict[Any, str] = {
        int: "integer",
        float: "number",
        str: "text",
        bool: "true or false",
        Path: "path",
        NoneType: "null",
    }
    if hint in simple:
        return simple[hint]
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_words(one) for one in inner))
    if origin in (tuple, list) or (inspect.isclass(origin) and issubclass(origin, Sequence)):
        return f"list of {type_words(inner[0])}" if inner else "list"
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        return "settings"
    return "mapping" if origin is not None or hint is dict else "value"


def _default(value: Any) -> str:
    if value is REQUIRED:
        return str(REQUIRED)
    if dataclasses.is_dataclass(value):
        return "see below"
    if isinstance(value, (tuple, list)):
        return json.dumps(list(value), ensure_ascii=False)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text or '""'


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines) + "\n"


def fields_table(fields: Iterable[Field], prefix: str = "", heading: str = "setting") -> str:
    """Return the table of fields.

    Args:
        fields: The fields.
        prefix: Text before each name, such as "sampler.".
        heading: Heading of the names.
    """
    rows = [(f"`{prefix}{f.name}`", f.kind, f"`{f.default}`", in_yaml(f.meaning)) for f in fields]
    return markdown_table((heading, "type", "default", "meaning"), rows)


def in_yaml(text: str) -> str:
    """Return a description with the constants of Python as those of YAML."""
    return re.sub(r"\b(None|True|False)\b", lambda match: f"`{_CONSTANTS[match[1]]}`", text)


def summary_of(cls: type) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
