"""Losses and their gradients against their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.objectives.aggregate import token_weights
from arboretum.trainers.algorithms.objectives.penalties import soft_overlong_penalty
from arboretum.trainers.algorithms.objectives.settings import AGGREGATIONS, Kl, Mismatch, Objective, Overlong
from arboretum.trainers.algorithms.schedules import Linear, adapt_kl_coef

torch = pytest.importorskip("torch")

from arboretum.trainers.algorithms.objectives.kl import kl_estimate
from arboretum.trainers.algorithms.objectives.loss import policy_loss, reduce_metrics
from arboretum.trainers.algorithms.objectives.mismatch import sampler_weights
from arboretum.trainers.algorithms.objectives.ratio import importance_ratios
from arboretum.trainers.algorithms.objectives.surgical import Surgical, surgical_losses, surgical_margins
from arboretum.trainers.algorithms.objectives.surrogate import clipped_surrogate
from arboretum.trainers.algorithms.objectives.tokens import Pairs, Tokens
from arboretum.trainers.algorithms.objectives.value import value_losses

quick = settings(deadline=None, max_examples=50)


def double(values: Any, grad: bool = False) -> Any:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def gradient(value: Any, of: Any) -> list[float]:
    return list(torch.autograd.grad(value, of, retain_graph=True)[0].reshape(-1).tolist())


# ---------------------------------------------------------------------- surrogate


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 1.0, -1.1, -1.0),
        (1.3, 1.0, -1.28, 0.0),  # clipped above, at 1 + 0.28
        (0.5, 1.0, -0.5, -1.0),  # far below, but the gradient increases the ratio
        (0.5, -1.0, 0.8, 0.0),  # clipped below, at 1 - 0.2
        (2.0, -1.0, 2.0, 1.0),
        (5.0, -1.0, 3.0, 0.0),  # the dual clip
        (5.0, 1.0, -1.28, 0.0),
    ],
)
def test_clipped_surrogate_has_no_gradient(ratio: float, advantage: float, loss: float, slope: float) -> None:
    ratios = double([ratio], grad=True)
    surrogate = clipped_surrogate(ratios, double([advantage]), clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    assert surrogate.losses.tolist() == pytest.approx([loss])
    assert gradient(surrogate.losses.sum(), ratios) == [slope]
    clipped = surrogate.upper | surrogate.lower | surrogate.dual
    assert clipped.tolist() == [slope == 0.0]


def test_ratio_cap_bounds_only_the_unclipped_ratio() -> None:
    ratios, advantages = double([5.0, 5.0, 0.5]), double([-1.0, 1.0, 1.0])
    surrogate = clipped_surrogate(ratios, advantages, ratio_cap=4.0)
    assert surrogate.losses.tolist() == [4.0, -1.2, -0.5]
    assert surrogate.dual.tolist() == [True, False, False]


@quick
@given(st.lists(st.tuples(st.floats(-3, 0), st.floats(-2, 2)), min_size=1, max_size=10))
def test_on_policy_gradient_of_every_ratio_is_that_of_reinforce(tokens: list[tuple[float, float]]) -> None:
    """With one advantage per sequence the surrogate's gradient is -A · ∇ log π for every span of the ratio."""
    logp = double([t[0] for t in tokens], grad=True)
    advantages = double([tokens[0][1]] * len(tokens))
    rows = torch.zeros(len(tokens), dtype=torch.long)
    weights = double(token_weights("seq-mean-token-mean", rows.numpy()))
    for ratio in ("token", "sequence", "sequence-token", "turn"):
        batch = Tokens(logp=logp, advantages=advantages, weights=weights, rows=rows, turns=rows)
        loss, measured = policy_loss(Objective(ratio=ratio), batch)
        expected = (-advantages * weights).tolist()
        assert gradient(loss, logp) == pytest.approx(expected, abs=1e-12)
        assert reduce_metrics([measured])["approx_kl"] == pytest.approx(0.0, abs=1e-12)


