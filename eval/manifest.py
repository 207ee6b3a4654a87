"""`run.json`: the settings of a run, and its copy `.run.json`, which takes its place if it is lost or damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from ..envs.errors import ConfigurationError, DataError
from ..envs.files import write_atomic
from ..envs.type_words import in_words
from .index_reader import EPISODES_FILE
from .plain import encode_object

MANIFEST_FILE = "run.json"
MANIFEST_COPY = ".run.json"
STUDY_FILE = "study.json"
"""Definition of a study of `arboretum study`, in its folder."""

BY_TASK = "by task"
"""Step limit in `entries` of an environment whose tasks have limits of their own."""

SCHEMA = 2
"""Version of the files of a run, in `schema` of `run.json`.

1: runs without a version.
2: `schema` itself; broken episodes have `trace`; the mappings and lists that older runs lack are there.
"""


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
    max_steps: NotRequired[int | str | None]
    max_turns: NotRequired[int | None]
    live: NotRequired[bool]
    replaced: NotRequired[str]
    missing: NotRequired[list[str]]


class _Session(TypedDict):
    started: str
    command: NotRequired[str]
    versions: NotRequired[dict[str, str]]


class _Manifest(TypedDict):
    """Kinds of the values that summaries and reports use; a version may lack all but the first two."""

    suite: dict[str, Any]
    agents: list[str]
    schema: NotRequired[int]
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
    """Read `run.json` of a run's folder, or its copy if it is missing or damaged, in today's schema.

    Raises:
        DataError: The folder holds no run, its `run.json` is damaged and there is no copy, or a newer version of
            Arboretum wrote it.
    """
    path, copy = folder / MANIFEST_FILE, folder / MANIFEST_COPY
    if not is_manifest(path) and is_manifest(copy):
        path = copy
    manifest = _read(path)
    version = manifest.get("schema", 1)
    if version > SCHEMA:
        raise DataError(
            path,
            f"has schema {version}, of a newer version of Arboretum, and this one reads schemas up to {SCHEMA};"
            " update Arboretum.",
        )
    for migrate in _MIGRATIONS[version - 1 :]:
        manifest = migrate(manifest)
    return manifest


def _to_2(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of schema 1 in schema 2.

    `data` and `identities` stay absent where they are: a run without them cannot be resumed, since nothing tells
    whether it was started on the same data with the same agents.
    """
    empty: dict[str, Any] = {
        name: {} for name in ("settings", "budgets", "expected", "tasks", "entries", "versions")
    }
    empty |= {name: [] for name in ("uses_success_labels", "uses_simulator", "sessions")}
    return {"schema": 2, **empty, **{name: value for name, value in manifest.items() if name != "schema"}}


_MIGRATIONS = (_to_2,)
"""Migration from each schema to the next, from schema 1 on."""


def is_manifest(path: Path) -> bool:
    """Return True if a file is a whole `run.json` or a copy of one."""
    try:
        _read(path)
    except DataError:
        return False
    return True


SUMMARY_FILE = "summary.json"
RESULT_FILES = (SUMMARY_FILE, "report.html", "decisions.jsonl")
"""Files of an evaluation that are made of its episodes."""


def is_training(folder: Path) -> bool:
    """Return True if a folder holds a run of `arboretum train` or `arboretum sft`, told by its settings."""
    try:
        settings = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(settings, dict) and ("recipe" in settings or "sft" in settings)


def check_is_evaluation(folder: Path, command: str) -> None:
    """Raise if a folder holds a training run; see `is_training`.

    Args:
        folder: Folder of a run.
        command: Name of the command that needs an evaluation run.

    Raises:
        ConfigurationError: It holds a training run.
    """
    if is_training(folder):
        raise ConfigurationError(
            f"{folder}: is a training run; `arboretum {command}` takes evaluation runs, such as `arboretum eval`"
            " makes."
        )


def check_holds_no_run(folder: Path) -> None:
    """Raise if a folder holds a run, whose summary and report a study would replace.

    Raises:
        ConfigurationError: It holds a run of `arboretum eval`, `train` or `sft`.
    """
    if (folder / MANIFEST_FILE).exists():
        raise ConfigurationError(f"{folder}: holds a run, not a study; choose another --out.")


def check_replaces_nothing(folder: Path, names: Sequence[str]) -> None:
    """Raise if a folder without a run holds files of somebody else that a run would replace.

    Args:
        folder: Folder without `run.json`.
        names: Names of the files that the run would write.

    Raises:
        ConfigurationError: It holds one of them.
    """
    for name in names:
        if (folder / name).exists():
            raise ConfigurationError(f"{folder}: holds {name}, which belongs to no run; choose another --out.")


def check_keeps_results(folder: Path) -> None:
    """Raise if the results of a run were kept without its episodes, so that new ones of no episode replace them.

    Args:
        folder: Folder of a run.

    Raises:
        ConfigurationError: It has a summary of some episodes, and no episodes.
    """
    if (folder / EPISODES_FILE).exists():
        return
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return
    if isinstance(summary, dict) and summary.get("episodes"):
        raise ConfigurationError(
            f"{folder}: holds results whose episodes were not kept, so that they cannot be made again; bring back"
            f" {EPISODES_FILE}, or choose another folder."
        )


def check_holds_no_study(folder: Path) -> None:
    """Raise if a folder holds a study, whose summary and report a run would replace.

    Raises:
        ConfigurationError: It holds a study.
    """
    if (folder / STUDY_FILE).exists():
        raise ConfigurationError(f"{folder}: holds a study; choose another --out.")


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write `run.json` and its copy: without its settings, no episode of a run can be used."""
    text = json.dumps({"schema": SCHEMA, **manifest}, indent=2, ensure_ascii=False, default=encode_object) + "\n"
    content = text.encode("utf-8", "backslashreplace")  # A command may have lone surrogates: JSON's escape.
    for name in (MANIFEST_FILE, MANIFEST_COPY):
        write_atomic(folder / name, content)


def _read(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DataError(path.parent, "holds no run (no run.json); give the folder of a run.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"is not JSON ({error}).") from None
    if isinstance(manifest, dict) and "sft" in manifest:
        raise DataError(path.parent, "holds a run of `arboretum sft`, and none of an evaluation.")
    if not isinstance(manifest, dict) or not {"suite", "agents"} <= manifest.keys():
        raise DataError(path, "expected a JSON object with `suite` and `agents`.")
    try:
        msgspec.convert(manifest, _Manifest)
    except msgspec.ValidationError as error:
        raise DataError(path, f"has a value of the wrong kind ({in_words(error)}).") from None
    if manifest.get("schema", 1) < 1:
        raise DataError(path, f"has the schema {manifest['schema']}; schemas begin with 1.")
    return manifest
