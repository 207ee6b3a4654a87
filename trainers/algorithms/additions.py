"""Mark of settings that earlier versions did not have."""

from __future__ import annotations

from collections.abc import Mapping

ADDED: Mapping[str, bool] = {"added": True}
"""Metadata of a field that stored settings leave out at its default, as runs of earlier versions do.

So those runs can be resumed, and compared with later ones.
"""