def test_sequence_ratio_is_the_geometric_mean_of_its_tokens() -> None:
    logp, old = double([0.2, -0.4, 0.1], grad=True), double([0.0, 0.0, 0.0])
    rows = torch.tensor([0, 0, 1])
    ratios = importance_ratios(logp, old, "sequence", rows=rows)
    assert ratios.tolist() == pytest.approx([math.exp(-0.1), math.exp(-0.1), math.exp(0.1)])
    assert gradient(ratios[0], logp) == pytest.approx([math.exp(-0.1) / 2, math.exp(-0.1) / 2, 0.0])
    by_token = importance_ratios(logp, old, "sequence-token", rows=rows)
    assert by_token.tolist() == pytest.approx(ratios.tolist())
    assert gradient(by_token[0], logp) == pytest.approx([math.exp(-0.1), 0.0, 0.0])


def test_extreme_ratios_are_finite() -> None:
    far, near, rows = double([-1e4, 0.0]), double([0.0, -1e4]), torch.tensor([0, 1])
    for kind in ("token", "sequence"):
        assert torch.isfinite(importance_ratios(far, near, kind, rows=rows)).all()


# ---------------------------------------------------------------------- aggregation

shapes = st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any)


@quick
@given(shapes)
def test_token_weights_reproduce_the_definition_of_every_aggregation(sizes: list[int]) -> None:
    rows = np.repeat(np.arange(len(sizes)), sizes)
    losses = np.random.default_rng(0).normal(size=len(rows))
    split = [losses[rows == row] for row in range(len(sizes)) if sizes[row]]
    prompts = rows // 2
    by_prompt = [losses[prompts == p] for p in np.unique(prompts)]
    expected = {
        "token-mean": losses.mean(),
        "seq-mean-token-mean": np.mean([part.mean() for part in split]),
        "seq-mean-token-sum": np.mean([part.sum() for part in split]),
        "seq-mean-token-sum-norm": losses.sum() / 7,
        "dr-grpo": losses.sum() / (7 * len(split)),
        "prompt-mean": np.mean([part.mean() for part in by_prompt]),
    }
    assert set(expected) == set(AGGREGATIONS)
    for mode, value in expected.items():
        weights = token_weights(mode, rows, prompts=prompts, norm_length=7)  # type: ignore[arg-type]
        assert (weights * losses).sum() == pytest.approx(value)
    trl = token_weights("seq-mean-token-mean", rows, count=len(sizes))
    assert (trl * losses).sum() == pytest.approx(sum(part.mean() for part in split) / len(sizes))


def test_excluded_tokens_have_no_weight_and_are_not_counted() -> None:
    rows = np.array([0, 0, 1, 1])
    keep = np.array([True, False, False, False])
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        assert token_weights(mode, rows, keep=keep).tolist() == [1.0, 0.0, 0.0, 0.0]  # type: ignore[arg-type]
        assert not token_weights(mode, rows, keep=~(rows >= 0)).any()  # type: ignore[arg-type]


def test_multiplicities_weigh_tokens_and_their_counts_in_every_aggregation() -> None:
    """Two sequences of one prompt: tokens of multiplicity 1/2, 1 and 1, 1, 0, and a sequence of multiplicity 0."""
    rows = np.array([0, 0, 1, 1, 1, 2])
    multiplicity = np.array([0.5, 1.0, 1.0, 1.0, 0.0, 0.0])
    expected = {
        "token-mean": np.array([0.5, 1, 1, 1, 0, 0]) / 3.5,
        # 1.5 tokens in the first sequence and 2 in the second; the third is not counted.
        "seq-mean-token-mean": np.array([0.5 / 1.5, 1 / 1.5, 1 / 2, 1 / 2, 0, 0]) / 2,
        "seq-mean-token-sum": np.array([0.5, 1, 1, 1, 0, 0]) / 2,
        "seq-mean-token-sum-norm": np.array([0.5, 1, 1, 1, 0, 0]) / 7,
        "dr-grpo": np.array([0.5, 1, 1, 1, 0, 0]) / (7 * 2),
        "prompt-mean": np.array([0.5, 1, 1, 1, 0, 0]) / 3.5,
    }
    assert set(expected) == set(AGGREGATIONS)
    for mode, weights in expected.items():
        options: dict[str, Any] = {"prompts": np.zeros(6, dtype=np.int64), "norm_length": 7}
        found = token_weights(mode, rows, multiplicity=multiplicity, **options)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, weights, rtol=1e-15)
        ones = token_weights(mode, rows, multiplicity=np.ones(6), **options)  # type: ignore[arg-type]
        assert ones.tolist() == token_weights(mode, rows, **options).tolist()  # type: ignore[arg-type]
    keep = np.array([False, True, True, False, True, True])
    found = token_weights("token-mean", rows, keep=keep, multiplicity=multiplicity)
    assert found.tolist() == [0.0, 0.5, 0.5, 0.0, 0.0, 0.0]


