"""One update of the policy: score tokens, assign credit, and take optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...envs.errors import ConfigurationError
from ..algorithms.credit.base import PolicyProbe, assign_credit
from ..algorithms.objectives.kl import kl_estimate
from ..algorithms.objectives.loss import Sums, reduce_metrics
from ..algorithms.objectives.penalties import tokens_in_loss
from ..algorithms.recipe import Recipe
from ..algorithms.schedules import adapt_kl_coef
from ..data.microbatches import MicroBatch
from ..data.preferences import Preference
from ..data.rollouts import Rollouts
from ..data.segments import FloatArray, IntArray
from ..state import Activity
from .accumulation import Microbatching, accumulate_gradients
from .distributed import gather_lists
from .optimizer import PolicyOptimizer, Step
from .pairs import PreparedPairs, divide_pairs, pair_loss, pair_microbatches, reduce_pair_metrics, score_pairs
from .preparation import Prepared, kl_in_reward, leave_out_weightless, plan_steps
from .reference import Reference
from .scoring import Scorer
from .token_loss import step_inputs, token_loss, zero_gradient_tokens


class Learner:
    """Updates the policy from rollouts, as a recipe defines it.

    Args:
        recipe: Algorithm.
        optimizer: Policy and optimizer.
        reference: Reference policy; None if the recipe needs none.
        microbatch_tokens: See `HardwareConfig`.
        seed: Seed of the run.
        reuse_sampler_logprobs: True if this very model sampled the rollouts in the same precision. Then, unless
            nucleus sampling is on, their log-probabilities are the policy's own and need no forward pass.
        share_prefixes: See `HardwareConfig`.

    Attributes:
        scorer: Scores of tokens under the policy, the reference and the critic.
        kl_coef: Current coefficient β of the KL term.
        preferences: Preference pairs of earlier updates that are trained on again.
    """

    def __init__(
        self,
        recipe: Recipe,
        optimizer: PolicyOptimizer,
        reference: Reference | None,
        *,
        microbatch_tokens: int | None,
        seed: int,
        reuse_sampler_logprobs: bool = False,
        share_prefixes: bool | None = None,
    ) -> None:
        self.recipe = recipe
        self.optimizer = optimizer
        self.reference = reference
        self.kl_coef = recipe.objective.kl.coef
        self.preferences: list[Preference] = []
        self.reuse_sampler_logprobs = reuse_sampler_logprobs
        self._seed = seed
        max_tokens = microbatch_tokens or optimizer.default_microbatch_tokens
        self._microbatching = Microbatching(optimizer, max_tokens, share_prefixes)
        self.scorer = Scorer(optimizer, reference, self._microbatching)

    @property
    def activity(self) -> Activity:
        """Phase in progress, in which micro-batches are counted."""
        return self.scorer.activity

    @activity.setter
    def activity(self, activity: Activity) -> None:
        self.scorer.activity = activity

    # ------------------------------------------------------------------ one update

    def update(
        self,
        rollouts: Rollouts,
        *,
        update: int,
        temperature: float,
        scale: float = 1.0,
        policy: PolicyProbe | None = None,
    ) -> dict[str, float]:
        """Prepare and apply an update; see `prepare` and `apply`."""
        return self.apply(
            self.prepare(rollouts, update=update, temperature=temperature, scale=scale, policy=policy)
        )

    def prepare(
        self,
        rollouts: Rollouts,
        *,
        update: int,
        temperature: float,
        scale: float = 1.0,
        policy: PolicyProbe | None = None,
    ) -> Prepared:
        """Score selected rollouts, length penalties included, and assign credit; the weights stay as they are.

        Args:
            rollouts: Selected rollouts.
            update: Number of this update, from 0.
            temperature: Temperature at which the rollouts were sampled.
            scale: Factor on the advantages.
            policy: Access to the policy for a credit rule that needs it.

        Raises:
            ConfigurationError: The credit rule needs the policy, and `policy` is None.
            PartFailed: The credit rule failed; see `assign_credit`.
        """
        recipe, objective = self.recipe, self.recipe.objective
        if recipe.credit.needs_policy and policy is None:
            raise ConfigurationError(
                f"credit {recipe.credit.name!r} asks the policy about actions; pass a policy to the update."
            )
        plans = plan_steps(rollouts, recipe, update=update, seed=self._seed)
        old_logprobs, values = self._old_scores(rollouts, temperature, several_steps=len(plans) > 1)
        ref_logprobs = (
            self.scorer.score(rollouts, temperature, reference=True)[0] if recipe.needs_token_reference else None
        )
        metrics: dict[str, float] = {}
        if kl_in_reward(recipe):
            assert old_logprobs is not None and ref_logprobs is not None
            kl = kl_estimate(
                torch.as_tensor(old_logprobs), torch.as_tensor(ref_logprobs), objective.kl.estimator
            ).numpy()
            metrics["kl"] = float(kl.mean())
            rollouts = rollouts.add_token_penalties(-self.kl_coef * kl)
        in_loss = tokens_in_loss(rollouts, recipe.overlong)
        probe = {"policy": policy} if recipe.credit.needs_policy else {}
        credit = assign_credit(recipe.credit, rollouts, values, None if in_loss.all() else in_loss, **probe)
        return Prepared(
            rollouts=rollouts,
            credit=credit,
            plans=leave_out_weightless(plans, credit.multiplicity, full_sequences=objective.reads_sequences),
            old_logprobs=old_logprobs,
            ref_logprobs=ref_logprobs,
            values=values,
            metrics={**metrics, **credit.metrics},
            update=update,
            temperature=temperature,
            scale=scale,
        )

    def apply(self, prepared: Prepared, preferences: Sequence[Preference] = ()) -> dict[str, float]:
        """Take the optimizer steps of a prepared update.

        Without a critic, rollouts whose advantages are all 0 take no step: `steps` is then 0. Preference pairs are
        a signal of their own, so with pairs the steps are taken in any case.

        Args:
            prepared: Result of `prepare`. The weights must not have changed since.
            preferences: Pairs for the terms on pairs. Every pass over the rollouts divides them among its steps,
                and the loss of a step has the mean over its pairs.

        Returns:
            Means over the tokens of all steps (see `loss.reduce_metrics`), `policy_loss` (the surrogate's part of
            the loss, mean over the steps), `explained_variance` of the critic, metrics of the credit rule,
            gradient norms, skipped steps, learning rate and KL coefficient; with terms on pairs also `pairs`,
            their number, and means over them (see `reduce_pair_metrics`).

        Raises:
            Diverged: See `PolicyOptimizer.step`.
            PartFailed: A term of the objective failed.
        """
        recipe, rollouts = self.recipe, prepared.rollouts
        lr = self.optimizer.set_lr(prepared.update)
        report = dict(prepared.metrics)
        pairs = score_pairs(self.scorer, recipe.objective.pair_terms, preferences, prepared.temperature)
        if recipe.objective.pair_terms:
            report["pairs"] = float(pairs.count if pairs else 0)
        if recipe.critic is None and not prepared.has_signal and pairs is None:
            # Regularization alone would be the gradient, and AdamW makes full-size steps of it.
            unchanged = {"advantage_abs": 0.0, "lr": lr, "kl_coef": self.kl_coef}
            return report | self.optimizer.step_metrics([]) | unchanged
        parts, pair_parts, steps = self._take_steps(prepared, pairs)
        report |= reduce_metrics(gather_lists(self.optimizer.accelerator, parts))
        report |= reduce_pair_metrics(gather_lists(self.optimizer.accelerator, pair_parts))
        report["policy_loss"] = report.get("policy_loss", 0.0) / max(len(steps), 1)
        report |= prepared.explained_variance()
        report |= self.optimizer.step_metrics(steps)
        report["advantage_abs"] = float(np.abs(prepared.credit.advantages).mean()) if rollouts.actions else 0.0
        report["lr"], report["kl_coef"] = lr, self.kl_coef
        kl = recipe.objective.kl
        if kl.target is not None and "kl" in report:
            self.kl_coef = adapt_kl_coef(
                self.kl_coef, report["kl"], target=kl.target, horizon=kl.horizon, episodes=rollouts.episodes
            )
        return report

    def _old_scores(
        self, rollouts: Rollouts, temperature: float, *, several_steps: bool
    ) -> tuple[FloatArray | None, FloatArray | None]:
        """Return the old log-probabilities (None if nothing needs them) and the critic's values (None without)."""
        objective, has_critic = self.recipe.objective, self.recipe.critic is not None
        # On the only step of an update the policy is still the one that sampled.
        needs_old = kl_in_reward(self.recipe) or several_steps
        # A correction for the sampler compares with the trainer's own numbers, so these must be computed.
        reuse = self.reuse_sampler_logprobs and self.recipe.sampler.top_p == 1.0 and objective.mismatch.cap is None
        score_policy = needs_old and not reuse
        logprobs = values = None
        if has_critic or score_policy:
            logprobs, values = self.scorer.score(
                rollouts, temperature, use_critic=has_critic, use_policy=score_policy
            )
        if not score_policy:
            logprobs = rollouts.logprobs if needs_old else None
        return logprobs, values if has_critic else None

    def _take_steps(
        self, prepared: Prepared, pairs: PreparedPairs | None
    ) -> tuple[list[Sums], list[Sums], list[Step]]:
        """Take the steps, and return sums over the tokens and over the pairs of each micro-batch."""
        rollouts, plans = prepared.rollouts, prepared.plans
        arrays = prepared.loss_inputs(self.recipe)
        zero_gradient = zero_gradient_tokens(self.recipe, rollouts, arrays)
        shares = divide_pairs(pairs.count if pairs else 0, plans, update=prepared.update, seed=self._seed)
        parts: list[Sums] = []
        pair_parts: list[Sums] = []
        steps: list[Step] = []
        self.activity.begin("updating", unit="micro-batches")
        done = 0
        for number, (plan, share) in enumerate(zip(plans, shares, strict=True)):
            keep = plan.tokens
            has_pairs = pairs is not None and len(share) > 0
            inputs = step_inputs(self.recipe, prepared, arrays, plan, is_first=number == 0)
            metrics_only = keep & zero_gradient
            if (metrics_only == keep).all() and not has_pairs:
                metrics_only = np.zeros_like(keep)  # An optimizer step needs gradients, even if all are zero.
            step_batches = [
                (self._microbatching.divide(rollouts, tokens), backward)
                for tokens, backward in ((metrics_only, False), (keep & ~metrics_only, True))
            ]
            # The total is exact in the last step; before, the remaining steps count like this one.
            count = sum(len(microbatches) for microbatches, _ in step_batches)
            self.activity.advance(0, total=done + count * (len(plans) - number))
            done += count
            for microbatches, backward in step_batches:
                parts += accumulate_gradients(
                    self.optimizer,
                    microbatches,
                    prepared.temperature,
                    partial(self._loss, inputs),
                    entropy_grad=self.recipe.needs_entropy,
                    backward=backward,
                    more=has_pairs,
                )
            if pairs is not None and has_pairs:
                pair_parts += self._accumulate_pairs(pairs, share, prepared.temperature)
            steps.append(self.optimizer.step())
        self.activity.end()
        return parts, pair_parts, steps

    def _accumulate_pairs(self, pairs: PreparedPairs, share: IntArray, temperature: float) -> list[Sums]:
        """Add the gradients of the pairs of one optimizer step, and return sums of each micro-batch."""
        microbatches = pair_microbatches(self._microbatching, pairs.rollouts, share)
        loss_of = partial(pair_loss, self.recipe.objective.pair_terms, pairs, len(share))
        return accumulate_gradients(self.optimizer, microbatches, temperature, loss_of)

    def _loss(
        self, inputs: Mapping[str, FloatArray], micro: MicroBatch, scores: Sequence[Tensor]
    ) -> tuple[Tensor, Sums]:
        """Return `token_loss` of a micro-batch, and count it as done."""
        self.activity.advance()
        return token_loss(self.recipe, self.kl_coef, inputs, micro, scores)

    # ------------------------------------------------------------------ state between updates

    def add_preferences(self, pairs: Sequence[Preference], update: int) -> list[Preference]:
        """Return the pairs of an update's loss: new ones, after those of earlier updates that are not too old.

        Args:
            pairs: New pairs.
            update: Number of the update, from 0.
        """
        max_age = self.recipe.grafting.max_age
        known = [pair for pair in self.preferences if max_age is None or pair.update > update - max_age]
        self.preferences = [] if max_age == 1 else [*known, *pairs]
        return [*known, *pairs]

    def follow_policy(self) -> None:
        """Move a reference that is a moving average towards the policy, once after every update."""
        if self.reference is not None:
            self.reference.follow(self.optimizer.policy.model)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer, critic, reference, pairs and β; the policy is saved apart."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "kl_coef": self.kl_coef,
            "reference": {} if self.reference is None else self.reference.state_dict(),
            "preferences": [pair.to_plain() for pair in self.preferences],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.kl_coef = state["kl_coef"]
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])
        self.preferences = [Preference.from_plain(pair) for pair in state["preferences"]]
