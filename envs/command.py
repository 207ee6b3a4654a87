"""The command `arboretum envs`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from .registry import all_envs


def list_envs(write: Path | None, console: Console) -> int:
    """Print the ids and descriptions of the environments, or write their pages; return the exit status.

    Args:
        write: Folder of the pages; None prints the list.
        console: Terminal.
    """
    if write is not None:
        from .pages import write_pages

        for path in write_pages(write, all_envs()):
            console.print(str(path), markup=False, soft_wrap=True)
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=max(len(spec.id) for spec in all_envs()))  # never shortened
    for spec in all_envs():
        table.add_row(spec.id, spec.summary)
    console.print(table)
    return 0
