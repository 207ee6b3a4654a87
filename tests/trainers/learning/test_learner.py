"""One update: scores, gradients and metrics are those of plain forward and backward passes."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.credit.base import Advantages, Credit, PolicyProbe
from arboretum.trainers.config.settings import HardwareConfig, ValidationConfig
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.data.segments import BoolArray, FloatArray
from arboretum.trainers.trainer import Trainer
from support.training import Make, equal, weights

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

NO_VALIDATION = ValidationConfig(every=0)


def roll_out(trainer: Trainer, *, random_rewards: bool = False, temperature: float = 1.0) -> Rollouts:
    """Return one generation batch; with `random_rewards`, every turn gets a reward of its own."""
    rollouts, failures, *_ = trainer.collector.roll_out(temperature)
    assert failures.failed == 0
    if random_rewards:
        rewards = np.random.default_rng(0).normal(size=rollouts.turns)
        rollouts = dataclasses.replace(rollouts, turn_reward=rewards)
    return rollouts


def row_logprobs(model: Any, rollouts: Rollouts, row: int, temperature: float) -> tuple[Any, Any]:
    """Return the sampled tokens of a row, and their log-probabilities by a plain forward pass."""
    ids = torch.tensor(rollouts.rows[row].tolist())
    tokens = np.flatnonzero(rollouts.copies.row == row)
    positions = rollouts.action_position[tokens]
    logits = model(input_ids=ids.unsqueeze(0)).logits[0] / temperature
    return tokens, torch.log_softmax(logits, -1)[positions - 1, ids[positions]]


# ---------------------------------------------------------------------- scores


def test_scores_are_those_of_a_plain_forward_pass(run_of: Make) -> None:
    trainer = Trainer(run_of("grpo", validation=NO_VALIDATION))
    rollouts = roll_out(trainer)
    found, _ = trainer.learner.scorer.score(rollouts, 0.7)
    model = trainer.optimizer.policy.model.eval()
    for row in range(len(rollouts.rows)):
        with torch.no_grad():
            tokens, expected = row_logprobs(model, rollouts, row, 0.7)
        assert np.allclose(found[tokens], expected, atol=1e-5)


def test_reference_is_the_initial_policy_and_never_changes(run_of: Make) -> None:
    trainer = Trainer(run_of("grpo", {"optimization.lr": 1e-2}, validation=NO_VALIDATION))
    rollouts = roll_out(trainer, random_rewards=True)
    initial, _ = trainer.learner.scorer.score(rollouts, 1.0)
    reference, _ = trainer.learner.scorer.score(rollouts, 1.0, reference=True)
    assert np.array_equal(initial, reference)
    trainer.learner.update(rollouts, update=0, temperature=1.0)
    updated, _ = trainer.learner.scorer.score(rollouts, 1.0)
    again, _ = trainer.learner.scorer.score(rollouts, 1.0, reference=True)
    assert np.array_equal(again, reference) and not np.allclose(updated, initial)


def test_explained_variance_compares_the_critic_with_its_targets(run_of: Make) -> None:
    trainer = Trainer(run_of("ppo", validation=NO_VALIDATION))
    rollouts = roll_out(trainer, random_rewards=True)
    with torch.no_grad():
        trainer.optimizer.policy.critic["head"].weight.normal_(std=0.1)
    _, values = trainer.learner.scorer.score(rollouts, 1.0, use_critic=True)
    targets = trainer.config.recipe.credit.assign(rollouts, values).value_targets
    expected = 1 - np.square(targets - values - np.mean(targets - values)).mean() / targets.var()
    report = trainer.learner.update(rollouts, update=0, temperature=1.0)
    assert report["explained_variance"] == pytest.approx(expected) and abs(expected) > 1e-3


@pytest.mark.parametrize(
    ("recipe", "passes", "passes_saved"),
    [("grpo", ["policy", "reference"], ["reference"]), ("ppo", ["policy", "reference"], ["critic", "reference"])],
)
def test_sampler_logprobs_replace_a_pass_of_the_old_policy(
    run_of: Make, recipe: str, passes: list[str], passes_saved: list[str]
) -> None:
    """With two steps per update, reusing the sampler's log-probabilities changes results by rounding only."""
    weights, reports = [], []
    for reuse in (True, False):
        trainer = Trainer(run_of(recipe, {"optimization.episodes_per_step": 6, "objective.kl.coef": 0.01}))
        learner = trainer.learner
        assert learner.reuse_sampler_logprobs  # the default in float32 with the transformers engine
        learner.reuse_sampler_logprobs = reuse
        scored: list[str] = []
        score = learner.scorer.score

        def recording(*args: Any, score: Any = score, scored: list[str] = scored, **options: Any) -> Any:
            kind = "policy" if options.get("use_policy", True) else "critic"
            scored.append("reference" if options.get("reference") else kind)
            return score(*args, **options)

        learner.scorer.score = recording
        rollouts = roll_out(trainer)
        reports.append(learner.update(rollouts, update=0, temperature=1.0))
        assert scored == (passes_saved if reuse else passes)
        weights.append([p.detach().clone() for p in trainer.optimizer.policy.model.parameters()])
        trainer.close()
    for reused, rescored in zip(*weights, strict=True):
        torch.testing.assert_close(reused, rescored, rtol=0, atol=2e-5)
    reused, rescored = reports
    assert reused["steps"] == 2 and reused["mismatch_abs_max"] < 1e-4
    for name in ("clip_upper", "approx_kl", "entropy", "kl", "grad_norm", "mismatch_abs", "tokens"):
        assert reused[name] == pytest.approx(rescored[name], rel=1e-3, abs=1e-6), name


