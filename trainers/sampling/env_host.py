"""Environments in a process of another machine, which executes the calls that it receives.

Nothing here imports Ray: `env_workers` makes actors of `EnvHost`. A call names its environment by a number. An
environment whose host was lost is built again on another one, by the calls that led to its state.
"""

from __future__ import annotations

import math
import pickle
import socket
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ...agents.contracts import check_opened, check_step
from ...agents.deadline import Expired, expires_after
from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.user_code import USER_ERRORS, describe_error, keep_line
from ...eval.planning import check_tasks, digest_tasks
from ...eval.suite import Entry

CHANGES = frozenset({"reset", "restore", "step"})
"""Methods that change the state of an environment; the time limit of a step holds for them."""

EFFECT = "counts_as_effect"
"""Query whose value is that of the step before it."""

SAMPLE = 8
"""Tasks whose first observations are compared before a host opens an environment."""


class EnvSource(NamedTuple):
    """Environment that hosts make.

    Attributes:
        entry: Its suite entry.
        tasks: Some of its tasks.
        digest: Digest of them, which differs between data sets.
    """

    entry: Entry
    tasks: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, entry: Entry, env: TextEnv[Any]) -> EnvSource:
        """Return the source of an entry.

        Args:
            entry: The entry.
            env: Its environment on this machine, whose episode is lost.
        """
        count = len(env.tasks)
        tasks = tuple(env.tasks[count * place // SAMPLE] for place in range(min(count, SAMPLE)))
        return cls(entry, tasks, digest_tasks(env, tasks))

    def make(self) -> TextEnv[Any]:
        """Return a new environment.

        Raises:
            OtherTasks: This machine has other tasks.
        """
        env = self.entry.make()
        check_tasks(env, self.entry.name, self.tasks, self.digest)
        return env


class EnvState(NamedTuple):
    """State of an environment, as a host builds it.

    Attributes:
        source: Source of the environment.
        calls: Method and arguments of the calls that led to the state: a reset or a restore, and the steps after;
            empty before the first reset.
        observation: Last observation; None if there was none since the restore.
    """

    source: EnvSource
    calls: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = ()
    observation: str | None = None


class EnvCall(NamedTuple):
    """Call of a method, or of a property, of an environment.

    Attributes:
        number: Number of the environment.
        name: Name of the method or property.
        arguments, options: Arguments of the method.
        queries: Methods without arguments and properties whose values are returned as well, and `EFFECT`.
    """

    number: int
    name: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple default; never mutated)
    queries: frozenset[str] = frozenset()


class EnvAnswer(NamedTuple):
    """Answer to a call.

    Attributes:
        value: Returned value; None if there is an error.
        error: Exception that was raised; None if there is none.
        trace: Traceback of the error.
        view: Values of the queries, without those that raised.
        is_lost: True if the host dropped the environment, whose state is unknown.
    """

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    view: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple default; never mutated)
    is_lost: bool = False


