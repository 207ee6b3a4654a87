"""Speed, measured as ratios within one run.

Machines differ and are shared, so absolute times say little. Each module measures ours and its yardstick in turn,
in CPU seconds of the same process, round by round, and yields `Row`s for one table.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from ...envs.errors import unknown_name
from .row import Row

BENCHES: dict[str, tuple[str, ...]] = {
    "worlds": ("startup", "sokoban", "frozenlake", "blocksworld", "alfworld", "webshop"),
    "retrieval": ("retrieval",),
    "rollout": ("rollout", "harness", "openai"),
}
"""What `arboretum bench` can measure, and the modules that do it."""


def measurements(what: str, peers: bool = False) -> Iterator[Row]:
    """Measure, row by row.

    Args:
        what: a key of `BENCHES`, or the name of one of its modules.
        peers: also measure the original systems, where they are installed.

    Raises:
        ConfigurationError: unknown name.
    """
    known = [*BENCHES, *(name for names in BENCHES.values() for name in names)]
    if what not in known:
        raise unknown_name("benchmark", what, dict.fromkeys(known))
    for name in BENCHES.get(what, (what,)):
        if find_spec(f"{__name__}.{name}") is None:
            continue
        yield from import_module(f"{__name__}.{name}").measure(peers=peers)
