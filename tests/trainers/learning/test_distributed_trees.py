"""Two processes update from a forest as one does: shared tokens are scored once, and trees are dealt out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
for module in ("transformers", "accelerate"):
    pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")

from arboretum.assets import asset
from support.forests import forest_and_chains, forest_learner, ppo_recipe

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

CHILD = """
import sys
import torch
from arboretum.trainers.learning.sharding import full_state_dict
from support.forests import forest_and_chains, forest_learner, ppo_recipe

torch.set_num_threads(1)
forest, _ = forest_and_chains(0)
learner = forest_learner(ppo_recipe())
assert learner.optimizer.world_size == 2 and learner.optimizer.policy.tree_layout == "segments"
trees = []
learner.optimizer.policy.register_forward_pre_hook(
    lambda _, args, kwargs: trees.append("segments" in kwargs), with_kwargs=True
)
scores, values = learner.scorer.score(forest, 0.9, use_critic=True)
report = learner.update(forest, update=0, temperature=0.9)
assert sum(trees) > len(trees) / 2, "most micro-batches are trees; a few steps have nothing to share"
weights = {name: value.clone() for name, value in full_state_dict(learner.optimizer.policy).items()}
if learner.optimizer.accelerator.is_main_process:
    torch.save({"scores": scores, "values": values, "report": report, "weights": weights}, sys.argv[1])
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_update_from_a_forest_as_one_does(kind: str, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(asset(f"accelerate/{kind}.yaml")), "--num_processes", "2"]
    command += ["--main_process_port", "0", str(tmp_path / "child.py"), str(tmp_path / "result.pt")]
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-4000:]
    found = torch.load(tmp_path / "result.pt", weights_only=False)

    forest, _ = forest_and_chains(0)
    learner = forest_learner(ppo_recipe())
    scores, values = learner.scorer.score(forest, 0.9, use_critic=True)
    np.testing.assert_allclose(found["scores"], scores, atol=1e-5)
    np.testing.assert_allclose(found["values"], values, atol=1e-5)
    report = learner.update(forest, update=0, temperature=0.9)
    assert found["report"] == pytest.approx(report, rel=1e-3, abs=1e-4)
    for name, value in learner.optimizer.policy.state_dict().items():
        torch.testing.assert_close(found["weights"][name], value, rtol=0, atol=1e-4, msg=name)
