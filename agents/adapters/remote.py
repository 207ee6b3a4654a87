"""Remote sessions as plain data: how an episode is requested, restored from (task, seed, actions), and listed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError, unknown_name
from ...envs.plain import plain_info
from ...envs.registry import make_env
from ...envs.type_words import in_words

MAX_LISTED = 1000
"""Maximum number of tasks in one reply."""

Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, msgspec.Meta(ge=0)]


class InjectedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An episode so far, which a replay restores. Nothing is unpickled.

    Attributes:
        task: Name of the task.
        seed: Seed of the reset.
        actions: Actions so far.
        env: Id of the environment; None is not compared.
        episode_id, step_count: Of the session that the state comes from; not used.
    """

    task: str
    seed: Seed
    actions: tuple[str, ...] = ()
    env: str | None = None
    episode_id: str | None = None
    step_count: int | None = None


class Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of an episode.

    Attributes:
        seed: Seed; None draws one.
        task: Name of the task; None draws one from the seed.
        split, index: Name of the split, and index of the task in it, as an alternative to `task`.
        injected_state: State to continue from, as an alternative to all others.
    """

    seed: Seed | None = None
    task: str | None = None
    split: str | None = None
    index: Index | None = None
    injected_state: InjectedState | None = None


class Result(NamedTuple):
    """Result of the last reset or step; the reward is None after a reset."""

    observation: str
    reward: float | None
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def done(self) -> bool:
        """True if the episode has ended."""
        return self.terminated or self.truncated


class Session:
    """One environment for one client, and the episode in progress.

    Args:
        id: Id of the environment.
        kwargs: Its arguments. Its tasks are those of one split, named by the argument `split`, or else "all".

    Attributes:
        env: The environment.
        split: Name of the split.
        seed: Seed of the episode.
        actions: Actions of the episode.

    Raises:
        ConfigurationError: The environment or an argument is unknown.
    """

    def __init__(self, id: str, kwargs: Mapping[str, Any]) -> None:
        self.id = id
        self.env: TextEnv[Any] = make_env(id, **kwargs)
        self.split = str(kwargs.get("split") or "all")
        self.seed = 0
        self.actions: list[str] = []
        self._last: Result | None = None

    def open(self, request: Mapping[str, Any]) -> Result:
        """Begin the episode of a request, or restore one by replay.

        Args:
            request: An `Opening` as a mapping; entries that are None count as absent.

        Raises:
            ConfigurationError: The request is malformed, or its split, task or environment is unknown.
        """
        try:
            given = msgspec.convert(dict(request), Opening)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"the reset is malformed: {in_words(error)}") from None
        if given.split is not None:
            self.check_split(given.split)
        seed = secrets.randbits(31) if given.seed is None else given.seed
        task: str | int | None = given.index if given.task is None else given.task
        state = given.injected_state
        if state is not None:
            if state.env not in (None, self.id):
                raise ConfigurationError(f"the injected state is of {state.env}, not of {self.id}.")
            seed, task = state.seed, state.task
        observation, info = self.env.reset(seed=seed, options=None if task is None else {"task": task})
        self.seed, self.actions = seed, []
        self._last = Result(observation, None, False, False, plain_info(info))
        for action in () if state is None else state.actions:
            if self._last.done:
                raise ConfigurationError(f"the injected episode ended after {len(self.actions)} of its actions.")
            self.step(action)
        return self._last

    def check_split(self, split: str) -> None:
        """Raise a ConfigurationError for another split than that of the session."""
        if split != self.split:
            raise unknown_name("split", split, (self.split,))

    def step(self, action: str) -> Result:
        """Take one action.

        Raises:
            gymnasium.error.ResetNeeded: No episode was opened.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        result = self._last = Result(
            observation, float(reward), bool(terminated), bool(truncated), plain_info(info)
        )
        if len(self.actions) < self.env.steps:  # The environment does not count steps after the end.
            self.actions.append(action)
        return result

    def state(self) -> dict[str, Any]:
        """Return the episode so far as an `InjectedState`; the task is empty before the first reset."""
        task = "" if self._last is None else self.env.task
        return {"env": self.id, "task": task, "seed": self.seed, "actions": list(self.actions)}


class SessionTasks:
    """Task API of a session: the tasks of its one split, as OpenEnv lists them.

    Every method that takes the name of a split raises a ConfigurationError for another one.
    """

    session: Session

    def list_splits(self) -> list[str]:
        """Return the name of the split."""
        return [self.session.split]

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks."""
        self.session.check_split(split)
        return len(self.session.env.tasks)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return one task; raise IndexError for an index outside the split."""
        return self.get_task_range(split, index, index + 1)[0]

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the tasks of a range with their indices, at most `MAX_LISTED`."""
        tasks = self.session.env.tasks
        indices = range(self.num_tasks(split))[start:stop][:MAX_LISTED]
        return [{"id": tasks[index], "index": index} for index in indices]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return the first tasks."""
        return self.get_task_range(split)
