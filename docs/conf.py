"""Sphinx configuration of the documentation site, which `make docs` builds from the pages of this folder."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _version() -> str:
    """Return the package's version without importing the package, which the build of the pages does not need."""
    for node in ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise ValueError("__init__.py defines no __version__.")


project = "Arboretum"
author = "the Arboretum maintainers"
copyright = f"2026, {author}"
release = version = _version()

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4  # the anchors that GitHub gives to headings, so that links work in both places
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_space = False  # as on GitHub: "$ make demo" is no formula
myst_dmath_allow_digits = False
myst_disable_syntax = ["myst_role", "myst_target"]
nitpicky = True

html_theme = "furo"
html_title = f"Arboretum {version}"
html_static_path = ["_static"]
html_css_files = ["arboretum.css"]
html_copy_source = False
html_show_sphinx = False
html_use_index = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "tango"
pygments_dark_style = "github-dark"
