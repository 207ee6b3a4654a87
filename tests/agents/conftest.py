"""What the tests of language agents share: a tiny model that is made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Qwen2-architecture model (0.36M parameters), its byte-level BPE tokenizer and ChatML.

    The test skips where the extra `lm` is not installed.
    """
    for module in ("torch", "transformers", "tokenizers"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum[lm]'")
    from arboretum.eval.bench.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
