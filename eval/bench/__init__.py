"""Speed benchmarks, mostly as ratios within one run.

Absolute times depend on the machine and on its load. Each module therefore alternates between Arboretum and a
baseline, in CPU seconds of the same process, over several rounds, and yields `Row`s of one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec

from ...envs.errors import unknown_name
from ...envs.extras import missing_extra
from .row import Row

BENCHES: dict[str, tuple[str, ...]] = {
    name: tuple(f"{__name__}.{part}" for part in parts.split())
    for name, parts in {
        "envs": "startup sokoban frozenlake blocksworld alfworld webshop",
        "retrieval": "retrieval",
        "rollout": "rollout harness conversation openai",
        "waiting": "waiting",
        "openenv": "openenv",
        "parsers": "parsers",
        "runs": "runs",
        "labels": "labels",
    }.items()
}
"""Modules of each benchmark of `arboretum bench`, by the name of the benchmark."""

REQUIRED: dict[str, tuple[str, tuple[str, ...]]] = {
    "rollout": ("lm", ("torch", "transformers")),
    "harness": ("lm", ("torch", "transformers")),
    "openai": ("openai", ("aiohttp", "stamina")),
    "waiting": ("openai", ("aiohttp", "stamina")),
    "openenv": ("openenv", ("openenv", "websockets")),
    "asynchronous": ("lm", ("torch", "transformers", "accelerate")),
    "update": ("lm", ("torch", "transformers", "accelerate")),
    "phases": ("lm", ("torch", "transformers", "accelerate")),
    "trees_update": ("lm", ("torch", "transformers", "accelerate")),
    "trees_growth": ("lm", ("torch", "transformers", "accelerate")),
    "utilization": ("lm", ("torch", "transformers", "accelerate")),
    "trees_sampling": ("lm", ("torch", "transformers")),
    "real_model": ("lm", ("torch", "transformers", "accelerate")),
    "trees_overhead": ("lm", ("torch", "transformers", "accelerate")),
}
"""Extra and packages without which a module measures nothing, by the name of the module without its package."""


def measurements(
    what: str, peers: bool = False, further: Mapping[str, tuple[str, ...]] | None = None
) -> Iterator[Row]:
    """Run a benchmark and yield its rows as they are measured.

    Args:
        what: Name of a benchmark, or of one of its modules without the package.
        peers: Also measure the original systems, where they are installed.
        further: Benchmarks of other packages, in the form of `BENCHES`.

    Raises:
        ConfigurationError: The name is unknown, or an extra that the benchmark requires is not installed.
    """
    benches = {**BENCHES, **(further or {})}
    parts = {module.rpartition(".")[2]: (module,) for modules in benches.values() for module in modules}
    known = {**parts, **benches}
    if what not in known:
        raise unknown_name("benchmark", what, dict.fromkeys([*benches, *parts]))
    for module in known[what]:
        extra, packages = REQUIRED.get(module.rpartition(".")[2], ("", ()))
        for package in packages:
            if find_spec(package) is None:
                raise missing_extra(f"arboretum bench {what}", extra, package)
    for module in known[what]:
        yield from import_module(module).measure(peers=peers)