class EnvHost:
    """Environments of one process.

    Args:
        step_timeout: Wall time of a reset, a restore or a step in seconds, after which `Expired` is the answer and
            the environment is dropped; None for no limit. A time limit interrupts Python code in the main thread
            only, see `expires_after`.
    """

    def __init__(self, step_timeout: float | None = None) -> None:
        self._limit = math.inf if step_timeout is None else step_timeout
        self._envs: dict[int, TextEnv[Any]] = {}
        self._spare: dict[str, TextEnv[Any]] = {}
        self._checked: set[str] = set()

    def open(self, version: str, sources: Sequence[EnvSource]) -> None:
        """Compare versions and tasks, and keep the environments that this opens for the first calls.

        Args:
            version: Version of arboretum in the training process.
            sources: Environments of the run.

        Raises:
            ConfigurationError: The version or the tasks differ, or an environment cannot be made here.
        """
        from ... import __version__

        if version != __version__:
            raise ConfigurationError(
                f"node {socket.gethostname()} has version {__version__} of arboretum, but this machine {version};"
                " install the same one."
            )
        for source in sources:
            self._spare[repr(source.entry)] = self._make(source)

    def build(self, states: Mapping[int, EnvState]) -> dict[int, bytes]:
        """Make environments and bring them into their states.

        Args:
            states: States by the numbers of the environments.

        Returns:
            Pickled answers with the errors of those for which that failed.
        """
        failed = {}
        for number, state in states.items():
            self._envs.pop(number, None)
            try:
                self._envs[number] = self._build(state)
            except (*USER_ERRORS, Expired) as error:
                failed[number] = _pickle(_failure(error, is_lost=True))
        return failed

    def execute(self, calls: Sequence[EnvCall], dropped: Collection[int] = ()) -> list[bytes]:
        """Execute calls one after the other, and return their pickled answers.

        Args:
            calls: Calls of environments that were built.
            dropped: Numbers of environments that no call will name any more.
        """
        for number in dropped:
            self._envs.pop(number, None)
        return [_pickle(self._answer(call)) for call in calls]

    def _answer(self, call: EnvCall) -> EnvAnswer:
        env = self._envs[call.number]
        try:
            asks_effect = call.name == "step" and EFFECT in call.queries
            before = env.state_key() if asks_effect else None
            value = self._call(env, call.name, call.arguments, call.options)
            view = _look(env, call.queries - {EFFECT})
            if asks_effect:
                view[EFFECT] = env.counts_as_effect(call.arguments[0], before, value[-1])
            return EnvAnswer(value, view=view)
        except Expired as error:
            del self._envs[call.number]
            return _failure(error, is_lost=True)
        except USER_ERRORS as error:
            return _failure(error)

    def _build(self, state: EnvState) -> TextEnv[Any]:
        """Return a new environment in a state.

        Raises:
            RuntimeError: Its last observation is not the recorded one.
        """
        env = self._spare.pop(repr(state.source.entry), None) or self._make(state.source)
        observation = None
        for name, arguments, options in state.calls:
            value = self._call(env, name, arguments, options)
            observation = None if name == "restore" else value[0]
        if observation is not None and observation != state.observation:
            raise RuntimeError(
                "its worker was lost, and executing the episode's actions again gave another observation"
            )
        return env

    def _make(self, source: EnvSource) -> TextEnv[Any]:
        key = repr(source.entry)
        if key in self._checked:
            return source.entry.make()
        env = source.make()
        self._checked.add(key)
        return env

    def _call(self, env: TextEnv[Any], name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        member = getattr(env, name)
        if not callable(member):
            return member
        if name == "random_action":  # which advances the generator of the caller
            (rng,) = arguments
            return member(rng), rng.getstate()
        if name not in CHANGES:
            return member(*arguments, **options)
        with expires_after(time.perf_counter() + self._limit):
            value = member(*arguments, **options)
        if name == "reset":
            check_opened(env, *value)
        elif name == "step":
            check_step(env, value[0], value[1], value[-1])
        return value


def _look(env: TextEnv[Any], names: Collection[str]) -> dict[str, Any]:
    """Return values of properties and of methods without arguments; those that raise are left out."""
    found = {}
    for name in names:
        try:
            member = getattr(env, name)
            found[name] = member() if callable(member) else member
        except USER_ERRORS:  # raised to whoever calls the method
            continue
    return found


def _failure(error: BaseException, *, is_lost: bool = False) -> EnvAnswer:
    trace = "".join(traceback.format_exception(error))
    keep_line(error)
    return EnvAnswer(None, _portable(error), trace, is_lost=is_lost)


def _portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled and unpickled, if need be another one with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(describe_error(error))
    return error


def _pickle(answer: EnvAnswer) -> bytes:
    try:
        return pickle.dumps(answer)
    except Exception as error:
        problem = TypeError(f"the environment's answer cannot be sent to the training process ({error})")
        return pickle.dumps(EnvAnswer(None, problem, str(problem)))


__all__ = ["CHANGES", "EFFECT", "SAMPLE", "EnvAnswer", "EnvCall", "EnvHost", "EnvSource", "EnvState"]
