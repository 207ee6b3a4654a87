"""Control of a study: further supervised fine-tuning of the warm start, for a budget of CPU time."""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ...envs.files import write_atomic
from ..checkpoints.run_folder import MODEL_FOLDER, claim_run_folder
from ..config.resolve import make_entry
from ..config.run import SFTConfig
from .definition import Study, Trial

PLAN_FILE = "plan.json"
CALIBRATION_STEPS = 6
"""Optimizer steps from whose CPU time the number of episodes is computed."""
MAX_EPISODES = 65_536
"""Episodes in memory; a larger budget takes several passes over them."""


@dataclass(frozen=True)
class FineTuned:
    """Model after further supervised fine-tuning.

    Attributes:
        model: Folder of the model.
        episodes: Expert episodes that it was trained on, repeated ones counted again.
        cpu_seconds: CPU time that rolling out the expert and training took.
    """

    model: Path
    episodes: int
    cpu_seconds: float


def fine_tune(study: Study, trial: Trial, folder: Path, budget: float) -> FineTuned:
    """Fine-tune the warm start on expert episodes for a budget of CPU time, continuing an interrupted run.

    The number of episodes is computed from a few steps before, so that the schedule of the learning rate spans the
    run, and is written to `plan.json`, so that a resumed run has the same. CPU time varies, so the run takes
    roughly the budget; `cpu_seconds` says what it took.

    Args:
        study: Study with this control.
        trial: One of `Study.supervised_trials`.
        folder: Folder of the run.
        budget: CPU time in seconds.

    Raises:
        ConfigurationError: The expert solves too few tasks, or the folder holds another run.
        Diverged, OutOfMemory, CheckpointError: See `SFTTrainer.run`.
    """
    from ..sft import SFTTrainer

    plan_path = folder / PLAN_FILE
    if plan_path.exists():
        plan = json.loads(plan_path.read_text(encoding="utf-8"))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        plan = _plan(study, trial, folder, budget)
        write_atomic(plan_path, json.dumps(plan) + "\n")
    config = study.supervised_config(trial, folder, plan["episodes"], plan["epochs"])
    claim_run_folder(config, resume=True)
    trainer = SFTTrainer(config, resume=True)
    try:
        for _ in trainer.run():
            pass
        trainer.export()
    finally:
        trainer.close()
    steps = sum(record["cpu_seconds"] for record in trainer.history)
    episodes = plan["episodes"] * plan["epochs"]
    return FineTuned(folder / MODEL_FOLDER, episodes, trainer.demonstration_cpu_seconds + steps)


def _plan(study: Study, trial: Trial, folder: Path, budget: float) -> dict[str, int]:
    """Return the episodes and epochs of a run that takes a budget of CPU time.

    With a cost of d for a demonstration and of s for training on one, N episodes cost N (17/16 d + s): one in 16
    more is held out.
    """
    control = study.controls.supervised
    assert control is not None, "the study has this control"
    calibration = folder / "calibration"
    config = study.supervised_config(trial, calibration, CALIBRATION_STEPS * control.batch)
    demonstration, training = _measure(config)
    shutil.rmtree(calibration, ignore_errors=True)
    demonstration *= 17 / 16
    wanted = budget / (demonstration + training)
    if wanted <= MAX_EPISODES:
        return {"episodes": control.batch * max(1, round(wanted / control.batch)), "epochs": 1}
    epochs = (budget - MAX_EPISODES * demonstration) / (MAX_EPISODES * training)
    return {"episodes": MAX_EPISODES, "epochs": max(1, math.floor(epochs))}


def _measure(config: SFTConfig) -> tuple[float, float]:
    """Return the CPU seconds of rolling out a demonstration and of training on one.

    The first steps and episodes of a process also allocate memory; the median step leaves that out, and so does a
    second roll-out.
    """
    from ..sampling.demonstrations import collect_demonstrations
    from ..sft import SFTTrainer

    trainer = SFTTrainer(config)
    try:
        steps = [record["cpu_seconds"] for record in trainer.run()]
        start = time.process_time()
        collect_demonstrations(
            make_entry(config.env, config.env.split),
            config.sft.episodes,
            tokenizer=trainer.tokenizer,
            context=trainer.sampler.engine.context,
            dialogue=trainer.sampler.dialogue,
            expert=config.expert,
            seed=config.seed + 1,
            in_flight=config.hardware.in_flight,
        )
        demonstration = (time.process_time() - start) / config.sft.episodes
    finally:
        trainer.close()
    return demonstration, median(steps) / config.sft.batch
