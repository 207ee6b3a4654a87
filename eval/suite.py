"""Suites: the tasks of an evaluation, with their limits and settings, read from a small YAML file.

    name: quick
    description: one line
    seed: 0
    entries:
      - name: Sokoban 6x6
        env: TextSokoban-v0
        split: test
        tasks: 64

The keys of the file are the fields of `Suite`, those of an entry the fields of `Entry`. Only `entries`, and `env`
in each entry, are required; a key without a value takes its default.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ..envs.checks import at_least
from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError, DataError
from ..envs.http_client import public_url
from ..envs.registry import all_envs, make_env
from ..envs.seeding import stable_seed
from ..envs.tasks import GeneratedTasks
from .yaml_files import convert_mapping, parse_mapping, read_definition, shipped_names

HELD_OUT_SPLITS = ("test", "valid_unseen", "dev")
"""Splits on which a single environment is evaluated, in order of preference."""

_CLASS_PATH = re.compile(r"[\w.]+:[\w.]+")


@dataclass(frozen=True)
class Entry:
    """One environment of a suite, with its tasks and settings.

    Attributes:
        name: Name in tables and records, unique in the suite. In a file, the default is the environment's id.
        env: Gymnasium id.
        kwargs: Keyword arguments of the environment.
        split: Task split; None for the environment's default.
        tasks: Number of tasks, the first distinct ones of the split; None for all of them.
        max_steps: Step limit of an episode; None for the environment's default.
        max_turns: Limit on the replies of an agent in an episode; None for no limit.
        repeats: Episodes per task, each with its own seed.
        group_by: Key of `info` (such as `task_type`) by which results are also grouped; None for no groups.
        groups: Order in which groups are reported; groups that are not listed follow, sorted by name.
        score: Key of `info` whose mean, times 100, is reported as a score; None for no score.
        dialogue: Settings of the language agents' dialogue (see `Dialogue`); they override the suite's.
        sampling: Settings of the language agents' sampling (see `Sampling`); they override the suite's.
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
    groups: tuple[str, ...] = ()
    score: str | None = None
    dialogue: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> TextEnv[Any]:
        """Make the entry's environment.

        Raises:
            ConfigurationError: The environment or an option is unknown, or data is missing.
        """
        kwargs = dict(self.kwargs)
        if self.split is not None:
            kwargs["split"] = self.split
        if self.max_steps is not None:
            kwargs["max_steps"] = self.max_steps
        return make_env(self.env, **kwargs)

    def task_names(self, env: TextEnv[Any], limit: int | None = None) -> list[str]:
        """Return the names of the entry's tasks: the first `tasks` of the split whose initial states are distinct.

        Args:
            env: The entry's environment.
            limit: Maximum number of tasks; None for no limit.

        Raises:
            ConfigurationError: The split has fewer distinct tasks, or is endless without `tasks` and a limit.
        """
        if self.tasks is None and not isinstance(env.tasks, GeneratedTasks):
            return list(islice(env.tasks, limit))
        counts = [count for count in (self.tasks, limit) if count is not None]
        if not counts:
            raise ConfigurationError(
                f"the tasks of {self.env} are endless; choose their number with --limit, such as --limit 64, or"
                " with `tasks` in the suite's file."
            )
        count = min(counts)
        names = distinct_tasks(env, count)
        if self.tasks is not None and len(names) < count:
            raise ConfigurationError(
                f"suite entry {self.name!r} asks for {count} tasks, but {self.env} has only {len(names)}"
                f" distinct ones in split {self.split!r}; lower `tasks`, or omit it to use all."
            )
        return names


def distinct_tasks(env: TextEnv[Any], count: int) -> list[str]:
    """Return the first tasks of an environment whose initial states are distinct.

    Args:
        env: Environment.
        count: Number of tasks; fewer are returned if there are not so many.
    """
    names: list[str] = []
    seen = set()
    max_candidates = 50 * count + 1000  # Generated tasks are endless and may repeat a few states forever.
    for index, task in enumerate(env.tasks):
        if len(names) == count or index > max_candidates:
            break
        env.reset(seed=0, options={"task": task})
        key = env.state_key()
        if key not in seen:
            seen.add(key)
            names.append(task)
    return names


