"""What all tests share: where real data lies, and a cache of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests never read or write the user's cache."""
    os.environ["ARBORETUM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real benchmark data; the test skips where there is none."""
    root = os.environ.get("ARBORETUM_DATA")
    if not root:
        pytest.skip("needs real benchmark data: set ARBORETUM_DATA to the folder that holds it")
    return Path(root)


@pytest.fixture(scope="session")
def golden(data: Path) -> Path:
    """The folder of recordings of the original systems, beside the data; the test skips where there is none."""
    folder = data.parent / "golden"
    if not folder.is_dir():
        pytest.skip(f"needs the recordings of the original systems in {folder}")
    return folder
