"""Optimizer steps: learning rates follow their schedule, non-finite gradients are skipped, the critic warms up."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.algorithms.recipe import Optimization
from arboretum.trainers.config.settings import ValidationConfig
from arboretum.trainers.learning.optimizer import Diverged, lr_factor
from arboretum.trainers.trainer import Trainer
from support.training import Make, equal, weights


def test_learning_rate_follows_its_schedule() -> None:
    linear = Optimization(updates=10, warmup=2, schedule="linear")
    assert [lr_factor(linear, n) for n in (0, 1, 2, 6, 10)] == [0.5, 1.0, 1.0, 0.5, 0.0]
    cosine = Optimization(updates=8, schedule="cosine")
    assert lr_factor(cosine, 0) == 1.0 and lr_factor(cosine, 4) == pytest.approx(0.5)
    assert lr_factor(Optimization(updates=10), 9) == 1.0


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_nan_gradient_is_skipped_and_three_in_a_row_stop_the_run(run_of: Make) -> None:
    config = run_of(
        "dr_grpo",
        {"optimization.updates": 6, "optimization.episodes_per_step": 12},
        validation=ValidationConfig(every=0),
        checkpoint_every=1,
    )
    trainer = Trainer(config)
    poisoned = {2, 4, 5, 6}  # updates, counted from 1
    parameter = next(trainer.optimizer.policy.model.parameters())
    parameter.register_hook(lambda grad: grad * math.nan if trainer.state.update + 1 in poisoned else grad)
    states = [weights(trainer)]
    with pytest.raises(Diverged, match="3 steps in a row"):
        for _ in trainer.run():
            states.append(weights(trainer))
    assert [record["steps_skipped"] for record in trainer.history] == [0, 1, 0, 1, 1]
    assert equal(states[1], states[2]) and not equal(states[2], states[3]) and equal(states[3], states[5])
    assert not equal(states[0], states[1])
    assert all(value.isfinite().all() for value in states[-1].values())
    assert all(math.isfinite(value) for record in trainer.history for value in record.values())
    resumed = Trainer(config, resume=True)
    assert resumed.state.update == 5 and equal(weights(resumed), states[5])
    assert resumed.optimizer.skipped_in_a_row == 2 and resumed.optimizer.skipped == 3


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_only_the_critic_is_trained_during_its_warm_up(run_of: Make) -> None:
    changes: dict[str, object] = {"critic.warmup": 1, "critic.lr": 1e-3}
    trainer = Trainer(run_of("ppo", changes, validation=ValidationConfig(every=0)))
    states = [weights(trainer)]
    for _ in trainer.run():
        states.append(weights(trainer))
    policy = [{k: v for k, v in state.items() if k.startswith("model.")} for state in states]
    critic = [{k: v for k, v in state.items() if k.startswith("critic.")} for state in states]
    assert all(policy) and all(critic)
    assert equal(policy[0], policy[1]) and not equal(policy[1], policy[2])
    assert not equal(critic[0], critic[1]) and not equal(critic[1], critic[2])


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_warm_up_of_the_critic_leaves_the_moments_of_the_policy_empty(run_of: Make) -> None:
    """An update takes two steps. The policy's first one must be that of a new optimizer."""
    changes: dict[str, object] = {"critic.warmup": 2, "optimization.updates": 3}
    config = run_of("ppo", changes, validation=ValidationConfig(every=0), checkpoint_every=1)
    trainer = Trainer(config)
    counts = []
    for record in trainer.run():
        assert record.metrics["grad_norm"] > 0 and record.metrics["critic_grad_norm"] > 0
        counts.append(steps_of(trainer))
    assert counts == [{"critic": {2}}, {"critic": {4}}, {"critic": {6}, "model": {2}}]
    assert trainer.history[1]["lr"] == 0 < trainer.history[2]["lr"]


def steps_of(trainer: Trainer) -> dict[str, set[int]]:
    """Return the steps that AdamW has counted, by part of the policy."""
    steps: dict[str, set[int]] = {}
    for name, state in trainer.optimizer.state_dict()["optimizer"].items():
        steps.setdefault(name.partition(".")[0], set()).add(int(state["step"]))
    return steps
