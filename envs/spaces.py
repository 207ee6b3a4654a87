"""String space for arbitrary Unicode text, with a membership test in constant time.

`gymnasium.spaces.Text` requires an explicit alphabet and checks every character of every string. Observations here
may contain any character, such as `√` or text from a product page, so `AnyText` checks only type and length. In
the shared memory of asynchronous vector environments, a string is stored as UTF-32 and written in one copy.
"""

from __future__ import annotations

import multiprocessing
import string
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, overload

import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

_Draw = Callable[[np.random.Generator], str | None]
_PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " "


class AnyText(Text):
    """Space of all strings of at most `max_length` characters, the empty string included.

    `sample()` draws at most 64 characters of printable ASCII.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=_PRINTABLE, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = int(self.np_random.integers(min(64, self.max_length) + 1))
        picks = self.np_random.integers(len(_PRINTABLE), size=length)
        return "".join(_PRINTABLE[i] for i in picks)

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, AnyText) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_np_flattenable(self) -> bool:
        return False


class ActionText(AnyText):
    """Space of the actions of one environment: all strings, of which `sample()` draws those that can be played.

    A copy of the space, such as the vector environments make, has no access to the environment.

    Args:
        max_length: Maximum length of an action.
        draw: Method of the environment that draws an action, or returns None if no episode is in progress.
        constant_actions: Actions that are admissible in every state, from which copies draw; empty if there are
            none.
    """

    def __init__(
        self,
        max_length: int,
        draw: _Draw,
        constant_actions: tuple[str, ...] = (),
    ) -> None:
        super().__init__(max_length)
        self._draw: weakref.WeakMethod[_Draw] | None = weakref.WeakMethod(draw)
        self._constant_actions = constant_actions

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        draw = self._draw and self._draw()
        action = draw(self.np_random) if draw else None
        if action is not None:
            return action
        if self._constant_actions:
            return self._constant_actions[int(self.np_random.integers(len(self._constant_actions)))]
        return super().sample()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_draw": None}


class _SharedTexts(Sequence[str]):
    """Live view of the strings in shared memory.

    `AsyncVectorEnv` reads its observations from shared memory once, before the first reset, and returns a deep
    copy of that object after every step. An array shows the current content of its buffer, but a `str` would keep
    the old one, so this sequence decodes each string on access, and its deep copy is a tuple of the current ones.
    """

    def __init__(self, rows: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return tuple(self)[index]
        row = self._rows[index]
        return str(row[1 : 1 + row[0]].tobytes(), "utf-32-le", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


# The shared memory of n strings is an int32 array with n rows: the length, then the code points.


@create_shared_memory.register(AnyText)
def _create(space: AnyText, n: int = 1, ctx: ModuleType = multiprocessing) -> Any:
    return ctx.Array(np.dtype(np.int32).char, n * (1 + space.max_length))


@write_to_shared_memory.register(AnyText)
def _write(space: AnyText, index: int, values: str, shared_memory: Any) -> None:
    rows = np.frombuffer(shared_memory.get_obj(), dtype=np.int32).reshape(-1, 1 + space.max_length)
    points = np.frombuffer(values.encode("utf-32-le", "surrogatepass"), dtype=np.int32)
    if len(points) > space.max_length:
        raise ValueError(
            f"a text of {len(points)} characters exceeds the {space.max_length} of its space; pass a larger"
            " max_observation (of actions max_action) to TextEnv, or use a SyncVectorEnv."
        )
    rows[index, 0] = len(points)
    rows[index, 1 : 1 + len(points)] = points


@read_from_shared_memory.register(AnyText)
def _read(space: AnyText, shared_memory: Any, n: int = 1) -> Sequence[str]:
    rows = np.frombuffer(shared_memory.get_obj(), dtype=np.int32).reshape(n, 1 + space.max_length)
    return _SharedTexts(rows)