def test_aggregation_without_its_parameter_is_rejected() -> None:
    rows = np.zeros(2, dtype=np.int64)
    with pytest.raises(ConfigurationError, match="norm_length"):
        token_weights("dr-grpo", rows)
    with pytest.raises(ConfigurationError, match="prompt of every token"):
        token_weights("prompt-mean", rows)


# ---------------------------------------------------------------------- KL divergence


def categorical(grad: bool = True) -> tuple[Any, Any]:
    logits = double([0.3, -0.5, 0.9], grad=grad)
    return logits, torch.log_softmax(double([-0.2, 0.4, 0.1]), 0)


def test_expected_value_of_kl_estimators_is_the_divergence() -> None:
    logits, ref = categorical()
    logp = torch.log_softmax(logits, 0)
    kl = float((logp.exp() * (logp - ref)).sum().detach())
    for estimator in ("k1", "k3"):
        assert float((logp.exp() * kl_estimate(logp, ref, estimator)).sum().detach()) == pytest.approx(kl)


def test_expected_gradient_of_k2_and_straight_through_is_that_of_the_divergence() -> None:
    """The other estimators have a different expected gradient."""
    logits, ref = categorical()
    logp = torch.log_softmax(logits, 0)
    probabilities = logp.detach().exp()
    true = gradient((logp.exp() * (logp - ref)).sum(), logits)
    k2 = gradient((probabilities * kl_estimate(logp, ref, "k2")).sum(), logits)
    assert k2 == pytest.approx(true)
    for estimator in ("k1", "k3", "abs"):
        through = kl_estimate(logp, ref, estimator, straight_through=True)
        assert through.tolist() == pytest.approx(kl_estimate(logp, ref, estimator).tolist())
        assert gradient((probabilities * through).sum(), logits) == pytest.approx(true)
    assert gradient((probabilities * kl_estimate(logp, ref, "k1")).sum(), logits) == pytest.approx([0, 0, 0])
    assert gradient((probabilities * kl_estimate(logp, ref, "k3")).sum(), logits) != pytest.approx(true, rel=1e-2)


def test_bias_corrected_k3_has_value_and_gradient_of_the_divergence_off_policy() -> None:
    """E_old[ρ · k3] is the divergence of the *new* policy."""
    logits, ref = categorical()
    logp = torch.log_softmax(logits, 0)
    old = torch.log_softmax(double([1.0, 0.0, -0.3]), 0)
    tokens = Tokens(
        logp=logp,
        advantages=torch.zeros_like(logp),
        weights=old.exp(),
        rows=torch.arange(3),
        old_logp=old,
        ref_logp=ref,
    )
    objective = Objective(kl=Kl(coef=1.0, bias_correction=True))
    loss, _ = policy_loss(objective, tokens)
    true = (logp.exp() * (logp - ref)).sum()
    assert float(loss.detach()) == pytest.approx(float(true.detach()))
    assert gradient(loss, logits) == pytest.approx(gradient(true, logits))


def test_adaptive_kl_coefficient_moves_the_divergence_towards_its_target() -> None:
    assert adapt_kl_coef(0.1, 12.0, target=6.0, horizon=1000, episodes=100) == pytest.approx(0.1 * 1.02)
    assert adapt_kl_coef(0.1, 6.3, target=6.0, horizon=1000, episodes=100) == pytest.approx(0.1 * 1.005)
    assert adapt_kl_coef(0.1, 0.0, target=6.0, horizon=1000, episodes=100) == pytest.approx(0.1 * 0.98)
    tokens = Tokens(double([0.0]), double([0.0]), double([1.0]), torch.tensor([0]), ref_logp=double([-1.0]))
    objective = Objective(kl=Kl(coef=0.1, estimator="k1"))
    assert float(policy_loss(objective, tokens, kl_coef=0.5)[0]) == pytest.approx(0.5)


# ---------------------------------------------------------------------- other parts of the loss


