"""The worlds' documentation pages, made from their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from gymnasium.envs.registration import load_env_creator, registry

from .registry import EnvSpec

_NOTE = "<!-- Made from the class's docstring by `make docs`. -->"


def pages(specs: Iterable[EnvSpec]) -> Iterator[tuple[str, str]]:
    """`(file name, Markdown)` for each world class, and for the index of all of them."""
    by_class: dict[str, list[EnvSpec]] = {}
    for spec in specs:
        by_class.setdefault(spec.cls, []).append(spec)
    rows = []
    for cls, ids in by_class.items():
        entry_point = registry[ids[0].id].entry_point
        assert isinstance(entry_point, str)
        text = inspect.getdoc(load_env_creator(entry_point)) or ""
        listed = "\n".join(f"| `{spec.id}` | {spec.summary} |" for spec in ids)
        name = f"{ids[0].module}.md"
        yield name, f"{_NOTE}\n# {cls}\n\n| id | what |\n|---|---|\n{listed}\n\n{text}\n"
        rows += [f"| [`{spec.id}`]({name}) | {spec.summary} |" for spec in ids]
    yield "README.md", f"{_NOTE}\n# Worlds\n\n| id | what |\n|---|---|\n" + "\n".join(rows) + "\n"


def write_pages(folder: Path, specs: Iterable[EnvSpec]) -> list[Path]:
    """Write the pages into a folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages(specs):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written