@dataclass(frozen=True)
class Suite:
    """A named list of entries.

    Attributes:
        name: Name in tables and in the default run folder. In a file, the default is the stem of the file's name.
        description: One line for the report.
        entries: The entries, in the order of the tables.
        seed: Base seed; together with entry, task and repeat it determines the seed of every episode.
        dialogue: Settings of the language agents' dialogue in all entries.
        sampling: Settings of the language agents' sampling in all entries.
    """

    name: str
    description: str
    entries: tuple[Entry, ...]
    seed: int = 0
    dialogue: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def with_settings(self, seed: int | None = None, repeats: int | None = None) -> Suite:
        """Return the suite with another seed, or another number of episodes per task in every entry.

        Raises:
            ConfigurationError: A value is out of range.
        """
        at_least("seed", seed, 0)
        at_least("repeats", repeats, 1)
        entries = self.entries
        if repeats is not None:
            entries = tuple(dataclasses.replace(entry, repeats=repeats) for entry in entries)
        return dataclasses.replace(self, entries=entries, seed=self.seed if seed is None else seed)

    def episode_seed(self, entry: Entry, task: str, repeat: int) -> int:
        """Return the seed of one episode. It is the same for every agent, so that comparisons are paired."""
        return stable_seed(self.seed, entry.name, task, repeat) >> 33  # 31 bits: any generator takes them

    def to_dict(self) -> dict[str, Any]:
        """Return the suite as plain data, without fields that have their default value.

        Addresses in settings of environments have no user name, password and query, which may be secrets.
        """
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "entries"}
        return {**_without_defaults(self, data), "entries": [_without_defaults(e, vars(e)) for e in self.entries]}


def _without_defaults(owner: Entry | Suite, data: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {f.name: f.default for f in dataclasses.fields(owner)}
    return {name: _to_plain(value) for name, value in data.items() if value != defaults[name] and value != {}}


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _hide_secrets(one) for key, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _hide_secrets(value: Any) -> Any:
    is_address = isinstance(value, str) and value.startswith(("http://", "https://"))
    return public_url(value) if is_address else value


def suite_names() -> list[str]:
    """Return the names of the shipped suites."""
    return shipped_names("suites")


def load_suite(name: str) -> Suite:
    """Load a shipped suite by its name, any suite by its file's path, or a suite of one environment by its id.

    Raises:
        ConfigurationError: There is no such suite or environment.
        DataError: The file cannot be read or does not describe a suite.
    """
    ids = [spec.id for spec in all_envs()]
    if name in ids or _CLASS_PATH.fullmatch(name):
        return suite_of(name)
    return parse_suite(*read_definition("suite", "suites", name, ids))


def suite_of(env: str, **kwargs: Any) -> Suite:
    """Return a suite of one environment, on its held-out tasks.

    Without `split` among the arguments, the split is the first of `HELD_OUT_SPLITS` that the environment has, or
    else all of its tasks.

    Args:
        env: Gymnasium id, or path `module:Class`.
        kwargs: Arguments of the environment.

    Raises:
        ConfigurationError: The environment cannot be made.
    """
    split, max_steps = kwargs.pop("split", None), kwargs.pop("max_steps", None)
    entry = Entry(env, env, kwargs, split=split, max_steps=max_steps)
    if split is None:
        for candidate in HELD_OUT_SPLITS:
            held_out = dataclasses.replace(entry, split=candidate)
            try:
                held_out.make()
            except ConfigurationError:
                continue
            entry = held_out
            break
    where = "all tasks" if entry.split is None else f"split {entry.split}"
    return Suite(env, f"{env}, {where}", (entry,))


def parse_suite(text: str, source: str) -> Suite:
    """Parse a suite from YAML.

    Args:
        text: Content of the file.
        source: Path of the file, for error messages and the default name.

    Raises:
        DataError: The text is not YAML or does not describe a suite.
    """
    data = parse_mapping(text, source, "name, description and entries")
    for key in ("name", "description"):
        if isinstance(data.get(key), int | float):  # YAML parses an unquoted 2024 as a number.
            data[key] = str(data[key])
    defaults = {"name": Path(source).stem, "description": ""}
    suite = convert_mapping({**data, "entries": []}, Suite, defaults, source)
    items = data.get("entries")
    if not isinstance(items, list) or not items:
        raise DataError(source, "`entries` must be a non-empty list of mappings.")
    entries = tuple(_parse_entry(item, f"{source}, entry {number}") for number, item in enumerate(items, 1))
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise DataError(source, f"two entries have the name {name!r}; names must differ.")
    return dataclasses.replace(suite, entries=entries)


def _parse_entry(item: object, where: str) -> Entry:
    if not isinstance(item, dict):
        raise DataError(where, "expected a mapping with at least `env`.")
    if isinstance(item.get("groups"), list):  # YAML parses an unquoted `1` or `true` as another type.
        item = {**item, "groups": [str(group) for group in item["groups"]]}
    entry = convert_mapping(item, Entry, {"name": str(item.get("env"))}, where)
    for key in ("tasks", "max_steps", "max_turns", "repeats"):
        try:
            at_least(f"`{key}`", getattr(entry, key), 1)
        except ConfigurationError as error:
            raise DataError(where, str(error)) from None
    return entry


__all__ = ["Entry", "Suite", "load_suite", "parse_suite", "suite_names"]
