"""Folder of a run: its settings in `run.json`, and the right to write into it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from ...envs.checks import first_difference
from ...envs.errors import ConfigurationError, DataError
from ...envs.files import LOCK_FILE, folder_failure, lock_run_folder, shown_path, write_atomic
from ...envs.plugins import CannotImport
from ...eval.manifest import check_holds_no_study, check_replaces_nothing
from ..config.resolve import resolve_validation, started_with_another
from ..config.run import SFTConfig, TrainingConfig
from ..config.serialize import from_plain, to_plain
from ..config.task_data import CODE, DATA, check_data, describe_code, describe_run_data, edited_since, trained_envs
from .store import METRICS_FILE as METRICS_FILE
from .store import Checkpoints

ConfigT = TypeVar("ConfigT", TrainingConfig, SFTConfig)

SETTINGS_FILE = "run.json"
CHECKPOINTS_FOLDER = "checkpoints"
MODEL_FOLDER = "model"
"""Names within the folder of a run: of its settings, the metrics of its updates, its checkpoints and the model."""
WRITTEN_FILES = {
    TrainingConfig: (METRICS_FILE, "report.html", "samples.jsonl", "trees.jsonl"),
    SFTConfig: (METRICS_FILE,),
}
"""Files that a run of each kind writes beside them."""

_FIXED = {
    TrainingConfig: ("recipe", "env", "mixture", "model", "seed", "dialogue", "validation", "hardware"),
    SFTConfig: ("env", "model", "seed", "dialogue", "hardware", "expert", "sft"),
}
"""Settings that must not change when a run is resumed; see `_fixed_part` for the exceptions below them."""


def is_main() -> bool:
    """Return True in the process that prints; known before Accelerate is loaded, from its launcher's variable."""
    return os.environ.get("RANK", "0") == "0"


def check_run_folder(config: TrainingConfig | SFTConfig, *, resume: bool) -> None:
    """Raise if the folder of a run holds another run.

    Args:
        config: Configuration of the run.
        resume: Continue the run in the folder, which must have been started with the same settings.

    Raises:
        ConfigurationError: The folder holds another run, or this one and `resume` is False; or the run has made
            more updates than it is to make.
        DataError: The settings in the folder cannot be read.
    """
    folder, settings = config.out, to_plain(config)
    stored = read_run_settings(folder)
    has_checkpoints = Checkpoints(folder / CHECKPOINTS_FOLDER).last is not None
    has_results = has_checkpoints or (folder / MODEL_FOLDER).exists()
    if has_results and stored is None and not has_checkpoints:
        raise ConfigurationError(f"{folder}: holds a model that belongs to no run; choose another --out.")
    if stored is None:
        check_holds_no_study(folder)
        if not (has_results or resume):
            check_replaces_nothing(folder, WRITTEN_FILES[type(config)])
    elif not {"recipe", "sft"} & stored.keys():
        raise ConfigurationError(f"{folder}: holds an evaluation run; choose another --out.")
    if (has_results or resume) and stored is not None and ("recipe" in stored) != ("recipe" in settings):
        raise ConfigurationError(f"{folder}: holds another kind of run; choose another --out.")
    if has_results and not resume:
        raise ConfigurationError(
            f"{folder}: holds a run; continue it with --resume {quote(str(folder))} (in Python resume=), or"
            " choose another --out."
        )
    if resume and isinstance(config, TrainingConfig):
        made = Checkpoints(folder / CHECKPOINTS_FOLDER).index.last or 0
        planned = config.recipe.optimization.updates
        if made > planned:
            raise ConfigurationError(
                f"{folder}: has made {made} updates, more than optimization.updates={planned}; set it to {made} or"
                " more, or leave it out."
            )
    # Without stored settings those of the caller are taken; see `read_run_settings`.
    if resume and stored is not None:
        for name in _FIXED[type(config)]:
            before, now = _fixed_part(name, stored.get(name)), _fixed_part(name, settings.get(name))
            difference = first_difference(before, now)
            if name in ("env", "mixture"):
                difference = _environment_difference(before, now) or difference
            if difference is not None:
                raise started_with_another(name, difference, folder)


def claim_run_folder(config: TrainingConfig | SFTConfig, *, resume: bool) -> None:
    """Write the settings of a run into its folder, unless the folder holds another run; see `check_run_folder`.

    Args:
        config: Configuration of the run.
        resume: Continue the run in the folder.

    Raises:
        ConfigurationError: See `check_run_folder`; the run was started on other data; or the folder cannot be
            written to.
        DataError: The settings in the folder cannot be read.
    """
    check_run_folder(config, resume=resume)
    folder, settings = config.out, _plain_settings(config)
    stored = read_run_settings(folder)
    code = stored.get(CODE, {}) if resume and stored is not None else {}
    now = describe_code(trained_envs(config))
    if not resume or stored is None:
        data = describe_run_data(config)
    elif data := stored.get(DATA, {}):  # Runs of older versions have none.
        check_data(folder, data, describe_run_data(config), edited_since([{CODE: code}], now))
    if Checkpoints(folder / CHECKPOINTS_FOLDER).last is None:  # The run starts anew; otherwise see `record_code`.
        code = {name: [digest] for name, digest in now.items()}
    settings |= {name: value for name, value in ((DATA, data), (CODE, code)) if value}
    if stored == settings:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / SETTINGS_FILE, _as_json(settings))
    except OSError as error:
        raise folder_failure(error, folder) from None


