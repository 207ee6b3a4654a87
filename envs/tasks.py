"""Task sequences and splits of worlds that make their own levels.

A generated world has effectively endless tasks, named `<split>/<index>`. Splits are disjoint *by construction*:
every level has an identity (what must not leak from training to test), the identity's hash says which split it
belongs to, and a split's generator passes over levels of the others. No list of levels is kept anywhere, and
any process that knows a task's name can rebuild it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import overload

from .errors import ConfigurationError, unknown_name
from .seeding import stable_seed

SPLITS = ("train", "valid", "test")
ANY = "any"
"""The prefix of task names when no split is asked for: levels of all splits together."""


def split_of(identity: Hashable) -> str:
    """The split that a level belongs to: 60 % of identities are train, 20 % valid, 20 % test."""
    tenth = stable_seed("split", identity) % 10
    return "train" if tenth < 6 else "valid" if tenth < 8 else "test"


def belongs(identity: Hashable, split: str) -> bool:
    """Whether a level of this identity may appear in `split` (every level may appear in `any`)."""
    return split == ANY or split_of(identity) == split


class GeneratedTasks(Sequence[str]):
    """The names `<split>/0`, `<split>/1`, … of a generated world.

    Args:
        split: "train", "valid", "test", or None for levels of all three.
    """

    LENGTH = 2**31

    def __init__(self, split: str | None) -> None:
        if split is not None and split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        self.split = split or ANY

    def __len__(self) -> int:
        return self.LENGTH

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
        """Whether the task can be opened: without a split, the tasks of all splits can, by their own names."""
        if not isinstance(task, str):
            return False
        split, _, number = task.rpartition("/")
        return (split == self.split or (self.split == ANY and split in SPLITS)) and _index(number) is not None

    def index(self, task: str, start: int = 0, stop: int | None = None) -> int:
        split, _, number = task.rpartition("/")
        index = _index(number)
        if split != self.split or index is None:
            raise ConfigurationError(
                f"unknown task {task[:80]!r}; tasks of this split are named {self.split}/0, {self.split}/1, …"
            )
        if not start <= index < (self.LENGTH if stop is None else stop):
            raise ValueError(f"{task} is not in that range")
        return index


def _index(number: str) -> int | None:
    """The index that a task's name ends in, written in the one way in which we write it."""
    if not (number.isascii() and number.isdecimal() and len(number) <= 10 and str(int(number)) == number):
        return None
    return int(number) if int(number) < GeneratedTasks.LENGTH else None
