"""What the workers of one test session share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a temporary folder that all workers of this test session use, and no other session."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
