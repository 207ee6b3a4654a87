"""The command `arboretum view`: opens the viewer's pages over a folder of runs."""

from __future__ import annotations

import logging
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from ...agents.base import Agent
from ...envs.checks import check_port
from ..agents import AgentFactory
from ..suite import Entry, Suite
from .app import Extension, Site, serve
from .library import Library
from .sessions import AgentMaker

_log = logging.getLogger(__name__)


def view_runs(
    folder: Path,
    agents: Sequence[AgentFactory],
    extensions: Sequence[Extension],
    *,
    host: str,
    port: int,
    browser: bool,
    ready: Callable[[str], None],
) -> int:
    """Serve the viewer until interrupted, and return the exit status.

    Args:
        folder: Folder of runs, or of one run.
        agents: Agents that may play on from any state, in addition to the expert.
        extensions: Pages for runs of other kinds than evaluations.
        host: Address to listen on.
        port: TCP port; 0 chooses a free one.
        browser: Open the first page in the browser.
        ready: Called with the address.

    Raises:
        ConfigurationError: The folder does not exist, the port is taken, or a package is missing.
    """
    check_port("--port", port)
    site = Site(Library(folder), agent_makers(agents), extensions)
    if not site.library.found():
        _log.warning(
            "%s: holds no runs yet; those that `arboretum eval` and `arboretum train` write there will be listed.",
            folder,
        )

    def announce(address: str) -> None:
        ready(address)
        if browser:
            webbrowser.open(address)

    serve(site, host, port, ready=announce)
    return 0


def agent_makers(agents: Sequence[AgentFactory]) -> dict[str, AgentMaker]:
    """Return the makers of agents by name, as sessions take them."""

    def maker(factory: AgentFactory) -> AgentMaker:
        def make(suite: Suite, entry: Entry) -> Agent:
            return factory.make(suite, entry)

        return make

    return {factory.name: maker(factory) for factory in agents}
