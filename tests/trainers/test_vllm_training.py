"""vLLM samples while torch trains: real vLLM with a tiny model, in the training processes and on servers.

See requirements-vllm-cpu.txt.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.filterwarnings("default"),  # vLLM's imports raise many warnings.
]
for module in ("vllm", "torch", "transformers", "accelerate", "peft", "aiohttp", "stamina"):
    if find_spec(module) is None:
        pytest.skip(f"needs {module}; see requirements-vllm-cpu.txt", allow_module_level=True)
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; vLLM's default is half of the memory.

from arboretum.agents.engines.base import Sampling
from arboretum.agents.engines.local.load import load_model
from arboretum.agents.engines.vllm import VLLMEngine
from arboretum.agents.language import LanguageAgent
from arboretum.agents.play import Job, play
from arboretum.envs.errors import ConfigurationError
from arboretum.eval.bench.tiny import make_tiny_model
from arboretum.trainers.checkpoints.export import export_checkpoint
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.data.episodes import from_episodes
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.learning.sharding import full_state_dict
from arboretum.trainers.sampling import policy_servers
from arboretum.trainers.sampling.failures import SamplingFailed
from arboretum.trainers.sampling.tasks import draw_tasks
from arboretum.trainers.trainer import Trainer
from support.launching import accelerate, assert_metrics_close, assert_weights_close
from support.training import finish
from support.vllm_server import free_port, kill, serving

Make = Callable[..., TrainingConfig]

CHILD = """
import pickle, sys, torch
from arboretum.trainers.learning.sharding import full_state_dict
from arboretum.trainers.sampling.failures import SamplingFailed
from arboretum.trainers.trainer import Trainer

trainer = Trainer(pickle.load(open(sys.argv[1], "rb")))
assert trainer.accelerator.num_processes == 2
for _ in trainer.run():
    pass
weights = full_state_dict(trainer.optimizer.policy)
if trainer.is_main:
    torch.save(weights, sys.argv[2])
rank = trainer.accelerator.process_index
if "fail" in sys.argv:
    if rank == 1:
        def step():
            raise RuntimeError("the cache is full")
        trainer.sampler.engine._engine.step = step
    try:
        trainer.collector.roll_out(1.0)
    except SamplingFailed as error:
        open(f"{sys.argv[2]}.{rank}", "w").write(str(error))
trainer.close()
trainer.accelerator.wait_for_everyone()  # The engines have left the process group as it was.
torch.distributed.destroy_process_group()
"""


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
        "optimization.updates": 3,
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


# ---------------------------------------------------------------------- several processes


def train_with_two(accelerate_config: str, config: TrainingConfig, *flags: str) -> dict[str, Any]:
    """Run a training run in two processes, and return its weights; "fail" breaks an engine at the end."""
    import torch

    folder = config.out.with_name(config.out.name + "-child")
    folder.mkdir()
    (folder / "child.py").write_text(CHILD)
    (folder / "config.pickle").write_bytes(pickle.dumps(config))
    files = [str(folder / name) for name in ("child.py", "config.pickle", "weights.pt")]
    done = subprocess.run(
        [*accelerate(accelerate_config), *files, *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    weights: dict[str, Any] = torch.load(folder / "weights.pt")
    return weights


SHORT: dict[str, object] = {"optimization.updates": 2, "optimization.lr": 1e-3, "objective.mismatch.cap": 2.0}


def test_two_processes_with_vllm_each_train_as_one(run_of: Make, tmp_path: Path) -> None:
    """An engine of each process samples its share of the episodes; one that fails ends both processes."""
    options = {
        "hardware": HardwareConfig(device="cpu", engine="vllm"),
        "validation": ValidationConfig(every=1, tasks=4),
    }
    one = run_of("grpo", SHORT, out=tmp_path / "one", **options)
    with closing(finish(Trainer(one))) as trainer:
        expected = full_state_dict(trainer.optimizer.policy)
        assert any(record.get("steps") for record in trainer.history)
    two = dataclasses.replace(one, out=tmp_path / "two")
    assert_weights_close(train_with_two("fsdp2", two, "fail"), expected)
    assert_metrics_close(two, one)
    said = [(tmp_path / "two-child" / f"weights.pt.{rank}").read_text() for rank in (0, 1)]
    assert said[0] == said[1] and "the cache is full" in said[0] and said[0].startswith("sampling failed: ")


# ---------------------------------------------------------------------- servers

CONTEXT = 1024


@pytest.fixture(scope="module")
def servers(warm_model: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Return two vLLM servers that take weights, by their addresses."""
    options = ["--logprobs-mode", "processed_logprobs", "--no-enable-chunked-prefill"]
    options += ["--worker-extension-cls", "arboretum.agents.engines.vllm_worker.WeightLoader"]
    ports = [free_port() for _ in range(2)]
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        started = threads.map(
            lambda port: stack.enter_context(serving(warm_model, port, CONTEXT, *options)), ports
        )
        yield {f"http://127.0.0.1:{port}/v1": process for port, process in zip(ports, started, strict=True)}


