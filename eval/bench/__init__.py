"""Speed benchmarks, mostly as ratios within one run.

Absolute times depend on the machine and on its load. Each module therefore alternates between Arboretum and a
baseline, in CPU seconds of the same process, over several rounds, and yields `Row`s of one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from ...envs.errors import unknown_name
from .row import Row

BENCHES: dict[str, tuple[str, ...]] = {
    name: tuple(f"{__name__}.{part}" for part in parts.split())
    for name, parts in {
        "envs": "startup sokoban frozenlake blocksworld alfworld webshop",
        "retrieval": "retrieval",
        "rollout": "rollout harness openai",
        "parsers": "parsers",
    }.items()
}
"""Modules of each benchmark of `arboretum bench`, by the name of the benchmark."""


def measurements(
    what: str, peers: bool = False, further: Mapping[str, tuple[str, ...]] | None = None
) -> Iterator[Row]:
    """Run a benchmark and yield its rows as they are measured.

    Args:
        what: Name of a benchmark, or of one of its modules without the package.
        peers: Also measure the original systems, where they are installed.
        further: Benchmarks of other packages, in the form of `BENCHES`.

    Raises:
        ConfigurationError: The name is unknown.
    """
    benches = {**BENCHES, **(further or {})}
    parts = {module.rpartition(".")[2]: (module,) for modules in benches.values() for module in modules}
    known = {**parts, **benches}
    if what not in known:
        raise unknown_name("benchmark", what, dict.fromkeys([*benches, *parts]))
    for module in known[what]:
        yield from import_module(module).measure(peers=peers)