def record_code(config: TrainingConfig | SFTConfig) -> None:
    """Add the digests of the environments' code to the settings of a resumed run, before it makes further updates.

    Args:
        config: Configuration of the run, whose folder was claimed.
    """
    settings = read_run_settings(config.out) or {}
    before, now = settings.get(CODE, {}), describe_code(trained_envs(config))
    code = {
        name: [*known, digest] if (known := before.get(name, []))[-1:] != [digest] else known
        for name, digest in now.items()
    }
    if code != before:
        write_atomic(config.out / SETTINGS_FILE, _as_json({**settings, CODE: code}))


@contextmanager
def undo_if_refused(config: TrainingConfig | SFTConfig) -> Iterator[None]:
    """Context of the start of a run, which restores the settings in its folder if the start is refused.

    A `ConfigurationError` refuses it. Folders that were new, and are empty without the settings, are removed. Only
    the main process of several restores anything, and nothing is touched that another run has written meanwhile.
    """
    folder, settings = config.out, config.out / SETTINGS_FILE
    before = settings.read_bytes() if settings.is_file() else None
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except ConfigurationError:
        with suppress(OSError, DataError):  # The reason of the refusal is reported in any case.
            is_ours = _configuration(read_run_settings(folder)) == _plain_settings(config)
            if is_main() and is_ours and before is not None:
                write_atomic(settings, before)
            elif is_main() and is_ours and Checkpoints(folder / CHECKPOINTS_FOLDER).last is None:
                settings.unlink()
                for path in new:
                    path.rmdir()
        raise


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Context in which no other process may write the run in a folder. A new folder that stays empty is removed.

    Of the processes of one run only the main one takes the folder. If it dies, the operating system frees it. The
    lock's file stays: of two processes that lock the same path, one before and one after the file is deleted, both
    would hold their lock.

    Raises:
        ConfigurationError: Another process is writing the run, or the folder cannot be written to.
    """
    if not is_main():
        yield
        return
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        lock = lock_run_folder(folder)
        try:
            yield
        finally:
            with suppress(OSError):  # Windows keeps a file that is open.
                if new and [path.name for path in folder.iterdir()] == [LOCK_FILE]:
                    (folder / LOCK_FILE).unlink()
            lock.release()
    finally:
        with suppress(OSError):  # They hold something.
            for path in new:
                path.rmdir()


def _plain_settings(config: TrainingConfig | SFTConfig) -> dict[str, Any]:
    """Return the settings of a run for its folder, which may be given to others."""
    return {**to_plain(config), "out": str(shown_path(config.out))}


def _configuration(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the part of stored settings that is the configuration of the run."""
    return {name: value for name, value in (settings or {}).items() if name not in (DATA, CODE)}


def _as_json(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2) + "\n"


def read_run_settings(folder: Path) -> dict[str, Any] | None:
    """Return the settings of the run in a folder as plain data; None if the folder holds none.

    Raises:
        ConfigurationError: The folder is a file, or below one.
        DataError: They cannot be read.
    """
    path = folder / SETTINGS_FILE
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise folder_failure(error, folder) from None
    except (OSError, ValueError) as error:
        settings = str(error)
    if not isinstance(settings, dict):
        raise DataError(
            path,
            f"does not hold the settings of a run ({settings}). Choose another --out; or delete the file and pass "
            "--resume with all settings of the run, which continues it from its last checkpoint.",
        )
    return settings


def read_config(folder: Path, kind: type[ConfigT]) -> ConfigT:
    """Return the configuration of the run in a folder; `out` is the folder, wherever it was moved to.

    Raises:
        ConfigurationError: The folder holds no run of this kind, or one of another version of Arboretum.
        DataError: Its settings cannot be read.
    """
    settings = read_run_settings(folder)
    command = "train" if kind is TrainingConfig else "sft"
    if settings is None:
        raise ConfigurationError(
            f"{folder}: holds no {SETTINGS_FILE}, so there is no run to resume; pass the folder of a run, or all "
            f"settings of the run beside --resume."
        )
    if ("recipe" in settings) != (kind is TrainingConfig):
        raise ConfigurationError(f"{folder}: holds a run of another kind, not of `arboretum {command}`.")
    try:
        return from_plain(kind, {**_configuration(settings), "out": str(folder)})
    except CannotImport as error:
        raise ConfigurationError(
            f"{folder}: {str(error).rstrip('.')}; run it in that module's folder, or add the folder to PYTHONPATH."
        ) from None
    except ConfigurationError as error:
        raise DataError(
            folder / SETTINGS_FILE, f"was written by another version of Arboretum ({error})."
        ) from None


def _environment_difference(before: Any, now: Any) -> str | None:
    """Return the first difference of environments, in a mixture with the name of the one that differs."""
    both = [value if isinstance(value, list) else [value] for value in (before, now)]
    if len(both[0]) != len(both[1]) or not all(isinstance(env, dict) for envs in both for env in envs):
        return None
    for old, new in zip(*both, strict=True):
        if difference := first_difference(old, new):
            return difference if isinstance(before, dict) else f"{old.get('name') or old.get('id')}: {difference}"
    return None


def _fixed_part(name: str, value: Any) -> Any:
    """Return the part of a setting that must not change: a run may be prolonged and moved to other hardware."""
    if name == "hardware" and isinstance(value, dict):
        return {"lora": value.get("lora")}
    if name == "mixture":
        return [{"weight": 1.0, **env} for env in value or ()]
    if name == "env" and isinstance(value, dict):
        return {"weight": 1.0, **value}
    if name == "validation" and isinstance(value, dict):
        return resolve_validation(value)
    if name == "recipe" and isinstance(value, dict):
        optimization = value.get("optimization")
        if isinstance(optimization, dict):
            kept = {k: v for k, v in optimization.items() if k not in ("updates", "max_tokens")}
            return {**value, "optimization": kept}
    return value
