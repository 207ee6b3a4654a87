"""MCP 2.3: retrieval as a server with a search tool: `python -m arboretum.agents.adapters.mcp_search INDEX`.

INDEX is an index folder, a corpus file or the address of a retrieval server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...envs.retrieval.factory import open_retriever
from .mcp_server import explain_errors, make_server, serve_over_stdio

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

MAX_HITS = 20
"""Maximum number of passages of one search."""


def search_server(source: str, hits: int = 3) -> MCPServer:
    """Return a server whose tool `search` finds passages; `source` is that of `open_retriever`."""
    server = make_server("arboretum search")
    retriever = open_retriever(source)

    def search(query: str, count: int = hits) -> list[dict[str, Any]]:
        """Find the passages that match a query, the best first."""
        (found,) = retriever.search([query], min(max(count, 1), MAX_HITS))
        return [{"title": hit.document.title, "text": hit.document.text, "score": hit.score} for hit in found]

    server.add_tool(explain_errors(search))
    return server


if __name__ == "__main__":
    serve_over_stdio(search_server, "index", "an index folder, a corpus file or a retrieval server")
