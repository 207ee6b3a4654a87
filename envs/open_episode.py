"""The error of environments that are asked about an episode before the first reset."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from gymnasium.error import ResetNeeded

T = TypeVar("T")


class NoEpisode(ResetNeeded, AttributeError):
    """An attribute that `reset` sets is missing; `hasattr`, and `getattr` with a default, work as ever."""


class OpenEpisodeRules:
    """Base of environments whose methods raise `gymnasium.error.ResetNeeded` where they need what `reset` sets.

    A class with `__getattr__` finds all attributes more slowly: a step would take half as long again. So only a
    new environment has it, from a subclass of its class, which the first episode replaces by the class itself.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return super().__new__(_unopened(cls))

    def _open_class(self) -> None:
        """Take the environment's own class, since an episode is opened."""
        if "_own_class" in vars(type(self)):
            self.__class__ = own_class(type(self))
            # Python finds attributes more slowly in a dictionary whose keys the replaced class shares.
            self.__dict__ = dict(self.__dict__)


def own_class(kind: type[T]) -> type[T]:
    """Return the class that an environment has after its first reset."""
    own: type[T] = vars(kind).get("_own_class", kind)
    return own


def _unopened(kind: type[T]) -> type[T]:
    """Return the class of environments without an episode, which differs from `kind` in `__getattr__` alone."""
    own: Any = own_class(kind)
    if "_new_class" not in vars(own):
        _check_methods(own)
        members = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
        members |= {"_own_class": own, "__getattr__": _explain_missing}
        make_class: Any = type(own)
        own._new_class = make_class(own.__name__, (own,), members)
    new: type[T] = vars(own)["_new_class"]
    return new


def _check_methods(own: type) -> None:
    """Raise unless a class defines all that is abstract; Gymnasium's class does not let Python check it."""
    missing = [name for name in dir(own) if getattr(getattr(own, name, None), "__isabstractmethod__", False)]
    if missing:
        raise TypeError(f"{own.__name__} must define {', '.join(sorted(missing))}; see `TextEnv`.")


def _explain_missing(self: Any, name: str) -> Any:
    """Raise the error of an attribute that is missing."""
    is_state = name.startswith("_") and not name.startswith("__") and not hasattr(type(self), name)
    if is_state and self.__dict__.get("_task", "") is None:
        raise NoEpisode(f"Call reset() first: {type(self).__name__} has no {name} before.")
    # The error of a property, or that there is no such attribute.
    return object.__getattribute__(self, name)
