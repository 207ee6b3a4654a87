"""Benchmarks of training speed, in the form of `eval.bench`."""

from __future__ import annotations

TRAINING: dict[str, tuple[str, ...]] = {
    "train": tuple(f"{__name__}.{module}" for module in ("update", "phases", "utilization")),
    "trees": tuple(
        f"{__name__}.{module}" for module in ("trees_sampling", "trees_update", "trees_growth", "trees_overhead")
    ),
    "asynchronous": (f"{__name__}.asynchronous",),
    "real_model": (f"{__name__}.real_model",),
}
"""Modules of each training benchmark of `arboretum bench`, by the name of the benchmark."""
