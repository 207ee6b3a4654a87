"""Trials and controls of a study, each a function that writes one result; they run in worker processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

from ...agents.base import Agent
from ...agents.reference import ExpertAgent, RandomAgent
from ...envs.errors import ConfigurationError, DataError
from ...envs.files import started_here, write_atomic
from ..checkpoints.export import export_checkpoint
from ..checkpoints.run_folder import CHECKPOINTS_FOLDER, claim_run_folder
from ..commands.preflight import require_torch
from ..config.settings import ValidationConfig
from .curves import Curve, common_tokens, read_curve
from .definition import Study, Trial
from .evaluation import Outcomes, evaluate_policy, evaluate_reference, evaluate_sampled, make_sampler
from .supervised import fine_tune

RESULT = "result.json"

RANDOM, EXPERT, WARM_START = "random", "expert", "warm start"
TUNED, OTHER_MODEL = "warm start, best temperature", "other model"
"""Names of the policies that the study does not train."""

_AGENTS: dict[str, type[Agent]] = {RANDOM: RandomAgent, EXPERT: ExpertAgent}


def policy_path(out: Path, env: str, policy: str) -> Path:
    """Return the file with the result of a policy that the study does not train."""
    return out / f"{policy.replace(',', '').replace(' ', '-')}-{env}.json"


def trial_path(out: Path, trial: Trial) -> Path:
    """Return the file with the result of a training run, of a recipe or of further supervised fine-tuning."""
    return out / trial.folder / RESULT


@started_here()
def run_trial(study: Study, trial: Trial, out: Path) -> None:
    """Train a policy (continuing an interrupted trial), evaluate the final policy, and write the result.

    Where a setting is tuned, all tuning runs of the recipe in the environment must be finished. The policy of a
    tuning run itself is not evaluated: its result is the area under its learning curve.

    Runs in a process of its own with one torch thread, the fastest setting for small models.

    Raises:
        ConfigurationError: A tuning run has no result yet.
        Diverged, NotEnoughGroups, SamplingFailed, OutOfMemory, PartFailed, CheckpointError: See
            `Trainer.run`.
    """
    _prepare()
    from ..reporting.report import write_report
    from ..trainer import Trainer

    is_tuning = trial.candidate is not None
    value = None if is_tuning else chosen_value(study, trial.env, trial.recipe, out)
    config = study.config(trial, out, value)
    claim_run_folder(config, resume=True)
    trainer = Trainer(config, resume=True)
    try:
        if 0 < config.monitor.uninformative <= trainer.state.uninformative:
            trainer.end("it ended for want of advantages before its result was written")
        for _ in trainer.run():
            pass
        outcomes = {} if is_tuning else evaluate_policy(study, trial.env, trainer.sampler)
    finally:
        trainer.close()
    write_report(config.out)
    if study.export and not is_tuning:
        export_checkpoint(config.out, "last")
    cpu_seconds = sum(record.get("cpu_seconds", 0.0) for record in trainer.history)
    _write(
        trial_path(out, trial),
        outcomes,
        updates=trainer.state.update,
        cpu_seconds=cpu_seconds,
        generated_tokens=float(trainer.state.tokens),
        **({} if value is None else {"tuned_value": value}),
    )
    shutil.rmtree(config.out / CHECKPOINTS_FOLDER, ignore_errors=True)


def run_supervised(study: Study, trial: Trial, out: Path) -> None:
    """Fine-tune the warm start for as much CPU time as the recipes' runs took, evaluate it, and write the result.

    Raises:
        ConfigurationError: A run of a recipe in this environment has no result yet.
        Diverged, OutOfMemory, CheckpointError: See `SFTTrainer.run`.
    """
    _prepare()
    budget = mean_cpu_seconds(study, trial.env, out)
    tuned = fine_tune(study, trial, out / trial.folder, budget)
    sampler = make_sampler(study, trial.env, str(tuned.model))
    try:
        outcomes = evaluate_policy(study, trial.env, sampler)
    finally:
        sampler.engine.close()
    if not study.export:
        shutil.rmtree(tuned.model)
    _write(trial_path(out, trial), outcomes, episodes=tuned.episodes, cpu_seconds=tuned.cpu_seconds, budget=budget)


def chosen_value(study: Study, env: str, recipe: str, out: Path) -> float | None:
    """Return the value of the tuned setting for a recipe in an environment; None without tuning.

    Raises:
        ConfigurationError: A tuning run has no result yet, or no validation after its first update.
    """
    if study.tuning is None:
        return None
    curves: dict[float, list[Curve]] = {}
    whole: list[Curve] = []
    for trial in study.tuning_trials():
        if (trial.env, trial.recipe) == (env, recipe):
            result = read_result(trial_path(out, trial))
            if result is None:
                raise ConfigurationError(
                    f"{trial.name} has no result, so {study.tuning.setting} of {recipe} cannot be chosen."
                )
            assert trial.candidate is not None
            curve = read_curve(trial, out)
            curves.setdefault(trial.candidate, []).append(curve)
            optimization = study.config(trial, out).recipe.optimization
            if optimization.is_complete(result["updates"], result["generated_tokens"]):
                whole.append(curve)
    # A run that collapses may end early. It counts with its last success until the end of the others.
    tokens = common_tokens(whole or [curve for runs in curves.values() for curve in runs])
    if not tokens:
        raise ConfigurationError(
            f"a tuning run of {recipe} on {env} was not validated after its first update, so "
            f"{study.tuning.setting} cannot be chosen; lower validation_every."
        )
    return study.tuning.choose({value: [curve.area(tokens) for curve in runs] for value, runs in curves.items()})


def mean_cpu_seconds(study: Study, env: str, out: Path) -> float:
    """Return the mean CPU time in seconds that the recipes' runs in an environment trained for.

    Raises:
        ConfigurationError: A run has no result yet.
    """
    seconds = []
    for trial in study.trials():
        if trial.env == env:
            result = read_result(trial_path(out, trial))
            if result is None:
                raise ConfigurationError(f"{trial.name} has no result yet, so the budget of CPU time is unknown.")
            seconds.append(float(result["cpu_seconds"]))
    return fmean(seconds)


def evaluate_control(study: Study, env: str, policy: str, out: Path) -> None:
    """Evaluate a policy that the study does not train, and write the result.

    Args:
        study: Study.
        env: Name of the environment.
        policy: One of `RANDOM`, `EXPERT`, `WARM_START`, `TUNED` and `OTHER_MODEL`.
        out: Folder of the study.
    """
    path = policy_path(out, env, policy)
    if policy in _AGENTS:
        _write(path, evaluate_reference(study, env, _AGENTS[policy]()))
        return
    _prepare()
    model = study.controls.model or "" if policy == OTHER_MODEL else study.model_of(env)
    sampler = make_sampler(study, env, model)
    try:
        if policy == TUNED:
            own, rates = study.envs[env], {}
            for temperature in study.controls.temperatures:
                validation = ValidationConfig(
                    tasks=study.controls.tuning_tasks, split=own.validation_split, temperature=temperature
                )
                rates[temperature] = sampler.validate(own.config, validation, temperature, seed=0).success.value
            best = max(rates, key=rates.__getitem__)
            validation_rates = {f"{temperature:g}": rate for temperature, rate in rates.items()}
            outcomes = evaluate_sampled(study, env, sampler, best)
            _write(path, outcomes, temperature=best, validation=validation_rates)
        else:
            _write(path, evaluate_policy(study, env, sampler))
    finally:
        sampler.engine.close()


def _prepare() -> None:
    import torch

    require_torch()
    torch.set_num_threads(1)


def _write(path: Path, outcomes: Outcomes, **measurements: object) -> None:
    write_atomic(path, json.dumps({**measurements, "outcomes": outcomes}))


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
