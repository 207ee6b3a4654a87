"""MCP 2.3: any environment as a server with tools: `python -m arboretum.agents.adapters.mcp TextSokoban-v0`."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from ...envs.registry import make_env
from .mcp_server import explain_errors, make_server, one_at_a_time, serve_over_stdio
from .rows import ActTool, append_only_chat, open_episode

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def environment_server(env: str, **kwargs: Any) -> MCPServer:
    """Return a server with the tools start, act, mark and back, for one client and one episode at a time."""
    chat = append_only_chat(make_env(env, **kwargs), ActTool())
    server = make_server(f"arboretum {env}", chat.env.instructions)
    marks: dict[str, dict[str, Any]] = {}

    def result() -> dict[str, Any]:
        episode = chat.episode
        if episode.error is not None:
            raise RuntimeError(episode.error)
        reward = sum(move.reward for move in episode.turns[-1].moves) if episode.turns else 0.0
        outcome = {"reward": reward, "return": episode.total_reward, "done": chat.done, "success": episode.success}
        return {"observation": episode.final_observation, **outcome}

    def check_open() -> None:
        if not chat.is_open:
            raise RuntimeError("no episode is open; call start first")

    def start(task: str | None = None, seed: int = 0) -> dict[str, Any]:
        """Begin an episode of a task; without a task, one is drawn from the seed."""
        open_episode(chat, task, seed)
        marks.clear()
        return result()

    def act(action: str) -> dict[str, Any]:
        """Take one action in the environment."""
        check_open()
        if chat.done:
            raise RuntimeError("the episode has ended; call start to begin another, or back to return to a mark")
        chat.hear(action)
        return result()

    def mark(name: str = "mark") -> str:
        """Remember the current state under a name, for `back`."""
        check_open()
        marks[name] = chat.state()
        return f"marked {name!r} after {chat.episode.steps} actions"

    def back(name: str = "mark") -> dict[str, Any]:
        """Return to a remembered state."""
        if name not in marks:
            raise ValueError(f"there is no mark {name!r}; the marks are {', '.join(marks) or 'none'}")
        chat.resume(marks[name])
        return result()

    lock = Lock()
    for tool in (start, act, mark, back):
        server.add_tool(explain_errors(one_at_a_time(tool, lock)))
    return server


if __name__ == "__main__":
    serve_over_stdio(environment_server, "env", "the environment with an id, such as TextSokoban-v0,")
