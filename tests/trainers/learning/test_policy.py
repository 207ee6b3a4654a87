"""Loading of models to train."""

from __future__ import annotations

from pathlib import Path

import pytest

for module in ("torch", "transformers", "peft"):
    pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")

from arboretum.envs.errors import ConfigurationError
from arboretum.eval.bench.tiny import make_tiny_model
from arboretum.trainers.config.settings import LoraConfig
from arboretum.trainers.learning.policy import load_trainable_model


@pytest.mark.parametrize("targets", ["nothing", "("])
def test_targets_of_adapters_that_match_no_layer_are_rejected(targets: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny")
    with pytest.raises(ConfigurationError, match=r"^lora.targets = .* matches no layer of the model: "):
        load_trainable_model(folder, "cpu", lora=LoraConfig(4, 8, targets))
