"""Metrics of an update's episodes, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from arboretum.trainers.reporting.metrics import rollout_metrics
from arboretum.trainers.sampling.failures import Failures
from support.rollouts import chain_rollouts


def test_groups_that_only_penalties_tell_apart_are_counted() -> None:
    """Group a: both fail, one with a penalty. b: one succeeds, with a penalty. c: both fail, with equal penalties
    of which one is in two turns. d: both succeed without."""
    rewards = [[0.0], [0.0, 0.0], [1.0], [0.0], [0.0, 0.0], [0.0], [1.0], [0.0, 1.0]]
    penalties = [-0.1, 0.0, 0.0, -0.1, 0.0, -0.05, -0.05, -0.1, 0.0, 0.0, 0.0]
    metrics = rollout_metrics(chain_rollouts(rewards, "aabbccdd", turn_penalty=np.array(penalties)))
    assert metrics["silent_groups"] == 3 / 4
    assert metrics["penalty_groups"] == 1 / 4
    assert metrics["penalty"] == pytest.approx(-0.4 / 8)


def test_failed_episodes_count_among_all_that_were_sampled() -> None:
    """A tree sampler grew five episodes, of which one failed and four solved the task, and returned two."""
    rollouts = chain_rollouts([[1.0], [1.0]], "aa", success=np.array([True, True]))
    metrics = rollout_metrics(rollouts, Failures(5, 1))
    assert (metrics["success"], metrics["failed"]) == (pytest.approx(0.8), 1.0)
