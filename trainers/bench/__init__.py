"""The speed of training, in the form of `eval.bench`."""

from __future__ import annotations

TRAINING: dict[str, tuple[str, ...]] = {
    "train": tuple(f"{__name__}.{part}" for part in ("update", "phases", "utilization"))
}
"""What `arboretum bench` can measure of training, and the modules that do it."""
