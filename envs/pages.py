"""Documentation pages of the environments, generated from their class docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from gymnasium.envs.registration import load_env_creator, registry

from .core import TextEnv
from .registry import EnvSpec

_NOTE = "<!-- Generated from the class docstring by `make docs`. -->"
_TABLE_HEAD = "| id | description |\n|---|---|\n"


def pages(specs: Iterable[EnvSpec]) -> Iterator[tuple[str, str]]:
    """Yield the file name and the Markdown of one page per environment class, then of the index page.

    Args:
        specs: Registered environments; those that share a class share a page.
    """
    specs_by_class: dict[str, list[EnvSpec]] = {}
    for spec in specs:
        specs_by_class.setdefault(spec.cls, []).append(spec)
    index_rows = []
    for cls, class_specs in specs_by_class.items():
        entry_point = registry[class_specs[0].id].entry_point
        assert isinstance(entry_point, str)
        text = inspect.getdoc(load_env_creator(entry_point)) or ""
        rows = "\n".join(f"| `{spec.id}` | {spec.summary} |" for spec in class_specs)
        name = f"{class_specs[0].module}.md"
        yield name, f"{_NOTE}\n# {cls}\n\n{_TABLE_HEAD}{rows}\n\n{text}\n"
        index_rows += [f"| [`{spec.id}`]({name}) | {spec.summary} |" for spec in class_specs]
    index = _TABLE_HEAD + "\n".join(index_rows)
    interface = inspect.getdoc(TextEnv) or ""
    yield "README.md", f"{_NOTE}\n# Environments\n\n{index}\n\n# Common interface: `TextEnv`\n\n{interface}\n"


def write_pages(folder: Path, specs: Iterable[EnvSpec]) -> list[Path]:
    """Write the pages into a folder, which is created if needed, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages(specs):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written
