"""Trials of a study: train and evaluate a policy, or evaluate the warm start and the reference agents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...agents.base import Agent
from ...agents.episode import Episode
from ...agents.play import Job, play
from ...agents.reference import ExpertAgent, RandomAgent
from ...envs.errors import DataError
from ...envs.files import write_atomic
from ...eval.suite import Entry, Suite
from ..checkpoints.run_folder import CHECKPOINTS_FOLDER, claim_run_folder
from ..config.resolve import resolve_dialogue
from ..config.settings import EnvConfig
from ..train import require_torch
from .definition import Study, Trial

if TYPE_CHECKING:
    from ..sampling.sampler import RolloutSampler

RESULT = "result.json"

Outcomes = dict[str, dict[str, list[bool]]]
"""Success of every episode, by kind of decoding ("sampled" or "greedy") and task."""


def run_trial(study: Study, trial: Trial, out: Path) -> None:
    """Train a policy (continuing an interrupted trial), evaluate the final policy, and write the result.

    Runs in a process of its own with one torch thread, the fastest setting for small models.

    Raises:
        Diverged, NotEnoughGroups, SamplingFailed, OutOfMemory, CheckpointError: See `Trainer.run`.
    """
    _prepare()
    from ..reporting.report import write_report
    from ..trainer import Trainer

    config = study.config(trial, out)
    claim_run_folder(config, resume=True)
    trainer = Trainer(config, resume=True)
    try:
        for _ in trainer.run():
            pass
        outcomes = evaluate_policy(study, study.envs[trial.env], trainer.sampler)
    finally:
        trainer.close()
    write_report(config.out)
    write_atomic(config.out / RESULT, json.dumps({"updates": trainer.state.update, "outcomes": outcomes}))
    shutil.rmtree(config.out / CHECKPOINTS_FOLDER, ignore_errors=True)


def evaluate_warm_start(study: Study, env: str, out: Path) -> None:
    """Evaluate the model from which all trials start, and write the result."""
    _prepare()
    from ..learning.distributed import make_accelerator
    from ..learning.policy import load_trainable_model
    from ..sampling.policy_engine import model_engine
    from ..sampling.sampler import RolloutSampler

    model, tokenizer = load_trainable_model(study.model, "cpu")
    sampler = RolloutSampler(
        model_engine(model, tokenizer, 128),
        study.dialogue_config,
        study.first_recipe.sampler,
        in_flight=128,
        accelerator=make_accelerator("cpu", "float32"),
    )
    try:
        outcomes = evaluate_policy(study, study.envs[env], sampler)
    finally:
        sampler.engine.close()
    write_atomic(warm_start_path(out, env), json.dumps({"outcomes": outcomes}))


def warm_start_path(out: Path, env: str) -> Path:
    """Return the file of the warm start's result in an environment."""
    return out / f"warm-start-{env}.json"


def _prepare() -> None:
    import torch

    require_torch()
    torch.set_num_threads(1)


def evaluate_policy(study: Study, env: EnvConfig, sampler: RolloutSampler) -> Outcomes:
    """Roll out the held-out tasks, sampled and greedy, with the same seeds for every policy."""
    entry = _make_entry(study, env)
    jobs = _jobs_by_repeat(study, entry)
    outcomes: Outcomes = {}
    for decoding, temperature, repeats in (("sampled", 1.0, study.repeats), ("greedy", 0.0, 1)):
        chosen = [job for repeat in jobs[:repeats] for job in repeat]
        outcomes[decoding] = _success_by_task(sampler.roll_out(entry, chosen, temperature, top_p=1.0))
    return outcomes


def evaluate_references(study: Study, env: EnvConfig) -> Mapping[str, Outcomes]:
    """Roll out the random and the expert agent on the same tasks, with the same limit on actions."""
    budget = resolve_dialogue(study.dialogue_config, study.first_recipe.sampler).max_actions
    entry = _make_entry(study, env, budget)
    envs = [entry.make() for _ in range(16)]
    jobs = [job for repeat in _jobs_by_repeat(study, entry) for job in repeat]
    outcomes = {}
    agents: Sequence[Agent] = (RandomAgent(), ExpertAgent())
    for agent in agents:
        outcomes[agent.name] = {"sampled": _success_by_task(play(agent, envs, jobs))}
    return outcomes


def read_result(path: Path) -> dict[str, Any] | None:
    """Return a result that was written earlier; None if there is none.

    Raises:
        DataError: The file cannot be read.
    """
    if not path.exists():
        return None
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(path, f"is not a result of a study ({error}); delete it to evaluate again.") from None
    return result


def _make_entry(study: Study, env: EnvConfig, max_steps: int | None = None) -> Entry:
    return Entry("study", env.id, env.kwargs, "test", study.tasks, max_steps=max_steps, repeats=study.repeats)


def _jobs_by_repeat(study: Study, entry: Entry) -> list[list[Job]]:
    suite = Suite("study", "", (entry,))
    names = entry.task_names(entry.make())
    return [[Job(name, suite.episode_seed(entry, name, n)) for name in names] for n in range(study.repeats)]


def _success_by_task(episodes: Iterable[Episode]) -> dict[str, list[bool]]:
    outcomes: dict[str, list[bool]] = {}
    for episode in episodes:
        outcomes.setdefault(episode.task, []).append(episode.success and episode.error is None)
    return dict(sorted(outcomes.items()))
