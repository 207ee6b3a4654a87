"""Notices of the works that texts and lists in the package follow."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import arboretum

ROOT = Path(arboretum.__file__).parent
NOTICES = (ROOT / "THIRD_PARTY_NOTICES").read_text(encoding="utf-8")


def test_named_files_exist() -> None:
    files = set(re.findall(r"\b(?:assets|envs|agents)/[\w./]*[\w/]", NOTICES))
    assert len(files) >= 8
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_every_work_has_a_license_and_a_copyright_line() -> None:
    works = re.findall(r"^(\S.*) \(((?:MIT |Apache )?License.*)\)\n +Copyright ", NOTICES, re.MULTILINE)
    assert {name for name, _ in works} >= {"ALFWorld", "ALFRED", "TextWorld", "WebShop", "Gymnasium", "PlanBench"}
    assert "Permission is hereby granted, free of charge" in NOTICES


def test_notices_are_part_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license-files"] == ["LICENSE", "THIRD_PARTY_NOTICES"]


@pytest.mark.parametrize(
    "package", ["gymnasium", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("alfworld", "textworld"))]
)
def test_copyright_lines_are_those_of_the_installed_packages(package: str) -> None:
    pytest.importorskip(package, reason=f"needs {package}: pip install 'arboretum-rl[peers]'")
    files = [file for file in metadata.files(package) or [] if "dist-info" in str(file) and "LICENSE" in file.name]
    lines = [line.strip() for file in files for line in file.read_text().splitlines()]
    copyright_lines = [line for line in lines if line.startswith("Copyright")]
    assert copyright_lines and all(line in NOTICES for line in copyright_lines)
