"""Weights on their way to vLLM's servers; the servers themselves are in `test_vllm_training.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("safetensors", reason="needs safetensors: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.vllm_worker import WeightLoader, read_weights
from arboretum.trainers.sampling import policy_servers
from arboretum.trainers.sampling.policy_servers import write_weights


def test_servers_read_the_weights_that_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In files of limited size, in the dtype of the run, also of views of other tensors."""
    monkeypatch.setattr(policy_servers, "PART_BYTES", 1000)
    base = torch.randn(40, 30)
    weights = {"embedding.weight": base, "transposed": base.T, "bias": base[0], "norm": torch.ones(3)}
    write_weights(weights.items(), tmp_path / "one", torch.bfloat16)
    assert len(list((tmp_path / "one").iterdir())) == 3
    found = dict(read_weights(tmp_path / "one"))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name].bfloat16()) for name in weights)


def test_folder_that_a_server_does_not_see_is_reported(tmp_path: Path) -> None:
    class Worker(WeightLoader):
        class model_config:
            hf_config = None

        def reload_weights(self, weights_iterator: object) -> None:
            list(weights_iterator)  # type: ignore[call-overload]

        def get_model(self) -> torch.nn.Module:
            return torch.nn.Linear(2, 2)

    error = Worker().arboretum_load(str(tmp_path / "nothing"), "1")["error"]
    assert error is not None and "trainer and server must share this folder" in error
