"""The public names: they can be imported, importing them is lazy, and the documentation imports no others."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import arboretum

ROOT = Path(arboretum.__file__).parent
PACKAGES = ["arboretum", *(f"arboretum.{room}" for room in ("envs", "agents", "eval", "trainers"))]
PUBLIC_MODULES = ("arboretum.agents.adapters.", "arboretum.trainers.algorithms.")
"""Packages whose modules are public by their path."""

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")])


def imported_names(page: Path) -> list[tuple[str, str]]:
    """Return module and name of everything that the Python code of a page imports from the package."""
    text = page.read_text(encoding="utf-8")
    blocks = [text] if page.suffix == ".py" else re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    found = []
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "arboretum"]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "arboretum":
                found += [(str(node.module), alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_can_be_imported_and_are_listed(package: str) -> None:
    module = import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        found = getattr(module, name)
        assert not isinstance(found, type(module)), f"{package}.{name} is a module"
        assert getattr(found, "__doc__", None), f"{package}.{name} has no docstring"


@pytest.mark.parametrize("package", PACKAGES)
def test_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = import_module(package).no_such_name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documentation_imports_public_names_only(page: Path) -> None:
    private = []
    for module, name in imported_names(page):
        if module in PACKAGES:
            is_public = not name or name in import_module(module).__all__
        else:
            is_public = module.startswith(PUBLIC_MODULES) and not name.startswith("_")
        if not is_public:
            private.append(f"{module}: {name}")
    assert not private, f"{page.name} imports names that are not public: {', '.join(private)}"


def test_rooms_are_imported_without_what_their_names_need() -> None:
    code = (
        "import sys, arboretum.agents, arboretum.eval, arboretum.trainers;"
        "print({'rich', 'yaml', 'jinja2', 'torch', 'sqlite3'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "set()"


def test_star_import_brings_the_functions_of_the_package() -> None:
    names: dict[str, object] = {}
    exec("from arboretum import *", names)
    assert names["train"] is arboretum.train and names["evaluate"] is arboretum.evaluate
