"""Command that serves environments: its options, whose docstrings are the help, and its action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tyro.conf import Positional, UseAppendAction

from ..envs.checks import at_least, check_port, positive
from ..envs.errors import ConfigurationError
from ..envs.extras import optional_module
from .options import parse_options


@dataclass(frozen=True)
class ServeEnvs:
    """Serve environments for OpenEnv's clients, with many sessions.

    Attributes:
        env: Ids of the environments. One is served at the root, and several below their ids.
        env_arg: Argument of the environment, as key=value, such as split=test; only with one environment. Repeat
            the option for more.
        host: Address to listen on; the default accepts connections from this machine only.
        port: TCP port; 0 chooses a free one.
        sessions: Maximum number of sessions of each environment at the same time.
        idle: Time in seconds after which a session without a message is closed.
    """

    env: Positional[tuple[str, ...]]
    env_arg: UseAppendAction[tuple[str, ...]] = ()
    host: str = "127.0.0.1"
    port: int = 8700
    sessions: int = 256
    idle: float = 600.0

    def run(self, ready: Callable[[str], None]) -> None:
        """Serve until interrupted; `ready` is called with the address."""
        check_port("--port", self.port)
        at_least("--sessions", self.sessions, 1)
        positive("--idle", self.idle)
        kwargs = parse_options(self.env_arg, "--env-arg")
        if not self.env:
            raise ConfigurationError("name at least one environment, such as TextSokoban-v0.")
        if kwargs and len(self.env) > 1:
            raise ConfigurationError("--env-arg needs exactly one environment.")
        optional_module("openenv.core.env_server", "openenv", "the server of environments")
        from ..agents.adapters.openenv_server import serve

        envs = dict.fromkeys(self.env, kwargs)
        serve(envs, host=self.host, port=self.port, sessions=self.sessions, idle=self.idle, ready=ready)
