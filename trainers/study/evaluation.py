"""Evaluation of a study's policies: the same held-out tasks with the same seeds for every one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ...agents.base import Agent
from ...agents.episode import Episode
from ...agents.play import Job, play
from ...envs.files import write_atomic
from ...eval.suite import Entry, Suite
from ..config.resolve import resolve_dialogue
from .definition import TEMPERATURE, Study, env_folder
from .limits import reference_limit

if TYPE_CHECKING:
    from ..sampling.sampler import RolloutSampler

Outcomes = dict[str, dict[str, list[bool]]]
"""Success of every episode, by part of the evaluation and task. The parts are "sampled" (`repeats` episodes per
task), "greedy" (one), "samples" (for pass@k) and "levels/<name>/sampled" and "levels/<name>/greedy" (one each)."""

NAME = "study"
"""Name of suite and entry. It is part of the episodes' seeds."""
SUITE_FILE = "suite.yaml"


def make_sampler(study: Study, env: str, model: str) -> RolloutSampler:
    """Load a model for evaluation.

    Args:
        study: Study, whose first recipe's budgets are used.
        env: Name of the environment, whose dialogue is used.
        model: Folder of the model, or its name.

    Raises:
        ConfigurationError: The model cannot be loaded.
    """
    from ..learning.distributed import make_accelerator
    from ..learning.policy import load_trainable_model
    from ..sampling.policy_engine import model_engine
    from ..sampling.sampler import RolloutSampler

    in_flight = study.hardware.in_flight
    accelerator = make_accelerator(study.hardware.device, study.hardware.precision)
    loaded, tokenizer = load_trainable_model(model, str(accelerator.device))
    return RolloutSampler(
        model_engine(loaded, tokenizer, in_flight, accelerator.autocast),
        study.dialogue_of(env),
        study.first_recipe(env).sampler,
        in_flight=in_flight,
        accelerator=accelerator,
    )


def evaluate_policy(study: Study, env: str, sampler: RolloutSampler) -> Outcomes:
    """Roll out the held-out tasks, sampled and greedy, and those of the warm start's levels.

    Args:
        study: Study.
        env: Name of the environment.
        sampler: Sampler with the policy's weights.
    """
    outcomes = evaluate_sampled(study, env, sampler)
    entry = _make_entry(study, env)
    outcomes["greedy"] = _roll_out(sampler, entry, _jobs(entry, entry.task_names(entry.make()), 1), 0.0)
    for name, level in study.levels_of(env).items():
        # Small levels, such as three blocks, have fewer tasks than are asked for.
        entry = Entry("levels", level.config.id, level.config.kwargs, level.test_split)
        jobs = _jobs(entry, entry.task_names(entry.make(), study.level_tasks), 1)
        for decoding, temperature in (("sampled", TEMPERATURE), ("greedy", 0.0)):
            outcomes[f"levels/{name}/{decoding}"] = _roll_out(sampler, entry, jobs, temperature)
    return outcomes


def evaluate_sampled(
    study: Study, env: str, sampler: RolloutSampler, temperature: float = TEMPERATURE
) -> Outcomes:
    """Roll out the held-out tasks with sampling: the parts "sampled" and "samples" of the outcomes."""
    entry = _make_entry(study, env)
    jobs = _sampled_jobs(study, entry)
    return _split_sampled(study, _roll_out(sampler, entry, jobs, temperature))


def evaluate_reference(study: Study, env: str, agent: Agent) -> Outcomes:
    """Roll out the random agent or the expert on the same tasks, with as many actions as the model can take.

    The episodes for pass@k are left out for the expert, whose plan is the same in each.
    """
    dialogue = resolve_dialogue(study.dialogue_of(env), study.first_recipe(env).sampler)
    entry = _make_entry(study, env)
    entry = replace(entry, max_steps=reference_limit(entry, dialogue.action_limit))
    envs = [entry.make() for _ in range(16)]
    names = entry.task_names(envs[0])
    if agent.name == "expert":
        jobs = _jobs(entry, names, study.repeats)
        return {"sampled": _success_by_task(jobs, play(agent, envs, jobs))}
    jobs = _sampled_jobs(study, entry)
    return _split_sampled(study, _success_by_task(jobs, play(agent, envs, jobs)))


def write_suite(study: Study, env: str, out: Path) -> Path:
    """Write the held-out tasks of an environment as a suite for `arboretum eval`, and return its path.

    With the suite, an exported model solves the tasks that it solved in the study: the seeds are the same.
    """
    sampler = study.first_recipe(env).sampler
    dialogue = resolve_dialogue(study.dialogue_of(env), sampler)
    given = ("max_turns", "max_actions_per_turn", "max_actions", *study.envs[env].dialogue_settings)
    settings = {name: getattr(dialogue, name) for name in given}
    defaults = {one.name: one.default for one in fields(dialogue)}
    config = study.envs[env].config
    suite: dict[str, Any] = {
        "name": NAME,
        "description": f"{study.tasks} held-out tasks of {env} in the study {study.name}",
        "dialogue": {
            name: value for name, value in settings.items() if value is not None or defaults[name] != value
        },
        "sampling": {"temperature": TEMPERATURE, "max_tokens": sampler.reply_tokens},
        "entries": [
            {
                "name": NAME,
                "env": config.id,
                "kwargs": dict(config.kwargs),
                "split": study.envs[env].test_split,
                "tasks": study.tasks,
                "repeats": study.repeats,
            }
        ],
    }
    path = out / env_folder(env) / SUITE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, yaml.safe_dump(suite, sort_keys=False))
    return path


def _make_entry(study: Study, env: str) -> Entry:
    config, split = study.envs[env].config, study.envs[env].test_split
    return Entry(NAME, config.id, config.kwargs, split, study.tasks, repeats=study.repeats)


def _jobs(entry: Entry, names: Sequence[str], repeats: int, first: int = 0) -> list[Job]:
    """Return the episodes of some tasks, one repeat after the other, from the repeat `first` on."""
    suite = Suite(NAME, "", (entry,))
    return [Job(name, suite.episode_seed(entry, name, n)) for n in range(first, repeats) for name in names]


def _sampled_jobs(study: Study, entry: Entry) -> list[Job]:
    """Return `repeats` episodes of all tasks, and further ones of the first tasks up to `samples`."""
    names = entry.task_names(entry.make())
    further = _jobs(entry, names[: study.pass_tasks], study.samples, first=study.repeats)
    return _jobs(entry, names, study.repeats) + further


def _split_sampled(study: Study, successes: Mapping[str, list[bool]]) -> Outcomes:
    """Return the parts "sampled" and "samples" of the successes of `_sampled_jobs`."""
    outcomes = {"sampled": {task: found[: study.repeats] for task, found in successes.items()}}
    if study.samples:
        full = [task for task, found in successes.items() if len(found) >= study.samples]
        outcomes["samples"] = {task: successes[task][: study.samples] for task in full[: study.pass_tasks]}
    return outcomes


def _roll_out(
    sampler: RolloutSampler, entry: Entry, jobs: Sequence[Job], temperature: float
) -> dict[str, list[bool]]:
    return _success_by_task(jobs, sampler.roll_out(entry, jobs, temperature, top_p=1.0))


def _success_by_task(jobs: Sequence[Job], episodes: Iterable[Episode]) -> dict[str, list[bool]]:
    """Return the successes of each task in the order of the jobs."""
    successes = {(one.task, one.seed): one.success and one.error is None for one in episodes}
    outcomes: dict[str, list[bool]] = {}
    for job in jobs:
        outcomes.setdefault(str(job.task), []).append(successes[str(job.task), job.seed])
    return outcomes
