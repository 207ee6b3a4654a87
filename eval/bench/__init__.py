"""Speed, measured as ratios within one run.

Machines differ and are shared, so absolute times say little. Each module measures ours and its yardstick in turn,
in CPU seconds of the same process, round by round, and yields `Row`s for one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec

from ...envs.errors import unknown_name
from .row import Row

BENCHES: dict[str, tuple[str, ...]] = {
    name: tuple(f"{__name__}.{part}" for part in parts.split())
    for name, parts in {
        "envs": "startup sokoban frozenlake blocksworld alfworld webshop",
        "retrieval": "retrieval",
        "rollout": "rollout harness openai",
    }.items()
}
"""What `arboretum bench` can measure, and the modules that do it."""


def measurements(
    what: str, peers: bool = False, further: Mapping[str, tuple[str, ...]] | None = None
) -> Iterator[Row]:
    """Measure, row by row.

    Args:
        what: a key of `BENCHES` or `further`, or the last part of the name of one of their modules.
        peers: also measure the original systems, where they are installed.
        further: benchmarks of other rooms, in the form of `BENCHES`.

    Raises:
        ConfigurationError: unknown name.
    """
    benches = {**BENCHES, **(further or {})}
    parts = {module.rpartition(".")[2]: (module,) for modules in benches.values() for module in modules}
    known = {**parts, **benches}
    if what not in known:
        raise unknown_name("benchmark", what, dict.fromkeys([*benches, *parts]))
    for module in known[what]:
        if find_spec(module) is None:
            continue
        yield from import_module(module).measure(peers=peers)
