"""Environment of which only the state on this side is here: its calls are executed by a host on a Ray cluster."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property, partial
from inspect import getattr_static
from types import FunctionType
from typing import Any, Protocol

import gymnasium as gym

from ...agents.base import Stop
from ...envs.copying import RebuiltCopies
from ...envs.core import Info, TextEnv
from ...envs.snapshots import Snapshot
from ...eval.planning import OtherTasks
from .env_host import EFFECT, EnvAnswer, EnvCall, EnvSource, EnvState

_OF_EPISODE = frozenset({"task", "instructions", "tools"})
"""Properties that a step does not change."""
_OF_STATE = frozenset({"snapshot", "state_key", "admissible_actions", "steps_left"})
"""Methods whose value belongs to a state."""


class Hosts(Protocol):
    """Processes that execute calls.

    Attributes:
        queries: Methods and properties that answers to calls include, since they were needed before.
    """

    queries: set[str]

    def execute(self, call: EnvCall, state: EnvState) -> EnvAnswer:
        """Return the answer to a call of an environment, which is built first if no host has it in its state.

        Raises:
            Stop: No host is left.
        """
        ...

    def register(self, env: HostedEnv) -> int:
        """Return a number for an environment, which hosts drop when the object is collected."""
        ...


class RemoteTraceback(Exception):
    """Traceback of an error on a host, as the cause of the error here."""


class HostedEnv(RebuiltCopies, gym.Env[str, str]):
    """Environment in the process of a host, with the methods and properties that its class has.

    Calls block until their answer has arrived; `play` therefore makes them in a thread of the environment's own.
    An answer includes what was needed of earlier states, such as snapshots, so that a step is one round trip.

    Args:
        hosts: Processes that execute its calls.
        source: How hosts make the environment.
        model: Such an environment in this process, for what does not depend on the state.
    """

    waits = True
    times_steps = True

    def __init__(self, hosts: Hosts, source: EnvSource, model: TextEnv[Any]) -> None:
        self._hosts, self._model = hosts, model
        self.spec = model.spec
        self._number = hosts.register(self)
        self._state = EnvState(source)
        self._view: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """See `TextEnv.reset`."""
        result: tuple[str, Info] = self._change("reset", (), {"seed": seed, "options": options})
        return result

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """See `TextEnv.step`."""
        result: tuple[str, float, bool, bool, Info] = self._change("step", (action,), {})
        return result

    def restore(self, snapshot: Snapshot, seed: int | None = None) -> None:
        """See `TextEnv.restore`."""
        self._change("restore", (snapshot, seed), {})

    def counts_as_effect(self, action: str, before: Hashable, info: Mapping[str, Any]) -> bool:
        """See `TextEnv.counts_as_effect`; the action is that of the last step."""
        if EFFECT not in self._view:
            self._hosts.queries.add(EFFECT)
            self._view[EFFECT] = self._ask(EFFECT, action, before, info)
        return bool(self._view[EFFECT])

    def random_action(self, rng: random.Random) -> str:
        """See `TextEnv.random_action`."""
        action, state = self._ask("random_action", rng)
        rng.setstate(state)
        return str(action)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        member = getattr_static(type(self._model), name, None)
        if isinstance(member, FunctionType):
            method: Callable[..., Any] = partial(self._ask, name)
            return method
        if isinstance(member, (property, cached_property)):
            return self._ask(name)
        return getattr(self._model, name)

    def _change(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Execute a method that changes the state, and record it."""
        is_step = name == "step"
        kept = {key: value for key, value in self._view.items() if key in _OF_EPISODE} if is_step else {}
        self._view = {}
        state = self._state if is_step else EnvState(self._state.source)
        wanted = frozenset(self._hosts.queries - kept.keys())
        answer = self._execute(EnvCall(self._number, name, arguments, options, wanted), state)
        self._view = {**kept, **answer.view}
        observation = None if name == "restore" else answer.value[0]
        self._state = EnvState(state.source, (*state.calls, (name, arguments, options)), observation)
        return answer.value

    def _ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return a property, or the result of a method that leaves the state as it is."""
        is_query = name in _OF_EPISODE | _OF_STATE and not arguments and not options
        if is_query and name in self._view:
            return self._view[name]
        value = self._execute(EnvCall(self._number, name, arguments, options), self._state).value
        if is_query:
            self._hosts.queries.add(name)
            self._view[name] = value
        return value

    def _execute(self, call: EnvCall, state: EnvState) -> EnvAnswer:
        """Return the answer to a call, and raise the error that it holds.

        Raises:
            Stop: No host is left, or one has other tasks.
        """
        answer = self._hosts.execute(call, state)
        if isinstance(answer.error, OtherTasks):
            raise Stop(str(answer.error))
        if answer.error is not None:
            raise answer.error from RemoteTraceback(f"\n{answer.trace}")
        return answer


__all__ = ["HostedEnv", "Hosts", "RemoteTraceback"]
