"""The repository: clean text files, one version, a workflow with few rights, and forms that GitHub shows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import arboretum

ROOT = Path(arboretum.__file__).parent
LARGEST = 4 * 2**20  # bytes; the shipped models are smaller
BINARY = {".safetensors", ".png", ".gif", ".gz"}
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
INPUTS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
"""Types of the fields of GitHub's issue forms."""


def load(path: str | Path) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_text_files_end_with_a_line_end_and_have_no_conflict_markers() -> None:
    wrong = []
    for path in tracked_files():
        content = path.read_bytes()
        if path.suffix in BINARY or not content or path.is_relative_to(ROOT / "tests" / "eval" / "stored_runs"):
            continue
        marked = re.search(rb"^(<<<<<<<|>>>>>>>) ", content, re.MULTILINE)
        shipped_model = path.parent.name.startswith("sapling") and path.is_relative_to(ROOT / "assets")
        if marked or b"\r\n" in content or not (content.endswith(b"\n") or shipped_model):
            wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []


def test_no_file_is_large() -> None:
    assert [path.name for path in tracked_files() if path.stat().st_size > LARGEST] == []


def test_names_of_files_are_valid_on_every_system() -> None:
    names = [str(path.relative_to(ROOT)) for path in tracked_files()]
    assert [name for name in names if re.search(r'[<>:"\\|?*]|[ .]$', name)] == []
    assert len({name.lower() for name in names}) == len(names)


# ---------------------------------------------------------------------- version


def test_citation_names_the_version_and_the_holder_of_the_license() -> None:
    citation = load("CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["license"] == "MIT"
    assert citation["version"] == arboretum.__version__
    (author,) = citation["authors"]
    assert f"Copyright (c) 2026 {author['name']}" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_changelog_has_a_section_for_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert arboretum.__version__ in headings[:2] and len(set(headings)) == len(headings)


# ---------------------------------------------------------------------- automation


def test_workflow_has_few_rights_limits_and_pinned_actions() -> None:
    workflow = load(".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", step["uses"]) for step in steps if "uses" in step)
    assert {"run": ".ci/run"} in steps


def test_hooks_run_local_tools_only() -> None:
    hooks = load(".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    for hook in hooks[0]["hooks"]:
        assert hook["entry"].startswith(".venv/bin/python -m ")
        for path in re.findall(r"tests/\w+\.py", hook["entry"]):
            assert (ROOT / path).is_file()


@pytest.mark.parametrize("form", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_issue_form_is_one_that_github_shows(form: Path) -> None:
    content = load(form)
    assert {"name", "description", "body"} <= set(content)
    identities = [field["id"] for field in content["body"]]
    assert len(set(identities)) == len(identities)
    for field in content["body"]:
        assert field["type"] in INPUTS and field["attributes"]["label"]
        assert set(field) <= {"type", "id", "attributes", "validations"}
