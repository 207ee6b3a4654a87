"""Preference pairs in an update, and the moving average that they are compared with."""

from __future__ import annotations

import copy
import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.config.settings import HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.data.preferences import Continuation, Preference, pair_rollouts
from arboretum.trainers.learning.accumulation import Microbatching, accumulate_gradients
from arboretum.trainers.learning.pairs import PreparedPairs, divide_pairs, pair_loss, pair_microbatches
from arboretum.trainers.learning.preparation import StepPlan
from arboretum.trainers.trainer import Trainer
from support.training import Make, equal, finish, weights

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

NO_VALIDATION = ValidationConfig(every=0)
SURGICAL: dict[str, object] = {
    "objective.terms": [{"name": "surgical", "beta": 0.1, "weight": 0.15}],
    "objective.reference_decay": 0.95,
    "objective.kl.coef": 0.0,
    "objective.entropy_coef": 0.0,
    "optimization.episodes_per_step": 12,
}


def random_pairs(count: int, seed: int = 0) -> list[Preference]:
    """Return pairs of random tokens; the continuations of a pair follow one prompt."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        prompt = rng.integers(1, 40, rng.integers(3, 9))
        chosen, rejected = (Continuation(prompt, rng.integers(1, 40, rng.integers(1, 6))) for _ in range(2))
        pairs.append(Preference(chosen, rejected, 0))
    return pairs


def logprob(model: Any, side: Continuation) -> Any:
    """Return the log-probability of a continuation by a plain forward pass."""
    ids = torch.tensor(np.concatenate([side.prompt, side.tokens]))
    logp = torch.log_softmax(model(input_ids=ids[None]).logits[0], -1)
    return sum(logp[place - 1, ids[place]] for place in range(len(side.prompt), len(ids)))


def margins(trainer: Trainer, pairs: list[Preference]) -> list[float]:
    model = trainer.optimizer.policy.model
    with torch.no_grad():
        return [float(logprob(model, pair.chosen) - logprob(model, pair.rejected)) for pair in pairs]


def no_advantages(trainer: Trainer) -> Any:
    """Return a prepared update of episodes with equal rewards."""
    rollouts = trainer.collector.roll_out(1.0)[0]
    rollouts = dataclasses.replace(
        rollouts, turn_reward=np.zeros(rollouts.turns), turn_penalty=np.zeros(rollouts.turns)
    )
    return trainer.learner.prepare(rollouts, update=0, temperature=1.0)


# ---------------------------------------------------------------------- the loss of pairs


@pytest.mark.parametrize("tokens", [1, 40, 100_000])
def test_gradient_at_the_reference_is_half_of_beta_for_each_continuation(run_of: Make, tokens: int) -> None:
    """-log σ(β Δ) has the slope -β/2 in log π(chosen) and +β/2 in log π(rejected) at Δ = 0, however cut."""
    trainer = Trainer(run_of("dapo", SURGICAL, validation=NO_VALIDATION))
    learner, optimizer, pairs = trainer.learner, trainer.optimizer, random_pairs(5)
    rollouts = pair_rollouts(pairs)
    prepared = PreparedPairs(rollouts, learner.scorer.score(rollouts, 1.0, reference=True)[0])
    microbatching = Microbatching(optimizer, tokens, share_prefixes=tokens == 40)
    microbatches = pair_microbatches(microbatching, rollouts, np.arange(5))
    parameters = list(optimizer.policy.model.parameters())
    loss_of = partial(pair_loss, learner.recipe.objective.pair_terms, prepared, 5)
    parts = accumulate_gradients(optimizer, microbatches, 1.0, loss_of)
    assert len(parts) == (5 if tokens == 1 else len(parts)) and sum(part["pairs"] for part in parts) == 5
    assert sum(part["term/surgical"] for part in parts) / 5 == pytest.approx(0.15 * math.log(2.0), rel=1e-5)
    found = [parameter.grad.clone() for parameter in parameters]
    model = optimizer.policy.model
    objective = sum(-0.05 * logprob(model, pair.chosen) + 0.05 * logprob(model, pair.rejected) for pair in pairs)
    expected = torch.autograd.grad(0.15 * objective / 5, parameters)
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-6)


def test_update_with_pairs_and_without_advantages_takes_steps(run_of: Make) -> None:
    trainer = Trainer(run_of("dapo", SURGICAL, validation=NO_VALIDATION))
    prepared, pairs = no_advantages(trainer), random_pairs(6)
    assert trainer.learner.apply(prepared)["steps"] == 0
    assert trainer.learner.apply(prepared)["pairs"] == 0
    before = margins(trainer, pairs)
    report = trainer.learner.apply(prepared, pairs)
    assert report["steps"] == 1 and report["pairs"] == 6 and report["advantage_abs"] == 0
    assert report["term/surgical"] == pytest.approx(0.15 * math.log(2.0), rel=1e-5)
    assert sum(margins(trainer, pairs)) > sum(before)
    again = trainer.learner.apply(prepared, pairs)
    gain = np.subtract(margins(trainer, pairs), before)
    assert again["term/surgical"] < report["term/surgical"] and 0 < again["pair_margin"] < gain.mean()
    assert again["pair_accuracy"] > 0.5


def test_pairs_change_an_update_by_their_own_gradient_only(run_of: Make) -> None:
    """With λ = 0 the weights are those of the update without pairs."""
    after = []
    for pairs, weight in (([], 0.15), (random_pairs(3), 0.0), (random_pairs(3), 0.15)):
        terms = {"objective.terms": [{"name": "surgical", "weight": weight}]}
        trainer = Trainer(run_of("dapo", {**SURGICAL, **terms}, validation=NO_VALIDATION))
        rollouts = trainer.collector.roll_out(1.0)[0]
        rewards = np.random.default_rng(0).normal(size=rollouts.turns)
        rollouts = dataclasses.replace(rollouts, turn_reward=rewards)
        prepared = trainer.learner.prepare(rollouts, update=0, temperature=1.0)
        assert trainer.learner.apply(prepared, pairs)["steps"] == 1
        after.append(weights(trainer))
    none, weightless, weighted = after
    assert equal(none, weightless) and not equal(none, weighted)


def test_pairs_are_divided_among_the_steps_of_every_pass() -> None:
    plans = [StepPlan(1, np.ones(1, dtype=bool), number) for number in (0, 0, 0, 1, 1)]
    shares = divide_pairs(7, plans, update=3, seed=1)
    assert [len(share) for share in shares] == [3, 2, 2, 4, 3]
    for part in (shares[:3], shares[3:]):
        assert sorted(np.concatenate(part).tolist()) == list(range(7))
    assert all(np.array_equal(a, b) for a, b in zip(shares, divide_pairs(7, plans, update=3, seed=1), strict=True))
    assert [len(share) for share in divide_pairs(1, plans, update=0, seed=1)] == [1, 0, 0, 1, 0]
    assert divide_pairs(4, [], update=0, seed=1) == []


def test_more_steps_than_pairs_leave_some_steps_without_pairs(run_of: Make) -> None:
    changes = {**SURGICAL, "optimization.episodes_per_step": 3, "optimization.passes": 2}
    trainer = Trainer(run_of("dapo", changes, validation=NO_VALIDATION))
    report = trainer.learner.apply(no_advantages(trainer), random_pairs(2))
    assert report["steps"] == 8 and report["pairs"] == 2 and math.isfinite(report["term/surgical"])


def test_pair_without_tokens_is_rejected() -> None:
    prompt, nothing = np.arange(3), np.zeros(0, dtype=np.int64)
    pair = Preference(Continuation(prompt, prompt), Continuation(prompt, nothing), 0)
    with pytest.raises(ConfigurationError, match="a continuation without tokens"):
        pair_rollouts([pair])


# ---------------------------------------------------------------------- the moving average


def reference_model(trainer: Trainer) -> Any:
    reference = trainer.learner.reference
    assert reference is not None
    return reference


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
def test_reference_is_the_moving_average_of_the_policies(run_of: Make, lora: LoraConfig | None) -> None:
    """α = 0.95: of 1, then 2, 2, 3 it is 1.05, 1.0975, 1.192625 (recorded case); so is it of every weight."""
    hardware = HardwareConfig(device="cpu", lora=lora)
    trainer = Trainer(run_of("dapo", SURGICAL, validation=NO_VALIDATION, hardware=hardware))
    model = trainer.optimizer.policy.model
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    found = []
    with torch.no_grad():
        for value in (2.0, 2.0, 3.0):
            if not found:
                for average in reference_model(trainer).state_dict().values():
                    average.fill_(1.0)
            for weight in trained.values():
                weight.fill_(value)
            trainer.learner.follow_policy()
            state = reference_model(trainer).state_dict()
            assert state.keys() == trained.keys()
            found.append([float(value.mean()) for value in state.values()])
            assert all(bool((weight == value).all()) for weight in trained.values())
    for values, expected in zip(found, (1.05, 1.0975, 1.192625), strict=True):
        assert values == pytest.approx([expected] * len(values), rel=1e-5)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
def test_scores_under_the_average_are_those_of_a_model_with_its_weights(
    run_of: Make, lora: LoraConfig | None
) -> None:
    hardware = HardwareConfig(device="cpu", lora=lora)
    trainer = Trainer(run_of("dapo", SURGICAL, validation=NO_VALIDATION, hardware=hardware))
    pairs, model = random_pairs(4), trainer.optimizer.policy.model
    rollouts = pair_rollouts(pairs)
    initial, _ = trainer.learner.scorer.score(rollouts, 1.0)
    assert np.array_equal(trainer.learner.scorer.score(rollouts, 1.0, reference=True)[0], initial)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    policy = weights(trainer)
    for _ in range(5):
        trainer.learner.follow_policy()
    found, _ = trainer.learner.scorer.score(rollouts, 1.0, reference=True)
    assert equal(weights(trainer), policy)
    average = copy.deepcopy(reference_model(trainer).state_dict())
    model.load_state_dict(average, strict=False)
    expected, _ = trainer.learner.scorer.score(rollouts, 1.0)
    assert np.allclose(found, expected, atol=1e-6) and not np.allclose(found, initial, atol=1e-3)


def test_moving_average_resumes_exactly_and_rolls_back(run_of: Make, tmp_path: Any) -> None:
    changes = {**SURGICAL, "optimization.updates": 4, "optimization.lr": 1e-2}
    uninterrupted = finish(Trainer(run_of("dapo", changes, out=tmp_path / "uninterrupted")))
    config = run_of("dapo", changes, out=tmp_path / "interrupted", checkpoint_every=2)
    interrupted = Trainer(config)
    for record in interrupted.run():
        if record.metrics["update"] == 3:
            break
    at_three = {name: value.clone() for name, value in reference_model(interrupted).state_dict().items()}
    resumed = Trainer(config, resume=True)
    saved = {name: value.clone() for name, value in reference_model(resumed).state_dict().items()}
    assert resumed.state.update == 2 and not equal(saved, at_three)
    interrupted._contents.roll_back(interrupted.checkpoints.path(2))
    assert equal(dict(reference_model(interrupted).state_dict()), saved)
    finish(resumed)
    expected = dict(reference_model(uninterrupted).state_dict())
    assert equal(dict(reference_model(resumed).state_dict()), expected)
    start = dict(uninterrupted.optimizer.policy.model.named_parameters())
    assert not equal({name: start[name].detach() for name in expected}, expected)
