"""Suites: which tasks are played, under which limits. A suite is a small YAML file.

    name: quick
    description: one line
    seed: 0
    entries:
      - name: Sokoban 6x6
        env: TextSokoban-v0
        split: test
        tasks: 64

Every key of an entry is a field of `Entry`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..assets import asset
from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError, DataError, unknown_name
from ..envs.registry import make_env
from ..envs.seeding import stable_seed
from ..envs.tasks import GeneratedTasks


@dataclass(frozen=True)
class Entry:
    """One row of a suite.

    Attributes:
        name: what tables call it; unique in its suite.
        env: Gymnasium id.
        kwargs: make-time options of the world.
        split: task split, handed to the world.
        tasks: how many tasks, the first distinct ones of the split; None for all of them.
        max_steps: step limit, where it differs from the world's own.
        max_turns: limit on an agent's replies.
        repeats: plays of each task, with different luck.
        group_by: key of `info` by which success is also reported (such as `task_type`).
        groups: the order in which groups are reported; others follow by name.
        score: key of `info` whose mean is reported as a score from 0 to 100.
        dialogue: settings of the dialogue of language agents (see `Dialogue`), over the suite's.
        sampling: settings of their sampling (see `Sampling`), over the suite's.
    """

    name: str
    env: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    split: str | None = None
    tasks: int | None = None
    max_steps: int | None = None
    max_turns: int | None = None
    repeats: int = 1
    group_by: str | None = None
    groups: Sequence[str] = ()
    score: str | None = None
    dialogue: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> TextEnv[Any]:
        """The entry's world.

        Raises:
            ConfigurationError: unknown world or option, or missing data.
        """
        kwargs = dict(self.kwargs)
        if self.split is not None:
            kwargs["split"] = self.split
        if self.max_steps is not None:
            kwargs["max_steps"] = self.max_steps
        return make_env(self.env, **kwargs)

    def task_names(self, env: TextEnv[Any]) -> list[str]:
        """The tasks to play: the first `tasks` of the split, no two of which start in the same state.

        Raises:
            ConfigurationError: the split has fewer distinct tasks.
        """
        if self.tasks is None:
            if isinstance(env.tasks, GeneratedTasks):
                raise ConfigurationError(
                    f"suite entry {self.name!r} must say how many `tasks` to play: {self.env}'s are endless."
                )
            return list(env.tasks)
        names: list[str] = []
        seen = set()
        patience = 50 * self.tasks + 1000
        for looked, task in enumerate(env.tasks):
            if len(names) == self.tasks or looked > patience:
                break
            env.reset(seed=0, options={"task": task})
            key = env.state_key()
            if key not in seen:
                seen.add(key)
                names.append(task)
        if len(names) < self.tasks:
            raise ConfigurationError(
                f"suite entry {self.name!r} asks for {self.tasks} tasks, but {self.env} has only {len(names)}"
                f" distinct ones in split {self.split!r}; lower `tasks` or leave it out to play all."
            )
        return names


@dataclass(frozen=True)
class Suite:
    """A named list of entries.

    Attributes:
        seed: decides the luck of every episode, together with entry, task and repeat.
        dialogue, sampling: settings for language agents in all entries.
    """

    name: str
    description: str
    entries: tuple[Entry, ...]
    seed: int = 0
    dialogue: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def episode_seed(self, entry: Entry, task: str, repeat: int) -> int:
        """The seed of one play: the same for every agent, so that comparisons are paired."""
        return stable_seed(self.seed, entry.name, task, repeat) >> 33  # 31 bits: any generator takes them

    def to_dict(self) -> dict[str, Any]:
        """The suite as plain data, defaults left out."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "entries"}
        return {**_without_defaults(self, data), "entries": [_without_defaults(e, vars(e)) for e in self.entries]}


def _without_defaults(owner: Entry | Suite, data: Mapping[str, Any]) -> dict[str, Any]:
    plain = {f.name: f.default for f in dataclasses.fields(owner)}
    return {
        name: dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        for name, value in data.items()
        if value != plain[name] and value != {}
    }


def suite_names() -> list[str]:
    """The shipped suites."""
    return sorted(path.stem for path in asset("suites").glob("*.yaml"))


def load_suite(name: str) -> Suite:
    """A shipped suite by name, or any suite by the path of its file.

    Raises:
        ConfigurationError: no such suite, or a file that does not describe one.
    """
    if name in suite_names():
        source = asset(f"suites/{name}.yaml")
        return parse_suite(source.read_text(encoding="utf-8"), f"{name}.yaml")
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        try:
            return parse_suite(path.read_text(encoding="utf-8"), name)
        except UnicodeDecodeError:
            raise DataError(path, "is not UTF-8 text.") from None
        except OSError as error:
            raise DataError(path, f"cannot be read: {error.strerror or error}.") from None
    raise unknown_name("suite", name, [*suite_names(), "or the path of a .yaml file"])


def parse_suite(text: str, where: str) -> Suite:
    """Read a suite from YAML.

    Raises:
        DataError: with the place and what was expected.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        raise DataError(where, f"is not YAML ({getattr(error, 'problem', error)}).", line) from None
    if not isinstance(data, dict):
        raise DataError(where, "expected a mapping with name, description and entries.")
    _only(data, {field.name for field in dataclasses.fields(Suite)}, where)
    listed = data.get("entries")
    if not isinstance(listed, list) or not listed:
        raise DataError(where, "expected a non-empty list of entries.")
    entries = tuple(_entry(item, f"{where}, entry {i}") for i, item in enumerate(listed, 1))
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise DataError(where, f"two entries are called {name!r}; names must differ.")
    seed = data.get("seed", 0)
    if not isinstance(seed, int):
        raise DataError(where, f"seed must be an integer, not {seed!r}.")
    settings = {key: data.get(key) or {} for key in ("dialogue", "sampling")}
    for key, value in settings.items():
        if not isinstance(value, dict):
            raise DataError(where, f"`{key}` must be a mapping of settings, not {value!r}.")
    return Suite(
        str(data.get("name", Path(where).stem)), str(data.get("description", "")), entries, seed, **settings
    )


_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "env": (str,),
    "kwargs": (dict,),
    "split": (str, type(None)),
    "tasks": (int, type(None)),
    "max_steps": (int, type(None)),
    "max_turns": (int, type(None)),
    "repeats": (int,),
    "group_by": (str, type(None)),
    "groups": (list,),
    "score": (str, type(None)),
    "dialogue": (dict,),
    "sampling": (dict,),
}


def _entry(item: object, where: str) -> Entry:
    if not isinstance(item, dict):
        raise DataError(where, "expected a mapping.")
    _only(item, set(_TYPES), where)
    if not isinstance(item.get("env"), str):
        raise DataError(where, "expected `env:` with a Gymnasium id, such as TextSokoban-v0.")
    item = {"name": item["env"], **item}
    for key, value in item.items():
        if not isinstance(value, _TYPES[key]) or (isinstance(value, bool) and bool not in _TYPES[key]):
            raise DataError(where, f"`{key}` has a value of the wrong kind: {value!r}.")
    for key in ("tasks", "max_steps", "max_turns", "repeats"):
        if item.get(key) is not None and item[key] < 1:
            raise DataError(where, f"`{key}` must be at least 1, not {item[key]}.")
    if "groups" in item:
        item["groups"] = tuple(map(str, item["groups"]))
    return Entry(**item)


def _only(data: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in data:
        if key not in known:
            raise DataError(where, str(unknown_name("key", key, sorted(known))))


__all__ = ["Entry", "Suite", "load_suite", "parse_suite", "suite_names"]
