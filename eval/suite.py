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
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ..envs.checks import at_least, integer_at_least
from ..envs.core import TextEnv
from ..envs.data import expand_data_folder, missing_files
from ..envs.errors import ConfigurationError, DataError, cannot_be_read
from ..envs.registry import all_envs, make_env
from ..envs.seeding import stable_seed
from ..envs.tasks import GeneratedTasks, distinct_tasks, task_name
from .paper_tables import PaperTable, read_tables
from .plain import to_plain
from .yaml_files import convert_mapping, parse_mapping, read_definition, shipped_names

HELD_OUT_SPLITS = ("test", "valid_unseen", "dev")
"""Splits on which a single environment is evaluated, in order of preference."""

_COUNTS = ("tasks", "max_steps", "max_turns", "repeats")
"""Fields of an entry that are numbers from 1 on, or None."""
_CLASS_PATH = re.compile(r"[\w.]+:[\w.]+")


@dataclass(frozen=True)
class Replacement:
    """Tasks that an entry plays in place of its own where files are missing; the limits stay those of the entry.

    Attributes:
        needs: Files that the replacement reads, as in the entry.
        kwargs: Keyword arguments of the environment, in place of all of the entry's.
        split: Task split, in place of the entry's.
        tasks: Number of tasks, in place of the entry's.
        note: Difference between these tasks and the entry's own, for the marks in tables.
    """

    needs: tuple[str, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    split: str | None = None
    tasks: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Entry:
    """One environment of a suite, with its tasks and settings.

    Attributes:
        name: Name in tables and records, unique in the suite. In a file, the default is the environment's id.
        env: Gymnasium id.
        kwargs: Keyword arguments of the environment. In texts that begin with `$ARBORETUM_DATA/`, that is the data
            folder.
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
        needs: Files below `ARBORETUM_DATA` that the entry reads, as paths or patterns such as `nq/test.*`. Without
            one of them, the first of `otherwise` whose own files exist is played.
        otherwise: Replacements, of which the first whose files exist is played.
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
    needs: tuple[str, ...] = ()
    otherwise: tuple[Replacement, ...] = ()

    def resolve(self) -> tuple[Entry, Replacement | None]:
        """Return the entry that can be played with the files that exist, and the replacement that it is, if any.

        Raises:
            ConfigurationError: Files are missing, those of every replacement included.
        """
        missing = missing_files(self.needs)
        own = dataclasses.replace(self, needs=(), otherwise=())
        if not missing:
            return own, None
        for one in self.otherwise:
            if not missing_files(one.needs):
                return dataclasses.replace(own, kwargs=one.kwargs, split=one.split, tasks=one.tasks), one
        raise ConfigurationError(
            f"ARBORETUM_DATA names no folder with {' and '.join(missing)}; set it to one, or get the data"
            " (`arboretum data list` shows the commands)."
        )

    def make(self) -> TextEnv[Any]:
        """Make the entry's environment.

        Raises:
            ConfigurationError: The environment or an option is unknown, or data is missing.
        """
        kwargs = {name: expand_data_folder(value) for name, value in self.kwargs.items()}
        if self.split is not None:
            kwargs["split"] = self.split
        if self.max_steps is not None:
            kwargs["max_steps"] = self.max_steps
        return make_env(self.env, **kwargs)

    @property
    def played_split(self) -> str | None:
        """Name of the task split, which may be one of `kwargs`; None for the environment's default."""
        split = self.kwargs.get("split") if self.split is None else self.split
        return None if split is None else str(split)

    def task_names(self, env: TextEnv[Any], limit: int | None = None) -> list[str]:
        """Return the names of the entry's tasks: the first `tasks` of the split whose initial states are distinct.

        Args:
            env: The entry's environment.
            limit: Maximum number of tasks; None for no limit.

        Raises:
            ConfigurationError: The split has fewer distinct tasks, or is endless without `tasks` and a limit.
        """
        if self.tasks is None and not isinstance(env.tasks, GeneratedTasks):
            return [task_name(env, task) for task in islice(env.tasks, limit)]
        counts = [count for count in (self.tasks, limit) if count is not None]
        if not counts:
            raise ConfigurationError(
                f"the tasks of {self.env} are endless; choose their number with --limit (in Python limit=),"
                " such as 64, or with `tasks` in the suite's file."
            )
        count = min(counts)
        names = distinct_tasks(env, count)
        if self.tasks is not None and len(names) < count:
            raise ConfigurationError(
                f"suite entry {self.name!r} asks for {count} tasks, but {self.env} has only {len(names)}"
                f" distinct ones in split {self.played_split!r}; lower `tasks`, or omit it to use all."
            )
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
        tables: Tables of the results in the layout of a paper.
    """

    name: str
    description: str
    entries: tuple[Entry, ...]
    seed: int = 0
    dialogue: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[PaperTable, ...] = ()

    def with_settings(self, seed: int | None = None, repeats: int | None = None) -> Suite:
        """Return the suite with another seed, or another number of episodes per task in every entry.

        Raises:
            ConfigurationError: A value is out of range.
        """
        at_least("seed", seed, 0)
        at_least("repeats", repeats, 1)
        entries = self.entries
        seed = None if seed is None else operator.index(seed)  # NumPy's integers are accepted, too.
        repeats = None if repeats is None else operator.index(repeats)
        if repeats is not None:
            entries = tuple(dataclasses.replace(entry, repeats=repeats) for entry in entries)
        return dataclasses.replace(self, entries=entries, seed=self.seed if seed is None else seed)

    def episode_seed(self, entry: Entry, task: str, repeat: int) -> int:
        """Return the seed of one episode. It is the same for every agent, so that comparisons are paired."""
        return stable_seed(self.seed, entry.name, task, repeat) >> 33  # 31 bits: any generator takes them

    def to_dict(self) -> dict[str, Any]:
        """Return the suite as plain data, without fields that have their default value.

        Secrets in settings of environments are left out: see `to_plain`.
        """
        nested = ("entries", "tables")
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in nested}
        plain = {**_without_defaults(self, data), "entries": [_entry_to_dict(entry) for entry in self.entries]}
        return {**plain, "tables": [table.to_dict() for table in self.tables]} if self.tables else plain


def _entry_to_dict(entry: Entry) -> dict[str, Any]:
    plain = _without_defaults(entry, {name: value for name, value in vars(entry).items() if name != "otherwise"})
    if entry.otherwise:
        plain["otherwise"] = [_without_defaults(one, vars(one)) for one in entry.otherwise]
    return plain


def _without_defaults(owner: Entry | Suite | Replacement, data: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {f.name: f.default for f in dataclasses.fields(owner)}
    return {name: to_plain(value) for name, value in data.items() if value != defaults[name] and value != {}}


def fill_defaults(plain: Any) -> Any:
    """Return the result of `Suite.to_dict` with the settings that it leaves out, which have their default."""
    if not isinstance(plain, Mapping) or not isinstance(plain.get("entries"), list):
        return plain
    entries = [{**_defaults(Entry), **one} if isinstance(one, Mapping) else one for one in plain["entries"]]
    return {**_defaults(Suite), **plain, "entries": entries}


def _defaults(owner: type[Entry] | type[Suite]) -> dict[str, Any]:
    """Return the settings with their defaults as plain data."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(owner):
        if one.default is not dataclasses.MISSING:
            found[one.name] = list(one.default) if isinstance(one.default, tuple) else one.default
        elif one.default_factory is not dataclasses.MISSING:
            found[one.name] = one.default_factory()
    return found


def suite_names() -> list[str]:
    """Return the names of the shipped suites."""
    return shipped_names("suites")


def load_suite(name: str | Path, env_args: Mapping[str, Any] | None = None) -> Suite:
    """Load a shipped suite by its name, any suite by its file's path, or a suite of one environment by its id.

    Args:
        name: Name, path or id.
        env_args: Arguments of the environment, which only the suite of one environment takes.

    Raises:
        ConfigurationError: There is no such suite or environment, or a suite of several was given arguments.
        DataError: The file cannot be read or does not describe a suite.
    """
    name = str(name)
    ids = [spec.id for spec in all_envs()]
    if name in ids or _CLASS_PATH.fullmatch(name):
        return suite_of(name, **(env_args or {}))
    suite = parse_suite(*read_definition("suite or environment", "suites", name, ids))
    if env_args:
        raise ConfigurationError(
            f"--env-arg and --split are for the id of an environment, and {name} is a suite; copy its file and set"
            " `kwargs` and `split` of its entries."
        )
    return suite


def suite_of(env: str, /, **kwargs: Any) -> Suite:
    """Return a suite of one environment, on its held-out tasks.

    Without `split` among the arguments, the split is the first of `HELD_OUT_SPLITS` that the environment has, or
    else all of its tasks.

    Args:
        env: Gymnasium id, or path `module:Class`.
        kwargs: Arguments of the environment.

    Raises:
        ConfigurationError: The environment cannot be made.
    """
    # Other values of the two, such as None, stay arguments: in the fields of an entry, None means "not given".
    limit = kwargs.pop("max_steps") if type(kwargs.get("max_steps")) is int else None
    split = kwargs.pop("split") if isinstance(kwargs.get("split"), str) else None
    entry = Entry(env, env, kwargs, split=split, max_steps=limit)
    if split is None and "split" not in kwargs:
        for candidate in HELD_OUT_SPLITS:
            held_out = dataclasses.replace(entry, split=candidate)
            try:
                held_out.make()
            except ConfigurationError as error:
                if cannot_be_read(error):
                    raise ConfigurationError(
                        f"{error} Name the tasks with --split (in Python pass gym.make(…, split=…))."
                    ) from error
                continue
            entry = held_out
            break
        else:
            entry.make()
    where = "all tasks" if entry.played_split is None else f"split {entry.played_split}"
    return Suite(env, f"{env}, {where}", (entry,))


def check_suite(suite: Suite) -> None:
    """Check a suite that was made in Python; those of files are checked where they are read.

    Raises:
        ConfigurationError: It has no entries, two of one name, or a number below 1.
    """
    if not suite.entries:
        raise ConfigurationError(f"suite {suite.name!r} has no entries.")
    for entry in suite.entries:
        for key in _COUNTS:
            integer_at_least(f"`{key}` of entry {entry.name!r}", getattr(entry, key), 1)
    if (twice := _repeated_name(suite.entries)) is not None:
        raise ConfigurationError(
            f"two entries of suite {suite.name!r} have the name {twice!r}; names must differ."
        )


def _repeated_name(entries: Iterable[Entry]) -> str | None:
    counts = Counter(entry.name for entry in entries)
    return next((name for name, count in counts.items() if count > 1), None)


def parse_suite(text: str, source: str) -> Suite:
    """Parse a suite from YAML.

    Args:
        text: Content of the file.
        source: Path of the file, for error messages and the default name.

    Raises:
        DataError: The text is not YAML or does not describe a suite.
    """
    return read_suite(parse_mapping(text, source, "name, description and entries"), source)


def read_suite(data: Mapping[str, Any], source: str) -> Suite:
    """Read a suite from plain data, such as that of `Suite.to_dict`.

    Args:
        data: The data.
        source: Path of the file, for error messages and the default name.

    Raises:
        DataError: The data does not describe a suite.
    """
    data = dict(data)
    for key in ("name", "description"):
        if isinstance(data.get(key), int | float):  # YAML parses an unquoted 2024 as a number.
            data[key] = str(data[key])
    defaults = {"name": Path(source).stem, "description": ""}
    suite = convert_mapping({**data, "entries": [], "tables": []}, Suite, defaults, source)
    items = data.get("entries")
    if not isinstance(items, list) or not items:
        raise DataError(source, "`entries` must be a non-empty list of mappings.")
    entries = tuple(_parse_entry(item, f"{source}, entry {number}") for number, item in enumerate(items, 1))
    if (twice := _repeated_name(entries)) is not None:
        raise DataError(source, f"two entries have the name {twice!r}; names must differ.")
    return dataclasses.replace(suite, entries=entries, tables=read_tables(data.get("tables"), entries, source))


def _parse_entry(item: object, where: str) -> Entry:
    if not isinstance(item, dict):
        raise DataError(where, "expected a mapping with at least `env`.")
    if isinstance(item.get("groups"), list):  # YAML parses an unquoted `1` or `true` as another type.
        item = {**item, "groups": [str(group) for group in item["groups"]]}
    entry = convert_mapping({**item, "otherwise": []}, Entry, {"name": str(item.get("env"))}, where)
    _check_counts(entry, _COUNTS, where)
    return dataclasses.replace(entry, otherwise=tuple(_parse_replacements(item.get("otherwise"), entry, where)))


def _parse_replacements(data: object, entry: Entry, where: str) -> Iterator[Replacement]:
    if data is None:
        return
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise DataError(where, "`otherwise` must be a list of mappings.")
    if data and not entry.needs:
        raise DataError(where, "has `otherwise` without `needs`; name the files without which it is played.")
    for number, item in enumerate(data, 1):
        place = f"{where}, replacement {number}"
        replacement = convert_mapping(item, Replacement, {}, place)
        _check_counts(replacement, ("tasks",), place)
        yield replacement


def _check_counts(owner: Entry | Replacement, keys: Iterable[str], where: str) -> None:
    for key in keys:
        try:
            at_least(f"`{key}`", getattr(owner, key), 1)
        except ConfigurationError as error:
            raise DataError(where, str(error)) from None


__all__ = ["Entry", "Replacement", "Suite", "load_suite", "parse_suite", "read_suite", "suite_names"]
