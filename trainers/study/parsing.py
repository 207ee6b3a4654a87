"""Files of studies: YAML whose keys are the fields of `Study`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ...envs.errors import ConfigurationError, DataError
from ...eval.yaml_files import convert_mapping, parse_mapping, read_definition, shipped_names
from ..config.settings import EnvConfig, HardwareConfig
from .controls import parse_controls
from .definition import HARDWARE, Study, StudyEnv, StudyLevel
from .tuning import Tuning


@dataclass(frozen=True)
class _LevelItem:
    """Item of `levels` in a study's file."""

    name: str
    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    test_split: str = StudyLevel.test_split


@dataclass(frozen=True)
class _EnvItem(_LevelItem):
    """Item of `envs` in a study's file."""

    validation_split: str = StudyEnv.validation_split
    dialogue: str | None = None
    dialogue_settings: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


Item = TypeVar("Item", bound=_LevelItem)


@dataclass(frozen=True)
class StudyFile:
    """Shape of a study's file; the keys are those of `Study`."""

    name: str
    model: str
    envs: list[dict[str, Any]]
    recipes: dict[str, dict[str, Any] | None]
    description: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    dialogue: str = Study.dialogue
    model_command: str = Study.model_command
    seeds: int = Study.seeds
    tasks: int = Study.tasks
    repeats: int = Study.repeats
    validation_every: int = Study.validation_every
    validation_tasks: int = Study.validation_tasks
    samples: int = Study.samples
    pass_tasks: int = Study.pass_tasks
    levels: list[dict[str, Any]] = field(default_factory=list)
    level_tasks: int = Study.level_tasks
    controls: dict[str, Any] = field(default_factory=dict)
    baseline: str = Study.baseline
    pairs: list[tuple[str, str]] = field(default_factory=list)
    tuning: dict[str, Any] | None = None
    collapse: bool = Study.collapse
    hardware: dict[str, Any] = field(default_factory=dict)
    export: bool = Study.export


def study_names() -> list[str]:
    """Return the names of the shipped studies."""
    return shipped_names("studies")


def load_study(name: str) -> Study:
    """Return a shipped study by name, or any study by the path of its file.

    Raises:
        ConfigurationError: No such study.
        DataError: The file cannot be read, or does not describe a study.
    """
    return parse_study(*read_definition("study", "studies", name))


def parse_study(text: str, source: str) -> Study:
    """Return the study that YAML text describes.

    Args:
        text: YAML.
        source: Name of the file, for messages.

    Raises:
        DataError: The text does not describe a study.
    """
    data = parse_mapping(text, source, "name, model, envs and recipes")
    file = convert_mapping(data, StudyFile, {}, source)
    for key in ("envs", "recipes"):
        if not getattr(file, key):
            raise DataError(source, f"`{key}` is empty.")
    settings = {key.name: getattr(file, key.name) for key in fields(StudyFile)}
    envs = _items(file.envs, _EnvItem, source, "environment")
    levels = _items(file.levels, _LevelItem, source, "level")
    settings["envs"] = {item.name: _make_env(item) for item in envs}
    settings["levels"] = {
        item.name: StudyLevel(EnvConfig(item.id, item.kwargs), item.model, item.test_split) for item in levels
    }
    settings["recipes"] = {name: dict(own or {}) for name, own in file.recipes.items()}
    if file.tuning is not None:
        settings["tuning"] = convert_mapping(file.tuning, Tuning, {}, f"{source}, tuning")
    defaults = {"device": HARDWARE.device, "in_flight": HARDWARE.in_flight}
    settings["hardware"] = convert_mapping(file.hardware, HardwareConfig, defaults, f"{source}, hardware")
    try:
        settings["controls"] = parse_controls(file.controls, source)
        study = Study(**settings)
        for env in study.envs:
            for name in study.recipes:
                study.recipe(name, env)
    except ConfigurationError as error:
        raise DataError(source, f"does not describe a study ({error}).") from None
    return study


def _make_env(item: _EnvItem) -> StudyEnv:
    return StudyEnv(
        EnvConfig(item.id, item.kwargs),
        item.model,
        item.test_split,
        item.validation_split,
        item.dialogue,
        item.dialogue_settings,
        item.settings,
    )


def _items(items: Sequence[Mapping[str, Any]], kind: type[Item], source: str, what: str) -> list[Item]:
    """Return the items of a list, whose names must differ.

    Args:
        items: Mappings with the keys of `kind`.
        kind: Dataclass of an item.
        source: Name of the file, for messages.
        what: What an item is, for messages.
    """
    parsed = [
        convert_mapping(item, kind, {}, f"{source}, {what} {number}") for number, item in enumerate(items, 1)
    ]
    names = [item.name for item in parsed]
    for name in names:
        if names.count(name) > 1:
            raise DataError(source, f"two {what}s have the name {name!r}; names must differ.")
    return parsed
