"""Fixtures of the agents' tests: a tiny model, made once per session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random model of the Qwen2 architecture with its tokenizer and a ChatML template.

    It has 0.36 million parameters and a byte-level BPE tokenizer. Tests that use it are skipped where the extra
    `lm` is not installed.
    """
    for module in ("torch", "transformers", "tokenizers"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum[lm]'")
    from arboretum.eval.bench.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_model: Path) -> Any:
    """Return the tokenizer of the tiny model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)
