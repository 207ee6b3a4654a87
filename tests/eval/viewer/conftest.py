"""A run for the tests of the viewer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.viewer import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a finished run on generated data, which tests must not change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ARBORETUM_DATA", raising=False)
        yield make_run(tmp_path_factory.mktemp("viewer"))