@pytest.fixture
def on_servers(run_of: Make, servers: dict[str, subprocess.Popen[bytes]]) -> Make:
    """Return a function that makes the configuration of a small run on the servers."""

    def make(changes: dict[str, object] | None = None, **options: Any) -> TrainingConfig:
        hardware = HardwareConfig(device="cpu", engine="vllm-server", base_url=",".join(servers))
        validation = ValidationConfig(every=1, tasks=4)
        return run_of(
            "grpo", {**SHORT, **(changes or {})}, **{"hardware": hardware, "validation": validation, **options}
        )

    return make


def served_requests(url: str) -> float:
    """Return the number of requests that a server has answered."""
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total{"))


def test_servers_take_the_weights_of_each_update(
    on_servers: Make, servers: dict[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """They share the episodes, and compute what the policy does, for one training process and for two."""
    before = [served_requests(url) for url in servers]
    config = on_servers({"optimization.updates": 3}, out=tmp_path / "one")
    with closing(finish(Trainer(config))) as trainer:
        expected = full_state_dict(trainer.optimizer.policy)
        errors = [record["mismatch_abs_max"] for record in trainer.history if record.get("steps")]
        assert len(errors) >= 2 and max(errors) < 1e-4
    shares = [served_requests(url) - count for url, count in zip(servers, before, strict=True)]
    assert min(shares) > 0.3 * sum(shares)
    assert not (config.out / policy_servers.WEIGHTS_FOLDER).exists()

    two = dataclasses.replace(config, out=tmp_path / "two")
    assert_weights_close(train_with_two("ddp", two), expected)
    assert_metrics_close(two, config)


def test_server_with_other_weights_ends_the_run(
    on_servers: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Trainer(on_servers(out=tmp_path / "run"))) as trainer:
        updates = trainer.run()
        next(updates)
        with closing(Trainer(on_servers(out=tmp_path / "other"))) as other:
            next(other.run())
        with pytest.raises(SamplingFailed, match="no longer has the weights of this run"):
            list(updates)
    small = make_tiny_model(tmp_path / "small", hidden=64)
    with (
        closing(Trainer(on_servers(model=str(small), out=tmp_path / "small-run"))) as trainer,
        pytest.raises(SamplingFailed, match=r"cannot load the weights: weight .* has shape"),
    ):
        list(trainer.run())
    with closing(Trainer(on_servers(out=tmp_path / "kept"))) as trainer:
        model = trainer.optimizer.policy.model
        initial = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        write = policy_servers.write_weights
        monkeypatch.setattr(policy_servers, "write_weights", lambda weights, *rest: write(initial.items(), *rest))
        with pytest.raises(SamplingFailed, match="does not compute with the weights that it has loaded"):
            list(trainer.run())


def test_server_in_another_dtype_is_refused(on_servers: Make, servers: dict[str, subprocess.Popen[bytes]]) -> None:
    hardware = HardwareConfig("cpu", "bfloat16", engine="vllm-server", base_url=",".join(servers))
    with pytest.raises(
        ConfigurationError, match="runs with --dtype float32, but this run needs bfloat16; start it"
    ):
        Trainer(on_servers(hardware=hardware))


def test_server_that_dies_ends_the_run(on_servers: Make, servers: dict[str, subprocess.Popen[bytes]]) -> None:
    with closing(Trainer(on_servers())) as trainer:
        updates = trainer.run()
        next(updates)
        url, process = next(reversed(servers.items()))
        kill(process)
        start = time.monotonic()
        with pytest.raises(SamplingFailed, match=f"sampling failed: .*{url}.* the connection failed"):
            list(updates)
        assert time.monotonic() - start < 60
