"""`run.json`: the settings of a run, and its copy `.run.json`, which takes its place if it is lost or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from ..envs.errors import DataError
from ..envs.files import write_atomic
from .plain import encode_object

MANIFEST_FILE = "run.json"
MANIFEST_COPY = ".run.json"


class _Identity(TypedDict, total=False):
    server: str
    weights: str
    adapter: str
    options: dict[str, Any]
    settings: dict[str, Any]


class _Sampling(TypedDict):
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    stop: list[str]


class _Dialogue(TypedDict):
    name: str
    history: str
    window: NotRequired[int]
    max_turns: int | None
    max_actions: int | None
    max_actions_per_turn: int


class _Settings(TypedDict):
    dialogue: _Dialogue
    sampling: _Sampling
    examples: int


class _Facts(TypedDict):
    tasks: str
    split: NotRequired[str | None]
    max_steps: NotRequired[int | None]
    max_turns: NotRequired[int | None]


class _Session(TypedDict):
    started: str
    command: NotRequired[str]


class _Manifest(TypedDict):
    """Kinds of the values that summaries and reports use; a version may lack all but the first two."""

    suite: dict[str, Any]
    agents: list[str]
    data: NotRequired[dict[str, str]]
    identities: NotRequired[dict[str, _Identity]]
    settings: NotRequired[dict[str, dict[str, _Settings]]]
    budgets: NotRequired[dict[str, dict[str, dict[str, int]]]]
    uses_success_labels: NotRequired[list[str]]
    uses_simulator: NotRequired[list[str]]
    expected: NotRequired[dict[str, int]]
    tasks: NotRequired[dict[str, str]]
    entries: NotRequired[dict[str, _Facts]]
    sessions: NotRequired[list[_Session]]
    versions: NotRequired[dict[str, str]]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read `run.json` of a run's folder, or its copy if it is missing or damaged.

    Raises:
        DataError: The folder holds no run, or its `run.json` is damaged and there is no copy.
    """
    path, copy = folder / MANIFEST_FILE, folder / MANIFEST_COPY
    if not is_manifest(path) and is_manifest(copy):
        path = copy
    return _read(path)


def is_manifest(path: Path) -> bool:
    """Return True if a file is a whole `run.json` or a copy of one."""
    try:
        _read(path)
    except DataError:
        return False
    return True


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write `run.json` and its copy: without its settings, no episode of a run can be used."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False, default=encode_object) + "\n"
    for name in (MANIFEST_FILE, MANIFEST_COPY):
        write_atomic(folder / name, text)


def _read(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DataError(path.parent, "holds no run (no run.json); give the folder of a run.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"is not JSON ({error}).") from None
    if not isinstance(manifest, dict) or not {"suite", "agents"} <= manifest.keys():
        raise DataError(path, "expected a JSON object with `suite` and `agents`.")
    try:
        msgspec.convert(manifest, _Manifest)
    except msgspec.ValidationError as error:
        raise DataError(path, f"has a value of the wrong kind ({error}).") from None
    return manifest
