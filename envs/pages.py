"""Documentation pages of the environments, generated from their class docstrings, with pictures and baselines."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gymnasium.envs.registration import load_env_creator, registry

from .baselines import Baseline, baselines_section, read_baselines
from .core import TextEnv
from .files import write_atomic
from .illustrations import SCENES, draw
from .registry import EnvSpec

_NOTE = "<!-- Generated from the class docstring by `make docs`. -->"
_AFTER_BASELINES = "\n## Source\n"
"""Heading that the baselines precede, if a docstring has it."""
_TABLE_HEAD = "| id | description |\n|---|---|\n"


def pages(specs: Iterable[EnvSpec], baselines: Sequence[Baseline] = ()) -> Iterator[tuple[str, str]]:
    """Yield the file name and the Markdown of one page per environment class, then of the index page.

    Args:
        specs: Registered environments; those that share a class share a page.
        baselines: Measured baselines.
    """
    index_rows = []
    classes = by_class(specs)
    classes_of = Counter(first.module for first, *_ in classes)
    for class_specs in classes:
        entry_point = registry[class_specs[0].id].entry_point
        assert isinstance(entry_point, str)
        text = inspect.getdoc(load_env_creator(entry_point)) or ""
        section = baselines_section([spec.id for spec in class_specs], baselines)
        if section:
            before, source, after = text.partition(_AFTER_BASELINES)
            text = f"{before.rstrip()}\n\n{section}{source}{after}"
        rows = "\n".join(f"| `{spec.id}` | {spec.summary} |" for spec in class_specs)
        first = class_specs[0]
        scene = SCENES.get(first.module)
        picture = f"![{scene.describe(first.id)}](pictures/{scene.file_name(first.module)})\n\n" if scene else ""
        name = f"{first.module if classes_of[first.module] == 1 else f'{first.module}.{first.cls}'}.md"
        yield name, f"{_NOTE}\n# {first.cls}\n\n{_TABLE_HEAD}{rows}\n\n{picture}{text}\n"
        index_rows += [f"| [`{spec.id}`]({name}) | {spec.summary} |" for spec in class_specs]
    index = _TABLE_HEAD + "\n".join(index_rows)
    interface = (inspect.getdoc(TextEnv) or "").replace("\n## ", "\n### ")
    yield "README.md", f"{_NOTE}\n# Environments\n\n{index}\n\n## Common interface: `TextEnv`\n\n{interface}\n"


def by_class(specs: Iterable[EnvSpec]) -> list[list[EnvSpec]]:
    """Return the environments that share a class, and so a page, in the order of their first ones."""
    specs_by_class: dict[tuple[str, str], list[EnvSpec]] = {}
    for spec in specs:
        specs_by_class.setdefault((spec.module, spec.cls), []).append(spec)
    return list(specs_by_class.values())


def write_pages(folder: Path, specs: Iterable[EnvSpec]) -> list[Path]:
    """Write the pages and their pictures into a folder, which is created if needed, and return their paths.

    Args:
        folder: Folder of the pages, with the file of baselines if there are any.
        specs: Registered environments.
    """
    specs = list(specs)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    files: dict[str, str | bytes] = dict(pages(specs, read_baselines(folder)))
    for first, *_ in by_class(specs):
        scene = SCENES.get(first.module)
        if scene:
            files[f"pictures/{scene.file_name(first.module)}"] = draw(first.id, scene)
    for name, content in files.items():
        write_atomic(folder / name, content)
    return [folder / name for name in files]