def test_scores_of_sequences_are_those_of_a_plain_forward_pass(run_of: Make) -> None:
    trainer = Trainer(run_of("grpo", {"optimization.lr": 1e-2}, validation=NO_VALIDATION))
    model = trainer.optimizer.policy.model.eval()
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    trainer.learner.update(roll_out(trainer, random_rewards=True), update=0, temperature=1.0)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 40, size) for size in (1, 5, 9, 5)]
    prompts[3] = prompts[1]
    replies = [rng.integers(0, 40, size) for size in (3, 1, 0, 7)]
    found = trainer.learner.scorer.score_sequences(prompts, replies, 0.7)
    of_reference = trainer.learner.scorer.score_sequences(prompts, replies, 0.7, reference=True)
    assert trainer.learner.scorer.score_sequences([], [], 1.0) == []
    for scores, state in ((found, None), (of_reference, initial)):
        if state is not None:
            model.load_state_dict(state)
        for prompt, reply, score in zip(prompts, replies, scores, strict=True):
            ids = torch.tensor(np.concatenate([prompt, reply]))
            with torch.no_grad():
                logp = torch.log_softmax(model(input_ids=ids[None]).logits[0] / 0.7, -1)
            expected = [float(logp[place - 1, ids[place]]) for place in range(len(prompt), len(ids))]
            assert score.tolist() == pytest.approx(expected, abs=1e-5)
    for wrong, message in (([], "0 replies"), ([replies[0]], "prompt 1 has no tokens")):
        with pytest.raises(ConfigurationError, match=message):
            trainer.learner.scorer.score_sequences([np.zeros(0, dtype=np.int64)], wrong, 1.0)


# ---------------------------------------------------------------------- preparation and steps


def test_preparation_and_steps_are_the_update(run_of: Make) -> None:
    changes = {"optimization.passes": 2, "objective.kl.coef": 0.01}
    reports, after = [], []
    for split in (True, False):
        trainer = Trainer(run_of("grpo", changes, validation=NO_VALIDATION))
        rollouts, before = roll_out(trainer, random_rewards=True), weights(trainer)
        options = {"update": 0, "temperature": 1.0, "scale": 0.5}
        if split:
            prepared = trainer.learner.prepare(rollouts, **options)
            assert equal(weights(trainer), before)
            reports.append(trainer.learner.apply(prepared))
        else:
            reports.append(trainer.learner.update(rollouts, **options))
        after.append(weights(trainer))
        assert not equal(after[-1], before)
    assert equal(*after) and reports[0] == reports[1]


@dataclasses.dataclass(frozen=True)
class HalfWeight(Credit):
    """Advantage 1 at every token, with a metric; the first token of every turn gets a multiplicity of its own."""

    name: ClassVar[str] = "half"
    first: float = 1.0
    asks: bool = False

    @property
    def needs_policy(self) -> bool:
        return self.asks

    def assign(
        self,
        rollouts: Rollouts,
        values: FloatArray | None = None,
        in_loss: BoolArray | None = None,
        policy: PolicyProbe | None = None,
    ) -> Advantages:
        assert (policy is not None) == self.asks
        actions = rollouts.copies.action
        is_first = rollouts.action_offset[actions] == np.array(
            [rollouts.action_offset[rollouts.action_turn == turn].min() for turn in rollouts.action_turn[actions]]
        )
        multiplicity = np.where(is_first, self.first, 1.0)
        return Advantages(np.ones(len(actions)), multiplicity=multiplicity, metrics={"half/first": self.first})


