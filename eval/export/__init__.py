"""Export of a run's episodes to the formats of other tools."""

from __future__ import annotations

from typing import Literal

Format = Literal["parquet", "csv", "sft", "preference", "stepwise", "inspect", "atif"]
"""Formats of `arboretum export`."""
