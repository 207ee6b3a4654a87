"""MCP 2.3: retrieval as a server with a search tool: `python -m arboretum.agents.adapters.mcp_search INDEX`.

INDEX is an index folder, a corpus file or the address of a retrieval server.
"""

from __future__ import annotations

import sys
from typing import Any

from mcp.server.mcpserver import MCPServer

from ...envs.retrieval.factory import open_retriever
from .mcp import explain_errors

MAX_HITS = 20
"""Maximum number of passages of one search."""


def search_server(source: str, hits: int = 3) -> MCPServer:
    """Return a server whose tool `search` finds passages; `source` is that of `open_retriever`."""
    retriever = open_retriever(source)
    server = MCPServer("arboretum search")

    def search(query: str, count: int = hits) -> list[dict[str, Any]]:
        """Find the passages that match a query, the best first."""
        (found,) = retriever.search([query], min(max(count, 1), MAX_HITS))
        return [{"title": hit.document.title, "text": hit.document.text, "score": hit.score} for hit in found]

    server.add_tool(explain_errors(search))
    return server


if __name__ == "__main__":
    search_server(sys.argv[1]).run("stdio")
