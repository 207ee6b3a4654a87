"""MCP 2.3: servers without tools, and wrappers of the functions that become tools."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

from ...envs.extras import optional_module
from ...envs.terminal import exit_on_error

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def make_server(name: str, instructions: str | None = None) -> MCPServer:
    """Return a server without tools.

    Raises:
        ConfigurationError: The extra is not installed.
    """
    from ... import __version__

    mcpserver = optional_module("mcp.server.mcpserver", "mcp", "an MCP server")
    server: MCPServer = mcpserver.MCPServer(name, instructions=instructions, version=__version__)
    return server


def explain_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool whose errors reach the client as their sentence; MCP hides others."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def call(*args: Any, **arguments: Any) -> Any:
        try:
            return tool(*args, **arguments)
        except (RuntimeError, ValueError) as error:
            raise ToolError(str(error)) from None

    return call


def one_at_a_time(tool: Callable[..., Any], lock: Lock) -> Callable[..., Any]:
    """Return a tool that waits for a lock: MCP executes parallel calls in threads."""

    @wraps(tool)
    def call(*args: Any, **arguments: Any) -> Any:
        with lock:
            return tool(*args, **arguments)

    return call


def serve_over_stdio(make: Callable[[str], MCPServer], argument: str, description: str) -> None:
    """Run a server whose one argument is that of the command; a wrong one ends the process with a sentence."""
    parser = argparse.ArgumentParser(description=f"Serve {description} to one MCP client over stdio.")
    parser.add_argument(argument)
    with exit_on_error():
        make(getattr(parser.parse_args(), argument)).run("stdio")
