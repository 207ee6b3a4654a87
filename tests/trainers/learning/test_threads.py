"""Threads of PyTorch for small and large models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.learning.threads import SMALL_MODEL, limit_threads


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("parameters", "variable", "threads"), [(100, None, 1), (SMALL_MODEL, None, 3), (100, "3", 3), (100, "", 1)]
)
def test_small_model_gets_one_thread_unless_the_user_has_chosen(
    parameters: int, variable: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    limit_threads(torch.nn.Linear(parameters, 1, bias=False))
    assert torch.get_num_threads() == threads
