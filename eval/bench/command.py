"""The command `arboretum bench`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console

from ..table import bench_table
from . import measurements


def run_benchmark(name: str, *, peers: bool, further: Mapping[str, tuple[str, ...]], console: Console) -> int:
    """Run a benchmark and print its table.

    Args:
        name: See `measurements`, like `peers` and `further`.
        console: Terminal.

    Returns:
        The exit status: 1 if a target is missed.
    """
    rows = []
    with console.status("measuring …") as status:
        for row in measurements(name, peers=peers, further=further):
            rows.append(row)
            status.update(f"measured: {row.what}")
    console.print(bench_table(rows, console.width))
    for row in rows:
        if math.isnan(row.value):
            console.print(f"Not measured: {row.details}", markup=False, soft_wrap=True)
    targets = [row.reached for row in rows if row.reached is not None]
    if all(targets):
        return 0
    console.print(f"{targets.count(False)} of {len(targets)} targets missed.")
    return 1