def test_multiplicities_weigh_the_tokens_of_an_update(run_of: Make) -> None:
    """With "token-mean", advantage 1 and one step, the gradient is that of -Σ m log π / Σ m."""
    config = run_of("dr_grpo", {"optimization.episodes_per_step": 12, "optimization.max_grad_norm": 1e6})
    for first in (0.5, 0.0):
        trainer = Trainer(config)
        recipe = trainer.learner.recipe
        objective = dataclasses.replace(recipe.objective, aggregation="token-mean", norm_length=None)
        credit = HalfWeight(first)
        trainer.learner.recipe = dataclasses.replace(recipe, objective=objective, credit=credit)
        rollouts = roll_out(trainer)
        model = trainer.optimizer.policy.model
        multiplicity = credit.assign(rollouts).multiplicity
        losses = [
            -(torch.tensor(multiplicity[tokens]) * logp).sum()
            for tokens, logp in (row_logprobs(model, rollouts, row, 1.0) for row in range(len(rollouts.rows)))
        ]
        expected = torch.autograd.grad(
            sum(losses) / multiplicity.sum(), list(model.parameters()), allow_unused=True
        )
        found: list[Any] = []
        trainer.optimizer.torch_optimizer.register_step_pre_hook(
            lambda *_, found=found, model=model: found.extend(p.grad.clone() for p in model.parameters())
        )
        report = trainer.learner.update(rollouts, update=0, temperature=1.0)
        for gradient, derived in zip(found, expected, strict=True):
            assert torch.allclose(gradient, derived.to(gradient), rtol=1e-3, atol=1e-6)
        assert report["half/first"] == first
        assert report["tokens"] == np.count_nonzero(multiplicity)


def test_credit_that_needs_the_policy_gets_it_and_is_refused_without(run_of: Make) -> None:
    trainer = Trainer(run_of("dr_grpo", validation=NO_VALIDATION))
    trainer.learner.recipe = dataclasses.replace(trainer.learner.recipe, credit=HalfWeight(asks=True))
    rollouts = roll_out(trainer)
    probe: Any = object()
    assert trainer.learner.prepare(rollouts, update=0, temperature=1.0, policy=probe).credit.metrics
    with pytest.raises(ConfigurationError, match="credit 'half' asks the policy"):
        trainer.learner.prepare(rollouts, update=0, temperature=1.0)


# ---------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", ["ppo", "grpo", "dr_grpo"])
def test_gradient_does_not_depend_on_the_size_of_micro_batches(name: str, run_of: Make) -> None:
    gradients = []
    for microbatch_tokens in (100_000, 600):
        config = run_of(
            name,
            {"optimization.episodes_per_step": 12},
            hardware=HardwareConfig(device="cpu", microbatch_tokens=microbatch_tokens),
            validation=NO_VALIDATION,
        )
        trainer = Trainer(config)
        rollouts = roll_out(trainer, random_rewards=True)
        # Adam divides by the size of the gradient, so gradients are compared, not weights.
        policy = trainer.optimizer.policy
        found: dict[str, Any] = {}
        trainer.optimizer.torch_optimizer.register_step_pre_hook(
            lambda *_, found=found, policy=policy: found.update(
                {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
            )
        )
        trainer.learner.update(rollouts, update=0, temperature=1.0)
        gradients.append(found)
    assert gradients[0].keys() == gradients[1].keys() and gradients[0]
    for key, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][key], rtol=1e-4, atol=1e-6), key


