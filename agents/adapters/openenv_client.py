"""Client of a server of environments: a `gymnasium.Env` that needs no OpenEnv (extra `openenv-client`)."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex

import gymnasium as gym
import msgspec
import numpy as np
from gymnasium.envs.registration import EnvSpec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.sync.client import connect

from ...envs.errors import ConfigurationError
from ...envs.spaces import ActionText, AnyText
from ...envs.tools import ANY_ACTION

Step = tuple[str, float, bool, bool, dict[str, Any]]


class _Metadata(msgspec.Struct, frozen=True):
    instructions: str | None = None


class _Observation(msgspec.Struct):
    observation: str
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    metadata: _Metadata = _Metadata()


class _Info(msgspec.Struct):
    task: str
    admissible_actions: tuple[str, ...] | None = None


class _Data(msgspec.Struct):
    observation: _Observation | None = None
    reward: float | None = None
    message: str | None = None
    code: str | None = None


class _Reply(msgspec.Struct):
    type: str
    data: _Data


class RemoteEnv(gym.Env[str, str]):
    """Environment of a server, one session for each instance; the same episodes as the environment itself plays.

    Language agents and `EpisodeChat` can play it; `play` steps several of them concurrently. What needs the state
    of the environment, such as experts, snapshots and trees, is not served.

    `reset(options=…)` takes `task` (a name, or an index in the server's split), or `injected_state`, which is a
    value of `state`. If the server closes the session, because it was idle or restarts, or does not answer in
    time, the next reset or step opens a new one, and a step restores the episode from its task, seed and actions.

    Args:
        url: Address of the environment, such as "http://127.0.0.1:8700" or "…:8700/TextSokoban-v0".
        timeout: Time in seconds to wait for a connection, and for each reply.

    Attributes:
        instructions: Description of the environment, as `TextEnv.instructions`; empty before the first reset.
        tools: The function `act`, which takes any action as text.
        reconnects: Number of sessions that took the place of closed ones.

    Raises:
        ConfigurationError: There is no such server, or a request was refused; the message has its reason.
        TimeoutError: A reply did not arrive in time; the request may be repeated.
    """

    waits = True
    tools = (ANY_ACTION,)

    def __init__(self, url: str, *, timeout: float = 60.0) -> None:
        self.url = url.rstrip("/")
        # From this, `play` replaces an environment that a time limit interrupted.
        self.spec = EnvSpec("RemoteEnv", f"{__name__}:RemoteEnv", kwargs={"url": url, "timeout": timeout})
        self.observation_space = AnyText(2**20)
        self.action_space = ActionText(4096, self._draw)
        self.instructions = ""
        self.reconnects = 0
        self._timeout = timeout
        self._choices: tuple[str, ...] = ()
        self._state: dict[str, Any] = {}
        self._ended = False
        self._connect()

    @property
    def state(self) -> dict[str, Any]:
        """The episode so far as JSON data: task, seed and actions."""
        return {**self._state, "actions": list(self._state["actions"])}

    @property
    def task(self) -> str:
        """Name of the open task."""
        return str(self._state["task"])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; see the class and `TextEnv.reset`."""
        super().reset(seed=seed)
        opening = dict(options or {})
        task = opening.get("task")
        if isinstance(task, SupportsIndex) and not isinstance(task, bool):
            opening["index"] = operator.index(opening.pop("task"))
        given = opening.get("injected_state")
        if given is None:
            opening["seed"] = int(self.np_random.integers(2**31)) if seed is None else seed
        try:
            observation, _, terminated, truncated, info = self._ask("reset", opening)
        except ConnectionError:
            self._reconnect()
            observation, _, terminated, truncated, info = self._ask("reset", opening)
        start = opening if given is None else given
        self._state = {"task": info["task"], "seed": start["seed"], "actions": list(start.get("actions", ()))}
        self._ended = terminated or truncated
        return observation, info

    def step(self, action: str) -> Step:
        """Take one action; see `TextEnv.step`."""
        if not self._state:
            raise gym.error.ResetNeeded("Call reset() before step().")
        try:
            result = self._ask("step", {"action": action})
        except ConnectionError:
            self._reconnect()
            self._ask("reset", {"injected_state": self.state})
            result = self._ask("step", {"action": action})
        if not self._ended:  # Steps after the end are not part of the episode.
            self._state["actions"].append(action)
        self._ended = result[2] or result[3]
        return result

    def close(self) -> None:
        """End the session."""
        self._socket.close()

    def _connect(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{self.url} is not a server of environments: an address begins with http:// or https://."
            )
        address = f"ws{self.url.removeprefix('http')}/ws"
        try:
            self._socket = connect(
                address,
                open_timeout=self._timeout,
                close_timeout=1.0,
                compression=None,
                max_size=2**24,
                proxy=None,
            )
        except (OSError, InvalidHandshake, InvalidURI, ValueError) as error:  # a malformed host or port
            raise ConfigurationError(f"{self.url} is not a server of environments: {error}.") from None

    def _reconnect(self) -> None:
        self._connect()
        self.reconnects += 1

    def _ask(self, kind: str, data: Mapping[str, Any]) -> Step:
        """Send a message, and return the reply; raise ConnectionError if the session has been closed."""
        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            text = self._socket.recv(self._timeout)
        except ConnectionClosed as error:
            raise ConnectionError(f"{self.url} closed the session: {error}") from None
        except TimeoutError:
            self._socket.close()  # The late reply must not be taken for that of the next request.
            raise TimeoutError(f"{self.url} did not answer within {self._timeout:g} seconds") from None
        except KeyboardInterrupt:
            self._socket.close()
            raise
        try:
            reply = msgspec.json.decode(text, type=_Reply).data
            known = None if reply.observation is None else msgspec.convert(reply.observation.info, _Info)
        except (msgspec.DecodeError, RecursionError) as error:
            reason = str(error).rstrip(".")
            raise ConfigurationError(f"{self.url} has another version of the protocol: {reason}.") from None
        if reply.code == "SESSION_ERROR":
            raise ConnectionError(f"{self.url}: {reply.message}")
        if reply.observation is None or known is None:
            raise ConfigurationError(f"{self.url}: {reply.message or 'the reply has no observation.'}")
        observation, terminated, truncated, info, metadata = msgspec.structs.astuple(reply.observation)
        self.instructions = metadata.instructions or self.instructions
        if known.admissible_actions is not None:  # JSON has no tuples
            info["admissible_actions"] = known.admissible_actions
        self._choices = known.admissible_actions or ()
        return observation, reply.reward or 0.0, terminated, truncated, info

    def _draw(self, rng: np.random.Generator) -> str | None:
        """Return an admissible action, if the server's environment lists them (`admissible=true`)."""
        return self._choices[int(rng.integers(len(self._choices)))] if self._choices else None
