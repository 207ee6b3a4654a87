"""The language of the package: no retired word in a name or key, and no question in place of a docstring."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from support.source import ROOT, tree_of

FOLDERS = ("envs", "agents", "eval", "trainers", "assets")

RETIRED = {
    "world": "environment",
    "luck": "seed or rng",
    "player": "agent",
    "looks": "validations",
    "causal": "policy or model",
    "descent": "optimization",
    "lesson": "fine-tuning",
    "speech": "dialogue",
    "optimisation": "optimization",
    "slowdown": "ratio",
}
"""Retired words, and the words to use instead; their plurals are retired, too."""

RETIRED_PREFIXES = {"whole": "full", "gathered": "full"}
RETIRED_PHRASES = {"in_pieces": "sharded"}

ALLOWED_NAMES = {"world_size": "the field's term for the number of training processes"}
"""Names that contain a retired word and are right, with the reason."""

ALLOWED_WORDS = {
    ("envs/sokoban", "player"): "the figure on Sokoban's board",
    ("envs/frozenlake", "player"): "the figure on the lake",
}
"""Retired words that are terms of a domain, by folder, with the reason."""


def python_files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted([*found, ROOT / "cli.py", ROOT / "__init__.py"])


def words_of(name: str) -> list[str]:
    """Return the words of a name in snake case, camel case, or with other separators, in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def retired_word(name: str) -> str | None:
    """Return the retired word in a name; None if there is none."""
    words = words_of(name)
    for word in words:
        if word in RETIRED or word.removesuffix("s") in RETIRED:
            return word if word in RETIRED else word.removesuffix("s")
    if len(words) > 1 and words[0] in RETIRED_PREFIXES:
        return words[0]
    return next((phrase for phrase in RETIRED_PHRASES if f"_{phrase}_" in f"_{'_'.join(words)}_"), None)


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module defines and the keys of its mappings."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        elif isinstance(node, (ast.Dict, ast.Subscript)):
            keys = node.keys if isinstance(node, ast.Dict) else [node.slice]
            yield from (key.value for key in keys if is_key(key))


def is_key(node: Any) -> bool:
    """Return True for a string that can be a key in JSON or YAML, rather than a text that is looked up."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value


def keys_in(data: object) -> Iterator[str]:
    """Yield the keys of plain data at every depth."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield str(key)
            yield from keys_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from keys_in(value)


def offenders(path: Path, names: Iterable[str]) -> list[str]:
    """Return the names with a retired word that is not allowed in a file, each with what to say instead."""
    place = path.relative_to(ROOT).as_posix()
    found = []
    for name in sorted(set(names)):
        word = retired_word(name)
        is_term = any(place.startswith(f"{folder}/") and word == term for folder, term in ALLOWED_WORDS)
        if word is not None and name not in ALLOWED_NAMES and not is_term:
            found.append(f"{place}: {name} (say {(RETIRED | RETIRED_PREFIXES | RETIRED_PHRASES)[word]})")
    return found


def test_retired_words_are_found_in_examples() -> None:
    assert retired_word("worlds") == retired_word("WorldSpec") == retired_word("_the_world") == "world"
    assert retired_word("whole_state") == "whole" and retired_word("_gathered_weights") == "gathered"
    assert retired_word("is_in_pieces") == "in_pieces"
    assert [retired_word(name) for name in ("underworld", "whole", "is_whole", "gathered")] == [None] * 4


def test_names_in_modules_use_no_retired_word() -> None:
    names = {path: [path.stem, *names_in(tree_of(path))] for path in python_files()}
    assert [found for path in names for found in offenders(path, names[path])] == []


def packaged_data() -> list[Path]:
    """Return the packaged YAML and JSON files, without the sapling's: a tokenizer's keys are its vocabulary."""
    files = sorted((ROOT / "assets").rglob("*"))
    return [path for path in files if path.suffix in (".yaml", ".json") and path.parent.name != "sapling"]


def test_keys_of_packaged_data_use_no_retired_word() -> None:
    found = []
    for path in packaged_data():
        text = path.read_text(encoding="utf-8")
        keys = keys_in(json.loads(text) if path.suffix == ".json" else yaml.safe_load(text))
        found += offenders(path, keys)
    assert found == []


def test_every_allowance_is_needed() -> None:
    names = {path: set(names_in(tree_of(path))) for path in python_files()}
    assert set().union(*names.values()) >= set(ALLOWED_NAMES)
    for folder, term in ALLOWED_WORDS:
        found = (name for path in names if path.is_relative_to(ROOT / folder) for name in names[path])
        assert any(retired_word(name) == term for name in found), f"{term!r} is not used in {folder}"


# ---------------------------------------------------------------------- docstrings

QUESTIONS = ("What", "Which", "Whether", "How", "Where")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and first line of the docstrings of a module and its public classes and functions."""
    todo: list[tuple[Any, str]] = [(tree, "module")]
    while todo:
        node, name = todo.pop()
        text = ast.get_docstring(node)
        if text:
            yield getattr(node, "lineno", 1), name, text.splitlines()[0]
        for child in node.body:
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and (
                not child.name.startswith("_") or child.name == "__init__"
            ):
                todo.append((child, child.name))


def test_docstrings_begin_with_a_phrase_and_not_with_a_question() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}: {first}"
        for path in python_files()
        for line, name, first in docstrings(tree_of(path))
        if first.split()[0].strip(",:;.") in QUESTIONS
    ]
    assert found == []
