"""Command that serves the web shop: its options, whose docstrings are the help, and its action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..checks import check_port


@dataclass(frozen=True)
class ServeWebShop:
    """Serve the web shop of TextWebShop-v0 for browsers.

    Attributes:
        host: Address to listen on; the default accepts connections from this machine only.
        port: TCP port; 0 chooses a free one.
        data: Folder of the products. None uses webshop/ below ARBORETUM_DATA, or generates products without it.
        num_products: Use the first so many products. None uses all of them.
        human_goals: Use goals written by people instead of goals generated from the products.
        threads: Requests to answer at the same time.
    """

    host: str = "127.0.0.1"
    port: int = 3000
    data: Path | None = None
    num_products: int | None = None
    human_goals: bool = False
    threads: int = 8

    def run(self, ready: Callable[[str], None]) -> None:
        """Serve until interrupted; `ready` is called with the address."""
        from .server import serve

        check_port("--port", self.port)
        serve(**vars(self), ready=ready)
