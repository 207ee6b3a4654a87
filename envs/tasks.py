"""Task names and splits of environments that generate their levels.

A generated environment has an effectively endless sequence of tasks, named `<split>/<index>`. Splits are disjoint
*by construction*: every level has an identity (the part of it that must not leak from training to test), a hash of
the identity assigns the level to a split, and a generator rejects levels of other splits. No list of levels is
stored; any process can rebuild a level from its task's name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, overload

from .errors import ConfigurationError, unknown_name
from .seeding import stable_seed

if TYPE_CHECKING:
    from .core import TextEnv

SPLITS = ("train", "valid", "test")
ANY = "any"
"""Prefix of task names when no split is chosen: levels of all splits together."""


def split_of(identity: Hashable) -> str:
    """Return the split of a level: 60 % of identities are in train, 20 % in valid and 20 % in test."""
    tenth = stable_seed("split", identity) % 10
    return "train" if tenth < 6 else "valid" if tenth < 8 else "test"


def belongs(identity: Hashable, split: str) -> bool:
    """Return True if a level with this identity may appear in `split`; every level may appear in `ANY`."""
    return split == ANY or split_of(identity) == split


class GeneratedTasks(Sequence[str]):
    """Sequence of the task names `<split>/0`, `<split>/1`, … of a generated environment.

    Args:
        split: One of `SPLITS`. None for levels of all splits, named `any/0`, `any/1`, ….
    """

    LENGTH = 2**31
    """Number of tasks in a split."""

    SPLITS: ClassVar[tuple[str, ...]] = SPLITS
    """Names of the splits."""

    def __init__(self, split: str | None) -> None:
        if split is not None and split not in self.SPLITS:
            raise unknown_name("split", split, self.SPLITS)
        self.split = split or ANY

    def __len__(self) -> int:
        return self.LENGTH

    def __repr__(self) -> str:
        return f"<{self.LENGTH} tasks: {self.split}/0, {self.split}/1, …>"

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [f"{self.split}/{i}" for i in range(*index.indices(self.LENGTH))]
        if not -self.LENGTH <= index < self.LENGTH:
            raise IndexError(f"task index {index} is outside 0 … {self.LENGTH - 1}")
        return f"{self.split}/{index % self.LENGTH}"

    def __contains__(self, task: object) -> bool:
        """Return True if the task can be opened. Without a split, tasks of every split can, by their own names."""
        if not isinstance(task, str):
            return False
        split, _, number = task.rpartition("/")
        opens = split == self.split or (self.split == ANY and split in self.SPLITS)
        return opens and parse_index(number) is not None

    def index(self, task: str, start: int = 0, stop: int | None = None) -> int:
        split, _, number = task.rpartition("/")
        index = parse_index(number)
        if split != self.split or index is None:
            raise self.unknown(task)
        if not start <= index < (self.LENGTH if stop is None else stop):
            raise ValueError(f"{task} is not between the given start and stop.")
        return index

    def unknown(self, task: str) -> ConfigurationError:
        """Return the error for a task that cannot be opened."""
        others = f", and those of a split {self.SPLITS[-1]}/0, {self.SPLITS[-1]}/1, …" if self.split == ANY else ""
        names = f"{self.split}/0, {self.split}/1, …{others}"
        return ConfigurationError(f"unknown task {task[:80]!r}; the tasks are named {names}")


def parse_index(number: str) -> int | None:
    """Return the index in a task's name, or None if it is not written as `str` writes one, or out of range."""
    if not (number.isascii() and number.isdecimal() and len(number) <= 10 and str(int(number)) == number):
        return None
    return int(number) if int(number) < GeneratedTasks.LENGTH else None


def distinct_tasks(env: TextEnv[Any], count: int) -> list[str]:
    """Return the first tasks of an environment whose initial states are distinct; states without a key all are.

    Args:
        env: Environment.
        count: Number of tasks; fewer are returned if there are not so many.
    """
    names: list[str] = []
    seen = set()
    max_candidates = 50 * count + 1000  # Generated tasks are endless and may repeat a few states forever.
    for index, task in enumerate(task_name(env, one) for one in env.tasks):
        if len(names) == count or index > max_candidates:
            break
        env.reset(seed=0, options={"task": task})
        key = env.state_key()
        if key is None or key not in seen:
            seen.add(key)
            names.append(task)
    return names


def task_name(env: object, task: object) -> str:
    """Return the name of a task as Python's own text; NumPy's arrays hold texts of a class of their own.

    Raises:
        ConfigurationError: It is no text.
    """
    if not isinstance(task, str):
        raise ConfigurationError(
            f"{type(env).__name__}.tasks must hold the names of tasks as texts, not {task!r:.80}."
        )
    return str(task)


def requested_task(
    options: Mapping[str, Any], tasks: Sequence[str], has_task: Callable[[str], bool]
) -> str | None:
    """Return the task that the options of a reset name, or None if they name none.

    Args:
        options: Options of `reset`; `task` is a name, or an index of `tasks`.
        tasks: Tasks of the environment.
        has_task: Tells of a name whether the environment has this task.

    Raises:
        ConfigurationError: There is no such task or option.
    """
    if not isinstance(options, Mapping):
        raise ConfigurationError(f'options must be a mapping such as {{"task": 0}}, not {options!r}.')
    for key in options:
        if key != "task":
            raise unknown_name("reset option", key, ("task",))
    task = options.get("task")
    if task is None:
        return None
    if isinstance(task, str):
        if not has_task(task):
            if isinstance(tasks, GeneratedTasks):
                raise tasks.unknown(task)
            raise unknown_name("task", task, tasks[:1000])
        return task
    try:
        index = None if isinstance(task, bool) else operator.index(task)
    except TypeError:  # Arrays have `__index__`, too, but only those of one number are indices.
        index = None
    if index is None:
        raise ConfigurationError(f"the task must be a name or an index, not {task!r}.")
    if not 0 <= index < len(tasks):
        raise ConfigurationError(f"task index {index} is outside 0 … {len(tasks) - 1} of this split.")
    return tasks[index]
