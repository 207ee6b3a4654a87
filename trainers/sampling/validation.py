"""Validation of a run on all of its environments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ...agents.episode import Episode
from ...eval.statistics import Interval, weighted_mean
from ..config.run import TrainingConfig
from .failures import Failures
from .sampler import RolloutSampler, ValidationResult


class RunValidation(NamedTuple):
    """Result of one validation of a run.

    Attributes:
        success: Rate of solved tasks, with its 95 % interval: the mean over the environments by their weights, so
            the rate that a prompt of the run can expect.
        mean_return: Mean undiscounted return, over the environments by their weights.
        by_env: Result of each environment by its name; empty in a run on a single environment.
        failures: Episodes that ended with an error.
        samples: Episodes for people to read.
    """

    success: Interval
    mean_return: float
    by_env: Mapping[str, ValidationResult]
    failures: Failures
    samples: tuple[Episode, ...]

    def metrics(self) -> dict[str, float]:
        """Return success with its interval and return, in total and of each environment."""
        found = _metrics(self.success, self.mean_return)
        for name, one in self.by_env.items():
            own = _metrics(one.success, one.mean_return) | {"validation/failed": float(one.failures.failed)}
            found |= {f"{metric}/{name}": value for metric, value in own.items()}
        return found


def validate_run(sampler: RolloutSampler, config: TrainingConfig) -> RunValidation:
    """Roll out the held-out tasks of every environment; see `RolloutSampler.validate`.

    Args:
        sampler: Sampler of the policy.
        config: Configuration of the run.

    Raises:
        ConfigurationError: A split has too few tasks.
    """
    # At the final temperature of a schedule, so that the curve does not rise with the schedule alone.
    envs, final = config.envs, config.recipe.sampler.final_temperature
    results = [sampler.validate(env, config.validation, final, config.seed) for env in envs]
    failures = results[0].failures
    for one in results[1:]:
        failures = failures.add(one.failures)
    samples = tuple(episode for one in results for episode in one.samples)
    if len(results) == 1:
        return RunValidation(results[0].success, results[0].mean_return, {}, failures, samples)
    weights = [env.weight for env in envs]
    return RunValidation(
        weighted_mean([one.success for one in results], weights),
        math.fsum(env.weight * one.mean_return for env, one in zip(envs, results, strict=True))
        / math.fsum(weights),
        {env.label: one for env, one in zip(envs, results, strict=True)},
        failures,
        samples,
    )


def _metrics(success: Interval, mean_return: float) -> dict[str, float]:
    return {
        "validation/success": success.value,
        "validation/low": success.low,
        "validation/high": success.high,
        "validation/return": mean_return,
    }