def test_entropy_bonus_reduces_the_loss() -> None:
    entropy = double([1.0, 2.0], grad=True)
    zero = double([0.0, 0.0])
    tokens = Tokens(zero, zero, double([0.5, 0.5]), torch.tensor([0, 1]), entropy=entropy)
    loss, measured = policy_loss(Objective(entropy_coef=0.1), tokens)
    assert float(loss.detach()) == pytest.approx(-0.15)
    assert gradient(loss, entropy) == pytest.approx([-0.05, -0.05])
    assert reduce_metrics([measured])["entropy"] == 1.5


def test_policy_loss_is_the_surrogate_alone_summed_over_micro_batches() -> None:
    """Advantages 1 and -2 with weights 0.5 and 0.25 give -1·0.5 + 2·0.25 = 0; the third token has no weight."""
    objective = Objective(entropy_coef=10.0)
    parts = []
    for advantages, weights in (([1.0, -2.0, 5.0], [0.5, 0.25, 0.0]), ([3.0], [0.5])):
        logp, rows = double([-1.0] * len(weights)), torch.arange(len(weights))
        tokens = Tokens(logp, double(advantages), double(weights), rows, entropy=double([1.5] * len(weights)))
        parts.append(policy_loss(objective, tokens)[1])
    assert [part["policy_loss"] for part in parts] == pytest.approx([0.0, -1.5])
    assert reduce_metrics(parts)["policy_loss"] == pytest.approx(-1.5)


def test_metrics_are_means_over_the_tokens_in_the_loss_of_all_micro_batches() -> None:
    def part(ratios: list[float], advantages: list[float], weights: list[float]) -> dict[str, float]:
        logp = double(ratios).log()
        rows = torch.arange(len(ratios))
        return policy_loss(
            Objective(dual_clip=3.0),
            Tokens(logp, double(advantages), double(weights), rows, old_logp=torch.zeros_like(logp)),
        )[1]

    measured = reduce_metrics(
        [part([1.5, 0.5, 9.0], [1.0, -1.0, 1.0], [1, 1, 0]), part([4.0, 1.0], [-1.0, 1.0], [1, 1])]
    )
    assert measured["tokens"] == 4
    assert (measured["clip_upper"], measured["clip_lower"], measured["clip_dual"]) == (0.25, 0.25, 0.25)
    assert measured["ratio"] == pytest.approx(7 / 4) and measured["ratio_max"] == pytest.approx(4.0)
    expected = np.mean([r - 1 - math.log(r) for r in (1.5, 0.5, 4.0, 1.0)])
    assert measured["approx_kl"] == pytest.approx(expected)
    assert reduce_metrics([]) == {}


def test_sampler_weights_are_capped_or_masked_importance_ratios() -> None:
    trainer, sampler = double([0.0, 0.0, 0.0]), double([math.log(0.1), 0.0, math.log(2.0)])
    rows = torch.tensor([0, 1, 1])
    assert sampler_weights(trainer, sampler, Mismatch(cap=2.0), rows).tolist() == pytest.approx([2.0, 1.0, 0.5])
    assert sampler_weights(trainer, sampler, Mismatch(cap=2.0, excess="mask"), rows).tolist() == pytest.approx(
        [0.0, 1.0, 0.5]
    )
    by_sequence = Mismatch(cap=2.0, level="sequence")
    assert sampler_weights(trainer, sampler, by_sequence, rows).tolist() == pytest.approx([2.0, 0.5, 0.5])
    assert sampler_weights(trainer, sampler, Mismatch(), rows).tolist() == [1.0, 1.0, 1.0]


def test_sampler_weights_below_the_cap_make_the_gradient_unbiased() -> None:
    """The expected gradient under the sampler's policy is the gradient under the trainer's policy."""
    logits = double([0.3, -0.5, 0.9], grad=True)
    logp = torch.log_softmax(logits, 0)
    sampler = torch.log_softmax(double([0.1, -0.2, 0.7]), 0)
    advantages, rows = double([1.0, -2.0, 0.5]), torch.arange(3)

    def slope(weights: Any, sampled_by: Any) -> list[float]:
        tokens = Tokens(logp, advantages, weights, rows, old_logp=logp.detach(), sampler_logp=sampled_by)
        return gradient(policy_loss(Objective(mismatch=Mismatch(cap=10.0)), tokens)[0], logits)

    assert slope(sampler.exp(), sampler) == pytest.approx(slope(logp.detach().exp(), logp.detach()))


