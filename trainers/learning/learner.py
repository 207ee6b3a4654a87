"""One update of the policy: score tokens, assign credit, and take optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...envs.errors import ConfigurationError
from ..algorithms.credit.base import PolicyProbe
from ..algorithms.objectives.aggregate import token_weights
from ..algorithms.objectives.kl import kl_estimate
from ..algorithms.objectives.loss import Sums, policy_loss, reduce_metrics
from ..algorithms.objectives.penalties import tokens_in_loss
from ..algorithms.objectives.tokens import Tokens
from ..algorithms.objectives.value import value_losses
from ..algorithms.recipe import Recipe
from ..algorithms.schedules import adapt_kl_coef
from ..data.microbatches import MicroBatch
from ..data.preferences import Preference, pair_rollouts
from ..data.prefix_trees import TreeLayout
from ..data.rollouts import Rollouts
from ..data.segments import BoolArray, FloatArray, IntArray
from ..data.sequences import from_sequences
from ..state import Activity
from .accumulation import accumulate_gradients, rank_microbatches
from .distributed import gather_lists
from .optimizer import PolicyOptimizer, Step
from .pairs import PreparedPairs, divide_pairs, pair_loss, pair_microbatches, reduce_pair_metrics
from .policy import forward_inputs
from .preparation import Prepared, StepPlan, kl_in_reward, leave_out_weightless, plan_steps
from .reference import Reference

if TYPE_CHECKING:
    from torch import nn


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
        kl_coef: Current coefficient β of the KL term.
        activity: Phase in progress, in which micro-batches are counted.
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
        self.activity = Activity()
        self.preferences: list[Preference] = []
        self.reuse_sampler_logprobs = reuse_sampler_logprobs
        self._microbatch_tokens = microbatch_tokens or optimizer.default_microbatch_tokens
        self._seed = seed
        self._share_prefixes = share_prefixes

    # ------------------------------------------------------------------ scores

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def score(
        self,
        rollouts: Rollouts,
        temperature: float,
        *,
        reference: bool = False,
        use_critic: bool = False,
        use_policy: bool = True,
        sequences: bool = False,
    ) -> tuple[FloatArray, FloatArray]:
        """Return log-probabilities and values of all sampled tokens, each [N]; zeros if not requested.

        Args:
            rollouts: Rollouts to score.
            temperature: Temperature of the policy.
            reference: Score under the reference policy instead.
            use_critic: Compute values.
            use_policy: Compute log-probabilities.
            sequences: True for sequences of equal beginnings that were not rolled out; they share these unless
                prefixes must not be shared.
        """
        device = self.optimizer.accelerator.device
        scored = torch.zeros(2, rollouts.actions, dtype=torch.float64)
        # A token shared by several episodes is scored once over all processes.
        first = np.zeros(len(rollouts.copies.action), dtype=bool)
        first[np.unique(rollouts.copies.action, return_index=True)[1]] = True
        microbatches = self._microbatches(rollouts, first, self._sequence_layout if sequences else None)
        self.activity.begin("scoring", len(microbatches), "micro-batches")
        with self._scorer(reference) as model:
            for micro, counts in self.activity.count(microbatches):
                with self.optimizer.autocast():
                    logp, _, values = model(
                        **forward_inputs(micro, device),
                        temperature=temperature,
                        use_critic=use_critic,
                        use_policy=use_policy,
                    )
                tokens = rollouts.copies.action[micro.copies]
                if counts and use_policy:
                    scored[0, tokens] = logp.double().cpu()[micro.copy_source]
                if counts and use_critic:
                    scored[1, tokens] = values.double().cpu()[micro.copy_source]
        self.activity.end()
        if self.optimizer.world_size > 1:
            scored = self.optimizer.accelerator.reduce(scored.to(device), "sum").cpu()
        return scored[0].numpy(), scored[1].numpy()

    def score_sequences(
        self,
        prompts: Sequence[IntArray],
        replies: Sequence[IntArray],
        temperature: float,
        *,
        reference: bool = False,
    ) -> list[FloatArray]:
        """Return the log-probability of every token of each reply after its prompt.

        A collective operation: all processes must call it together, with the same sequences.

        Args:
            prompts: Token ids of each prompt, none of them empty.
            replies: Token ids of each reply.
            temperature: Temperature of the policy.
            reference: Score under the reference policy instead.

        Raises:
            ConfigurationError: Prompts and replies are not equally many, or a prompt is empty.
        """
        rollouts = from_sequences(prompts, replies)
        logprobs, _ = self.score(rollouts, temperature, reference=reference, sequences=True)
        return np.split(logprobs, np.cumsum([len(reply) for reply in replies])[:-1]) if prompts else []

    @property
    def _sequence_layout(self) -> TreeLayout | None:
        """Layout of sequences of equal beginnings."""
        return None if self._share_prefixes is False else self.optimizer.policy.tree_layout

    def _microbatches(
        self, rollouts: Rollouts, keep: BoolArray, tree: TreeLayout | None = None
    ) -> list[tuple[MicroBatch, bool]]:
        """Return this rank's micro-batches of some copies [M]; see `rank_microbatches`."""
        if rollouts.has_branches if self._share_prefixes is None else self._share_prefixes:
            tree = self.optimizer.policy.tree_layout
        return list(rank_microbatches(self.optimizer, rollouts, self._microbatch_tokens, keep, tree=tree))

    def _scorer(self, reference: bool) -> AbstractContextManager[nn.Module]:
        if reference:
            assert self.reference is not None
            return self.reference.scorer(self.optimizer.model)
        return nullcontext(self.optimizer.model)

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
        """
        recipe, objective = self.recipe, self.recipe.objective
        if recipe.credit.needs_policy and policy is None:
            raise ConfigurationError(
                f"credit {recipe.credit.name!r} asks the policy about actions; pass a policy to the update."
            )
        plans = plan_steps(rollouts, recipe, update=update, seed=self._seed)
        old_logprobs, values = self._old_scores(rollouts, temperature, several_steps=len(plans) > 1)
        ref_logprobs = (
            self.score(rollouts, temperature, reference=True)[0] if recipe.needs_token_reference else None
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
        credit = recipe.credit.assign(rollouts, values, None if in_loss.all() else in_loss, **probe)
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
        """
        recipe, rollouts = self.recipe, prepared.rollouts
        lr = self.optimizer.set_lr(prepared.update)
        report = dict(prepared.metrics)
        pairs = self._prepare_pairs(preferences, prepared.temperature)
        if recipe.objective.pair_terms:
            report["pairs"] = float(pairs.count if pairs else 0)
        if recipe.critic is None and not prepared.has_signal and pairs is None:
            # Regularization alone would be the gradient, and AdamW makes full-size steps of it.
            return report | self._step_metrics([]) | {"advantage_abs": 0.0, "lr": lr, "kl_coef": self.kl_coef}
        parts, pair_parts, steps = self._take_steps(prepared, pairs)
        report |= reduce_metrics(gather_lists(self.optimizer.accelerator, parts))
        report |= reduce_pair_metrics(gather_lists(self.optimizer.accelerator, pair_parts))
        report["policy_loss"] = report.get("policy_loss", 0.0) / max(len(steps), 1)
        report |= prepared.explained_variance()
        report |= self._step_metrics(steps)
        report["advantage_abs"] = float(np.abs(prepared.credit.advantages).mean()) if rollouts.actions else 0.0
        report["lr"], report["kl_coef"] = lr, self.kl_coef
        kl = recipe.objective.kl
        if kl.target is not None and "kl" in report:
            self.kl_coef = adapt_kl_coef(
                self.kl_coef,
                report["kl"],
                target=kl.target,
                horizon=kl.horizon,
                episodes=rollouts.episodes,
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
            logprobs, values = self.score(rollouts, temperature, use_critic=has_critic, use_policy=score_policy)
        if not score_policy:
            logprobs = rollouts.logprobs if needs_old else None
        return logprobs, values if has_critic else None

    def _prepare_pairs(self, preferences: Sequence[Preference], temperature: float) -> PreparedPairs | None:
        """Return pairs with their reference scores; None if there are none, or no term reads them."""
        terms = self.recipe.objective.pair_terms
        if not preferences or not terms:
            return None
        rollouts, ref_logprobs = pair_rollouts(preferences), None
        if any(term.needs_reference for term in terms):
            ref_logprobs = self.score(rollouts, temperature, reference=True, sequences=True)[0]
        return PreparedPairs(rollouts, ref_logprobs)

    def _take_steps(
        self, prepared: Prepared, pairs: PreparedPairs | None
    ) -> tuple[list[Sums], list[Sums], list[Step]]:
        """Take the steps, and return sums over the tokens and over the pairs of each micro-batch."""
        rollouts, plans = prepared.rollouts, prepared.plans
        arrays = prepared.loss_inputs(self.recipe)
        zero_gradient = self._zero_gradient_tokens(rollouts, arrays)
        shares = divide_pairs(pairs.count if pairs else 0, plans, update=prepared.update, seed=self._seed)
        parts: list[Sums] = []
        pair_parts: list[Sums] = []
        steps: list[Step] = []
        self.activity.begin("updating", unit="micro-batches")
        done = 0
        for number, (plan, share) in enumerate(zip(plans, shares, strict=True)):
            keep = plan.tokens
            has_pairs = pairs is not None and len(share) > 0
            step_arrays = {**arrays, **self._token_weights(prepared, plan)}
            if number == 0 and "old_logp" in step_arrays and "sampler_logp" not in step_arrays:
                # The policy is still the one that sampled, so the mismatch of the two can be measured here.
                step_arrays["sampler_logp"] = step_arrays.pop("old_logp")
            metrics_only = keep & zero_gradient
            if (metrics_only == keep).all() and not has_pairs:
                metrics_only = np.zeros_like(keep)  # An optimizer step needs gradients, even if all are zero.
            step_batches = [
                (self._microbatches(rollouts, tokens), backward)
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
                    partial(self._loss, step_arrays),
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
        microbatches = pair_microbatches(
            self.optimizer, pairs.rollouts, share, self._microbatch_tokens, tree=self._sequence_layout
        )
        loss_of = partial(pair_loss, self.recipe.objective.pair_terms, pairs, len(share))
        return accumulate_gradients(self.optimizer, microbatches, temperature, loss_of)

    def _token_weights(self, prepared: Prepared, plan: StepPlan) -> dict[str, FloatArray]:
        """Return the weights [M] of an optimizer step in the losses of policy and critic."""
        objective, rollouts, keep = self.recipe.objective, prepared.rollouts, plan.tokens
        multiplicity = prepared.credit.multiplicity
        weights = token_weights(
            objective.aggregation,
            rollouts.copies.episode,
            prompts=rollouts.group[rollouts.copies.episode],
            norm_length=objective.norm_length,
            count=plan.episodes if objective.aggregation == "dr-grpo" else None,
            keep=keep,
            multiplicity=multiplicity,
        )
        # The critic's loss is a mean over tokens.
        value_weights = token_weights("token-mean", rollouts.copies.episode, keep=keep, multiplicity=multiplicity)
        return {"weights": weights, "value_weights": value_weights}

    def _zero_gradient_tokens(self, rollouts: Rollouts, arrays: dict[str, FloatArray]) -> BoolArray:
        """Return the mask of copies in rows whose gradient is zero, [M].

        These are rows without advantage, if nothing but advantages is in the loss. Scored without a backward pass,
        for metrics only.
        """
        recipe, terms = self.recipe, self.recipe.objective.token_terms
        if recipe.needs_entropy or recipe.critic is not None or "ref_logp" in arrays or terms:
            return np.zeros(len(arrays["advantages"]), dtype=bool)
        rows = rollouts.copies.row
        nonzero = np.bincount(rows, arrays["advantages"] != 0, minlength=len(rollouts.rows)) > 0
        return ~nonzero[rows]

    def _loss(
        self, arrays: dict[str, FloatArray], micro: MicroBatch, scores: Sequence[Tensor]
    ) -> tuple[Tensor, Sums]:
        """Return the loss of a micro-batch and its metrics."""
        self.activity.advance()
        device = scores[0].device
        source = torch.as_tensor(micro.copy_source, device=device)
        logp, entropy, values = (score[source] if len(score) else score for score in scores)
        on_device = {
            name: torch.as_tensor(array[micro.copies], dtype=torch.float32, device=device)
            for name, array in arrays.items()
        }
        tokens = Tokens(
            logp=logp,
            advantages=on_device["advantages"],
            weights=on_device["weights"],
            rows=torch.as_tensor(micro.rows, device=device),
            turns=torch.as_tensor(micro.turns, device=device),
            old_logp=on_device.get("old_logp"),
            ref_logp=on_device.get("ref_logp"),
            sampler_logp=on_device.get("sampler_logp"),
            entropy=entropy,
        )
        loss, sums = policy_loss(self.recipe.objective, tokens, self.kl_coef)
        critic = self.recipe.critic
        if critic is not None:
            errors = value_losses(values, on_device["value_targets"], on_device.get("old_values"), critic.clip)
            loss = loss + critic.coef * (errors * on_device["value_weights"]).sum()
            sums["value_loss"] = float(errors.detach().sum())
            sums["value"] = float(values.detach().sum())
        return loss, sums

    def _step_metrics(self, steps: Sequence[Step]) -> dict[str, float]:
        taken = [step for step in steps if not step.skipped]
        report = {
            "steps": float(len(steps)),
            "steps_skipped": float(len(steps) - len(taken)),
            "steps_skipped_total": float(self.optimizer.skipped),
        }
        if taken:
            report["grad_norm"] = float(np.mean([step.grad_norm for step in taken]))
            report["grad_norm_max"] = max(step.grad_norm for step in taken)
            if self.recipe.critic is not None:
                report["critic_grad_norm"] = float(np.mean([step.critic_grad_norm for step in taken]))
        return report

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