def test_rows_without_advantage_skip_the_backward_pass_and_change_nothing(
    run_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result equals that of an update with a backward pass for every row."""
    after, reports, backward = [], [], []
    # The long norm keeps rounding errors of the gradient below AdamW's epsilon, which would amplify larger ones.
    changes: dict[str, object] = {"optimization.episodes_per_step": 12, "objective.norm_length": 2000}
    for skip in (True, False):
        trainer = Trainer(run_of("dr_grpo", changes, validation=NO_VALIDATION))
        rollouts = roll_out(trainer, random_rewards=True)
        silent = rollouts.group[rollouts.paths.episode] == 0
        rollouts = dataclasses.replace(
            rollouts,
            turn_reward=np.where(silent, 0.0, rollouts.turn_reward),
            turn_penalty=np.zeros(rollouts.turns),
        )
        if not skip:
            none = np.zeros(rollouts.actions, dtype=bool)
            monkeypatch.setattr(
                "arboretum.trainers.learning.learner.zero_gradient_tokens", lambda *_, none=none: none
            )
        tokens, policy = [], trainer.optimizer.policy
        policy.register_forward_hook(
            lambda _, args, kwargs, out, tokens=tokens: tokens.append(len(out[0]) if out[0].requires_grad else 0),
            with_kwargs=True,
        )
        reports.append(trainer.learner.update(rollouts, update=0, temperature=1.0))
        after.append(weights(trainer))
        backward.append(sum(tokens))
    assert reports[0] == pytest.approx(reports[1], rel=1e-4, abs=1e-6)
    assert 0 < backward[0] < backward[1]
    for name, weight in after[0].items():
        assert torch.allclose(weight, after[1][name], atol=1e-6), name


def test_update_raises_the_probability_of_actions_with_positive_advantage(run_of: Make) -> None:
    trainer = Trainer(run_of("dr_grpo", {"optimization.lr": 1e-4}, validation=NO_VALIDATION))
    rollouts = roll_out(trainer, random_rewards=True)
    advantages = trainer.config.recipe.credit.assign(rollouts).advantages
    before, _ = trainer.learner.scorer.score(rollouts, 1.0)
    trainer.learner.update(rollouts, update=0, temperature=1.0)
    after, _ = trainer.learner.scorer.score(rollouts, 1.0)
    assert float(((after - before) * advantages).sum()) > 0


@pytest.mark.parametrize(("temperature", "cap"), [(1.0, 1.01), (0.7, 1.01), (0.7, None)])
def test_mismatch_with_a_stale_sampler_is_corrected_as_in_the_equation(
    temperature: float, cap: float | None, run_of: Make
) -> None:
    """The gradient is that of -Σ w · min(π / π_sampler, C) · A · log π, by plain forward passes."""
    config = run_of(
        "dr_grpo",
        {
            "sampler.temperature": temperature,
            "objective.mismatch.cap": cap,
            "optimization.episodes_per_step": 12,
            "optimization.max_grad_norm": 1e6,
        },
        validation=NO_VALIDATION,
    )
    trainer = Trainer(config)
    rollouts = roll_out(trainer, random_rewards=True, temperature=temperature)
    model = trainer.optimizer.policy.model
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    advantages = config.recipe.credit.assign(rollouts).advantages
    losses, row_ratios = [], []
    for row in range(len(rollouts.rows)):
        tokens, logp = row_logprobs(model, rollouts, row, temperature)
        ratio = torch.exp(logp.detach() - torch.tensor(rollouts.logprobs[tokens]))
        weight = torch.ones_like(ratio) if cap is None else ratio.clamp(max=cap)
        losses.append(-(weight * torch.tensor(advantages[tokens]) * logp).sum())
        row_ratios.append(ratio)
    length = trainer.learner.recipe.objective.norm_length
    assert length == 3 * 12  # turns, and tokens of a reply
    expected = torch.autograd.grad(
        sum(losses) / (rollouts.episodes * length), list(model.parameters()), allow_unused=True
    )
    ratios = torch.cat(row_ratios)
    assert cap is None or 0.02 < float((ratios > cap).float().mean()) < 0.9, "both sides of the cap must occur"
    found: list[Any] = []
    trainer.optimizer.torch_optimizer.register_step_pre_hook(
        lambda *_: found.extend(p.grad.clone() for p in model.parameters())
    )
    report = trainer.learner.update(rollouts, update=0, temperature=temperature)
    for gradient, derived in zip(found, expected, strict=True):
        assert torch.allclose(gradient, derived.to(gradient), rtol=1e-3, atol=1e-7)
    assert report["mismatch_ratio_max"] == pytest.approx(float(ratios.max()), rel=1e-3)
    assert report["mismatch_abs"] == pytest.approx(float(ratios.log().abs().mean()), rel=1e-3)
    assert report["mismatch_kl"] == pytest.approx(float((ratios - 1 - ratios.log()).mean()), rel=1e-2)
    mean_weight = float(ratios.clamp(max=cap).mean()) if cap else 1.0
    assert report["mismatch_weight"] == pytest.approx(mean_weight, rel=1e-3)