def test_value_loss_has_no_gradient_outside_the_clip_range() -> None:
    values = double([0.9, 0.1, 3.0], grad=True)
    losses = value_losses(values, double([1.0, 0.0, 5.0]), double([0.5, 0.5, 2.9]), 0.2)
    assert losses.tolist() == pytest.approx([0.5 * 0.09, 0.5 * 0.09, 0.5 * 4.0])
    assert gradient(losses.sum(), values) == pytest.approx([0.0, 0.0, -2.0])
    assert value_losses(values, double([1.0, 0.0, 5.0])).tolist() == pytest.approx([0.005, 0.005, 2.0])


def test_surgical_loss_prefers_the_rectified_thought() -> None:
    rect, neg = double([-12.0], grad=True), double([-9.0], grad=True)
    loss = surgical_losses(surgical_margins(rect, double([-12.0]), neg, double([-9.0])), 0.1).sum()
    assert float(loss.detach()) == pytest.approx(math.log(2))
    assert gradient(loss, rect) == pytest.approx([-0.05])
    assert gradient(loss, neg) == pytest.approx([0.05])


def test_normalized_surgical_term_compares_means_per_token() -> None:
    """Twice the tokens at the same log-ratio per token is the same preference."""
    short = Pairs(double([-6.0]), double([-2.0]), double([3.0]), double([2.0]), double([-9.0]), double([-1.0]))
    long = Pairs(double([-12.0]), double([-4.0]), double([6.0]), double([4.0]), double([-18.0]), double([-2.0]))
    normalized = Surgical(beta=0.5, weight=2.0, length_normalized=True)
    # margin: (-6 + 9) / 3 - (-2 + 1) / 2 = 1.5
    expected = 2.0 * math.log(1.0 + math.exp(-0.5 * 1.5))
    for pairs in (short, long):
        assert normalized.pair_losses(pairs).tolist() == pytest.approx([expected])
    summed = Surgical(beta=0.5, weight=2.0)
    assert summed.pair_losses(short).tolist() == pytest.approx([2.0 * math.log(1.0 + math.exp(-0.5 * 4.0))])
    assert summed.pair_losses(long).tolist() == pytest.approx([2.0 * math.log(1.0 + math.exp(-0.5 * 8.0))])


def test_term_on_pairs_adds_nothing_to_tokens() -> None:
    tokens = Tokens(double([-1.0, -2.0]), double([1.0, -1.0]), double([0.5, 0.5]), torch.tensor([0, 0]))
    plain, sums = policy_loss(Objective(), tokens)
    with_term, sums_with_term = policy_loss(Objective(terms=(Surgical(),)), tokens)
    assert float(plain) == float(with_term) and sums == sums_with_term
    assert Surgical().losses(tokens).tolist() == [0.0, 0.0]


# ---------------------------------------------------------------------- penalties, schedules, settings


def test_soft_overlong_penalty_equals_the_papers() -> None:
    lengths = np.array([100, 16384, 18432, 20480, 30000])
    assert soft_overlong_penalty(lengths, 20480, 4096).tolist() == [0.0, 0.0, -0.5, -1.0, -1.0]
    assert soft_overlong_penalty(lengths[-1:], 20480, 4096, floor=False)[0] == pytest.approx(
        -(30000 - 16384) / 4096
    )


def test_linear_schedule_is_constant_beyond_its_ends() -> None:
    schedule = Linear(1.0, 0.5)
    assert [schedule.at(step, 10) for step in (-1, 0, 5, 10, 99)] == [1.0, 1.0, 0.75, 0.5, 0.5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Objective(clip_low=1.5), "clip_low"),
        (lambda: Objective(dual_clip=1.0), "dual_clip"),
        (lambda: Objective(ratio_cap=1.1), "ratio_cap"),
        (lambda: Objective(aggregation="dr-grpo", norm_length=0), "norm_length"),
        (lambda: Objective(aggregation="mean"), "token-mean"),  # type: ignore[arg-type]
        (lambda: Kl(coef=-1.0), "kl.coef"),
        (
            lambda: Kl(coef=0.1, placement="reward", straight_through=True),
            "a KL term in the reward has no gradient",
        ),
        (lambda: Kl(target=0.1), "initial objective.kl.coef"),
        (lambda: Mismatch(cap=0.5), "mismatch.cap"),
        (lambda: Overlong(max_tokens=100, cache=200), "cache"),
    ],
)
def test_impossible_objective_is_rejected(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
