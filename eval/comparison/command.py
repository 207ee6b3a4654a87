"""`arboretum compare` of evaluation runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..output_path import DATA, PAGE, check_output, write_failure
from ..pairing_options import PairingOptions
from .analysis import compare_evaluations
from .page import write_json, write_page
from .table import print_comparison


def compare_agents(runs: Sequence[Path], out: Path | None, options: PairingOptions, *, console: Console) -> int:
    """Print the paired differences of agents, write them to `out` unless it is None, and return the exit status.

    Args:
        runs: Folders of evaluation runs.
        out: HTML file; the data is written beside it, with the ending `.json`. With that ending itself, only the
            data is written.
        options: Agents and their pairing.
        console: Terminal.

    Raises:
        ConfigurationError: The runs cannot be compared, or the file cannot be written.
    """
    if out is not None:
        check_output(out, (PAGE, DATA), with_data=True)
    comparison = compare_evaluations(runs, options.agent, pool=options.pool, detect=options.detect)
    print_comparison(comparison, console)
    if out is not None:
        is_page = out.suffix == PAGE
        written = [out, out.with_suffix(DATA)] if is_page else [out]
        try:
            if is_page:
                write_page(comparison, out)
            write_json(comparison, written[-1])
        except OSError as error:
            raise write_failure(error, out) from None
        names = " and ".join(map(str, written))
        console.print(f"Comparison: {names}", soft_wrap=True, highlight=False, markup=False)
    return 0
