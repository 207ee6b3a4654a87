"""The work of a study: train a policy and measure it, or measure who never learnt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...agents.base import Agent
from ...agents.play import Job, play
from ...agents.reference import ExpertAgent, RandomAgent
from ...envs.errors import DataError
from ...envs.files import write_atomic
from ...eval.suite import Entry, Suite
from ..config.settings import World
from ..sampling.sampler import dialogue_of
from ..train import need_torch
from .definition import Study, Trial

RESULT = "result.json"

Outcomes = dict[str, dict[str, list[bool]]]
"""How a policy was sampled ("sampled" or "greedy") -> task -> success of each play."""


def fulfil(study: Study, trial: Trial, out: Path) -> None:
    """Train, from where an interrupted trial stands, measure the last policy, and write the result.

    Made to run in a process of its own: it holds torch to one thread, which is the fastest for small models.

    Raises:
        Diverged, Starved, CheckpointError: see `Training.go`.
    """
    _prepare()
    from ..reporting.report import write_report
    from ..trainer import Training

    run = study.run(trial, out)
    run.claim(resume=True)
    training = Training(run, resume=True)
    try:
        for _ in training.go():
            pass
        found = measured(study, study.worlds[trial.world], training.sampler)
    finally:
        training.close()
    write_report(run.out)
    write_atomic(run.out / RESULT, json.dumps({"updates": training.position.update, "outcomes": found}))
    shutil.rmtree(run.out / "checkpoints", ignore_errors=True)


def warm_start(study: Study, world: str, out: Path) -> None:
    """Measure the model that all trials start from."""
    _prepare()
    from ..learning.distributed import make_accelerator
    from ..learning.policy import load_causal
    from ..sampling.policy_engine import shared
    from ..sampling.sampler import Sampler

    causal, tokenizer = load_causal(study.model, "cpu")
    chains = study.recipe(next(iter(study.recipes))).sampler
    live = shared(causal, tokenizer, 128)
    accelerator = make_accelerator("cpu", "float32")
    sampler = Sampler(live, study.speech, chains, in_flight=128, accelerator=accelerator)
    try:
        found = measured(study, study.worlds[world], sampler)
    finally:
        sampler.engine.close()
    write_atomic(out / f"warm-start-{world}.json", json.dumps({"outcomes": found}))


def _prepare() -> None:
    import torch

    need_torch()
    torch.set_num_threads(1)


def measured(study: Study, world: World, sampler: Any) -> Outcomes:
    """Play the held-out tasks, sampled and greedy, with the same luck whoever plays."""
    entry = _entry(study, world)
    jobs = _jobs(study, entry)
    found: Outcomes = {}
    for kind, temperature, repeats in (("sampled", 1.0, study.repeats), ("greedy", 0.0, 1)):
        chosen = [job for repeat in jobs[:repeats] for job in repeat]
        found[kind] = _by_task(sampler.play(entry, chosen, temperature, top_p=1.0))
    return found


def referenced(study: Study, world: World) -> Mapping[str, Outcomes]:
    """How random play and the world's expert fare on the same tasks, within the same number of actions."""
    budget = dialogue_of(study.speech, study.recipe(next(iter(study.recipes))).sampler).max_actions
    entry = _entry(study, world, budget)
    envs = [entry.make() for _ in range(16)]
    found = {}
    agents: Sequence[Agent] = (RandomAgent(), ExpertAgent())
    for agent in agents:
        jobs = [job for repeat in _jobs(study, entry) for job in repeat]
        found[agent.name] = {"sampled": _by_task(play(agent, envs, jobs))}
    return found


def result_of(path: Path) -> dict[str, Any] | None:
    """A result that was written earlier; None where there is none.

    Raises:
        DataError: it cannot be read.
    """
    if not path.exists():
        return None
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(path, f"is no result of a study ({error}); delete it to measure again.") from None
    return result


def _entry(study: Study, world: World, max_steps: int | None = None) -> Entry:
    return Entry("study", world.id, world.kwargs, "test", study.tasks, max_steps=max_steps, repeats=study.repeats)


def _jobs(study: Study, entry: Entry) -> list[list[Job]]:
    """The plays of all tasks, repeat by repeat."""
    suite = Suite("study", "", (entry,))
    names = entry.task_names(entry.make())
    return [[Job(name, suite.episode_seed(entry, name, n)) for name in names] for n in range(study.repeats)]


def _by_task(episodes: Any) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for episode in episodes:
        found.setdefault(episode.task, []).append(bool(episode.success))
    return dict(sorted(found.items()))
