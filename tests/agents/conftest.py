"""Fixtures of the agents' tests: a tiny model, made once per session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from arboretum.agents.engines.openai import OpenAIEngine
    from arboretum.eval.bench.endpoint import Endpoint


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random model of the Qwen2 architecture with its tokenizer and a ChatML template.

    It has 0.36 million parameters and a byte-level BPE tokenizer. Tests that use it are skipped where the extra
    `lm` is not installed.
    """
    for module in ("torch", "transformers", "tokenizers"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")
    from arboretum.eval.bench.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_model: Path) -> Any:
    """Return the tokenizer of the tiny model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """Run a local HTTP server with the chat completions API."""
    from arboretum.eval.bench.endpoint import Endpoint

    with Endpoint().running() as server:
        yield server


@pytest.fixture
def make(endpoint: Endpoint) -> Iterator[Callable[..., OpenAIEngine]]:
    """Return a function that makes OpenAI engines for the endpoint, which are closed after the test."""
    from arboretum.agents.engines.openai import OpenAIEngine

    engines: list[OpenAIEngine] = []

    def build(**options: Any) -> OpenAIEngine:
        engines.append(OpenAIEngine("m", **{"base_url": endpoint.url, "api_key": "secret", **options}))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("engine ")]
