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
        """Whether the task can be opened: where no split is chosen, those of every split can, by name."""
        if not isinstance(task, str):
            return False
        split = task.partition("/")[0]
        if self.split == ANY and split in SPLITS:
            return task in GeneratedTasks(split)
        try:
            return self.index(task) >= 0
        except ValueError:
            return False

    def index(self, task: str, start: int = 0, stop: int | None = None) -> int:
        split, _, number = task.rpartition("/")
        if split != self.split or not number.isascii() or not number.isdecimal() or str(int(number)) != number:
            raise ConfigurationError(
                f"unknown task {task[:80]!r}; tasks of this split are named {self.split}/0, {self.split}/1, …"
            )
        index = int(number)
        if not start <= index < min(self.LENGTH, self.LENGTH if stop is None else stop):
            raise ConfigurationError(f"unknown task {task!r}; indices go from 0 to {self.LENGTH - 1}")
        return index
