"""Tables of the recipes' pages, generated from the table of recipes into text that is written by hand.

A generated part stands between `<!-- generated: NAME … -->` and `<!-- end: NAME -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...envs.docstrings import markdown_table
from ...envs.errors import DataError
from ...envs.files import write_atomic
from ..algorithms.recipe import Recipe
from ..algorithms.recipes import RECIPES
from ..config.serialize import flatten, to_plain
from .recipe_sources import Sources, abbreviations, recipe_sources

INDEX = "README.md"
PARTS = (
    "sampler",
    "rewards",
    "selector",
    "credit",
    "objective",
    "overlong",
    "grafting",
    "critic",
    "optimization",
)
"""Parts of a recipe, in the order of an update."""

_PAPER = re.compile(r" \(([^()]*(?:arXiv:([\d.]+)|docs/)[^()]*)\)\.$")


def generated_parts() -> Mapping[str, Mapping[str, str]]:
    """Return the generated parts, by the name of the page and the name of the part."""
    pages = {f"{name}.md": {"defaults": _defaults(recipe)} for name, recipe in RECIPES.items()}
    return {INDEX: {"recipes": _index(), "sources": _sources()}, **pages}


def update_recipe_pages(folder: Path) -> list[Path]:
    """Write the generated parts of the pages in a folder again, and return the paths of the pages.

    Raises:
        DataError: A page does not exist, or lacks the marks of a part.
    """
    updated = []
    for name, parts in generated_parts().items():
        path = folder / name
        if not path.exists():
            raise DataError(path, "is missing; every recipe has a page: write it, with the marks of its tables.")
        text = path.read_text(encoding="utf-8")
        for part, content in parts.items():
            text = replace_part(text, part, content, path)
        write_atomic(path, text)
        updated.append(path)
    return updated


def replace_part(page: str, part: str, content: str, path: Path) -> str:
    """Return a page with new content between the marks of a part.

    Args:
        page: Text of the page.
        part: Name of the part.
        content: New content.
        path: File of the page, for errors.

    Raises:
        DataError: The page lacks the marks.
    """
    start, end = f"<!-- generated: {part}", f"<!-- end: {part} -->"
    pattern = re.compile(rf"({re.escape(start)}[^\n]*-->\n).*?({re.escape(end)})", re.DOTALL)
    replaced, count = pattern.subn(lambda match: f"{match[1]}{content}{match[2]}", page)
    if count != 1:
        raise DataError(path, f"must have {start} … --> and {end} once each, around a generated table.")
    return replaced


def _index() -> str:
    """Return the table of all recipes."""
    rows = []
    for name, recipe in RECIPES.items():
        found = _PAPER.search(recipe.about)
        assert found is not None, f"recipe {name}: `about` ends with its source in brackets"
        paper = f"[{found[2]}](https://arxiv.org/abs/{found[2]})" if found[2] else "[GROVE](../grove.md)"
        about = recipe.about[: found.start()]
        parts = [f"`{part.name}`" for part in (recipe.sampler, recipe.selector, recipe.credit)]
        rows.append((f"[`{name}`]({name}.md)", f"{about}.", *parts, _describe_objective(recipe), paper))
    return markdown_table(("recipe", "algorithm", "sampler", "selector", "credit", "objective", "paper"), rows)


def _describe_objective(recipe: Recipe) -> str:
    objective = recipe.objective
    words = [f"`{objective.aggregation}`"]
    if objective.clip_low != objective.clip_high:
        words.append(f"clip {objective.clip_low:g}/{objective.clip_high:g}")
    if objective.kl.coef:
        words.append(f"{objective.kl.estimator} in the {objective.kl.placement}")
    if objective.entropy_coef:
        words.append("entropy")
    if recipe.overlong.coef:
        words.append("overlong penalty")
    return ", ".join([*words, *(f"`{term.name}`" for term in objective.terms)])


def _sources() -> str:
    """Return the table of the abbreviations in the sources of settings."""
    return markdown_table(("source", "publication and code"), abbreviations().items())


def _defaults(recipe: Recipe) -> str:
    """Return the table of the settings that a recipe states, or that differ from the defaults of its parts."""
    rows = list(_rows(recipe, recipe_sources(recipe.name)))
    return markdown_table(("setting", "value", "default of the part", "source"), rows)


def _rows(recipe: Recipe, sources: Sources) -> Iterator[tuple[str, str, str, str]]:
    for part in PARTS:
        value = getattr(recipe, part)
        if value is None:
            continue
        default = flatten(to_plain(type(value)()), part)
        if f"{part}.name" in default and any(path.startswith(f"{part}.") for path in sources):
            yield f"`{part}.name`", _code(default.pop(f"{part}.name")), "", ""
        for path, one in flatten(to_plain(value), part).items():
            if path.endswith(".name"):
                continue
            # A schedule has one comment for its two ends.
            source = sources.get(path) or sources.get(path.rpartition(".")[0], "")
            usual = default.get(path, default.get(path.rpartition(".")[0]))
            if source or one != usual:
                yield f"`{path}`", _code(one), "" if one == usual else _code(usual), source


def _code(value: Any) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
