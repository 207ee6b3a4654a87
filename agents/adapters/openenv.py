"""OpenEnv 0.10: an environment as OpenEnv's `Environment`, with sessions, the task API and states as JSON."""

from __future__ import annotations

import asyncio
from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State
from openenv.core.env_server.types import EnvironmentMetadata

from .remote import Result, Session, SessionTasks


class TextAction(Action):  # type: ignore[misc]
    """One action as text."""

    action: str


class TextObservation(Observation):  # type: ignore[misc]
    """Observation with the flags and the `info` of Gymnasium's interface."""

    observation: str
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class TextState(State):  # type: ignore[misc]
    """The episode so far, which `reset(injected_state=…)` restores by replay."""

    env: str
    task: str
    seed: int
    actions: list[str]


class OpenEnvironment(SessionTasks, Environment):  # type: ignore[misc]
    """One session of an environment, given by its id and arguments."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: str, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.session = Session(env, kwargs)
        self._episode_id: str | None = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> TextObservation:
        """Open the episode that an `Opening` describes."""
        result = self.session.open({"seed": seed, **options})
        self._episode_id = episode_id
        return _observe(result, instructions=self.session.env.instructions)

    def step(self, action: TextAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
        """Take one action; an invalid one is refused by the observation."""
        return _observe(self.session.step(action.action))

    async def step_async(self, action: TextAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
        """Take one action; in a thread only where it may wait for a service, as the hop costs more than a step."""
        if self.session.env.replay_is_costly:
            return await asyncio.to_thread(self.step, action)
        return self.step(action)

    @property
    def state(self) -> TextState:
        """The episode so far."""
        state = self.session.state()
        return TextState(episode_id=self._episode_id, step_count=len(state["actions"]), **state)

    def get_metadata(self) -> EnvironmentMetadata:
        """Return the id and the instructions of the environment."""
        from ... import __version__

        text = self.session.env.instructions
        return EnvironmentMetadata(name=self.session.id, description=text, version=__version__)


def _observe(result: Result, **metadata: Any) -> TextObservation:
    return TextObservation(**result._asdict(), done=result.done, metadata=metadata)
