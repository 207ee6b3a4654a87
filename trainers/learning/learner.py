"""From rollouts to a better policy: scores, credit, and the steps of one update."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...envs.seeding import stable_seed
from ..algorithms.objectives.aggregate import token_weights
from ..algorithms.objectives.kl import kl_estimate
from ..algorithms.objectives.loss import Sums, Tokens, metrics, policy_loss
from ..algorithms.objectives.penalties import learnable
from ..algorithms.objectives.value import value_losses
from ..algorithms.recipe import Recipe
from ..algorithms.schedules import adapted_kl
from ..data.microbatches import MicroBatch, optimizer_batches
from ..data.rollouts import Rollouts
from ..data.segments import BoolArray, FloatArray
from .accumulation import run_micros, shared_micros
from .optimizer import Descent, Step
from .policy import Reference, on_device


class Learner:
    """Learns from rollouts as a recipe says.

    Args:
        recipe: the algorithm.
        descent: the model and its optimizer.
        reference: the policy to stay near, where the recipe asks for one.
        micro_tokens: see `Hardware`.
        seed: of the run.
        own_samples: see below.

    Attributes:
        own_samples: whether rollouts come from this very model in this precision, so that (but for nucleus
            sampling) the log-probabilities that they bring are the policy's and need no pass of their own.
        kl_coef: β now.
    """

    def __init__(
        self,
        recipe: Recipe,
        descent: Descent,
        reference: Reference | None,
        *,
        micro_tokens: int | None,
        seed: int,
        own_samples: bool = False,
    ) -> None:
        self.recipe = recipe
        self.descent = descent
        self.reference = reference
        self.kl_coef = recipe.objective.kl.coef
        self._micro_tokens = micro_tokens or descent.micro_tokens
        self.own_samples = own_samples
        self._seed = seed

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
    ) -> tuple[FloatArray, FloatArray]:
        """Log-probabilities and values of all sampled tokens, each [N]; zeros where they were not asked for.

        Args:
            rollouts: what to score.
            temperature: of the policy.
            reference: by the reference policy instead.
            use_critic: the critic's values.
            use_policy: the log-probabilities.
        """
        device = self.descent.accelerator.device
        found = torch.zeros(2, rollouts.actions, dtype=torch.float64)
        with self._scorer(reference) as scorer:
            for micro, counts in shared_micros(self.descent, rollouts, self._micro_tokens):
                with self.descent.autocast():
                    scores = scorer(
                        **on_device(micro, device),
                        temperature=temperature,
                        use_critic=use_critic,
                        use_policy=use_policy,
                    )
                if counts:
                    if use_policy:
                        found[0, micro.actions] = scores[0].double().cpu()
                    if use_critic:
                        found[1, micro.actions] = scores[2].double().cpu()
        if self.descent.world > 1:
            found = self.descent.accelerator.reduce(found.to(device), "sum").cpu()
        return found[0].numpy(), found[1].numpy()

    def _scorer(self, reference: bool) -> Any:
        if reference:
            assert self.reference is not None
            return self.reference.scorer(self.descent.model)
        return nullcontext(self.descent.model)

    # ------------------------------------------------------------------ one update

    def update(
        self, rollouts: Rollouts, *, update: int, temperature: float, scale: float = 1.0
    ) -> dict[str, float]:
        """Learn from rollouts, penalties for length included.

        Args:
            rollouts: what was selected.
            update: the number of this update, from 0.
            temperature: at which the rollouts were sampled.
            scale: what advantages are multiplied by.

        Returns:
            Means over the tokens of all steps (see `loss.metrics`), gradient norms (largest and mean), the skipped
            steps, learning rate and so on.

        Raises:
            Diverged: see `Descent.step`.
        """
        recipe, objective = self.recipe, self.recipe.objective
        rate = self.descent.set_rates(update)
        in_reward = objective.kl.coef > 0 and objective.kl.placement == "reward"
        has_critic = recipe.critic is not None
        plans = self._plans(rollouts, update)
        old = values = ref = None
        needs_old = in_reward or len(plans) > 1  # else the policy is still the one that sampled
        # A correction for the sampler compares with the trainer's own numbers.
        trusted = self.own_samples and recipe.sampler.top_p == 1.0 and objective.mismatch.cap is None
        scores_old = needs_old and not trusted
        if has_critic or scores_old:
            old, values = self.score(rollouts, temperature, use_critic=has_critic, use_policy=scores_old)
        if not scores_old:
            old = rollouts.logprobs if needs_old else None
        report: dict[str, float] = {}
        if recipe.needs_reference:
            ref, _ = self.score(rollouts, temperature, reference=True)
        if in_reward:
            assert old is not None and ref is not None
            kl = kl_estimate(torch.as_tensor(old), torch.as_tensor(ref), objective.kl.estimator).numpy()
            report["kl"] = float(kl.mean())
            rollouts = rollouts.penalised_tokens(-self.kl_coef * kl)
        credit = recipe.credit.assign(rollouts, values if has_critic else None)
        arrays: dict[str, FloatArray] = {"advantages": credit.advantages * scale}
        if old is not rollouts.logprobs:
            arrays["sampler_logp"] = rollouts.logprobs
        for name, array in (
            ("old_logp", old),
            ("ref_logp", ref if objective.kl.placement == "loss" else None),
            ("value_targets", credit.value_targets),
            ("old_values", values if has_critic else None),
        ):
            if array is not None:
                arrays[name] = array
        parts, steps = self._steps(rollouts, arrays, plans, temperature)
        report |= metrics(self._everyones(parts))
        report |= self._of_steps(steps)
        report["advantage_abs"] = float(np.abs(credit.advantages).mean()) if rollouts.actions else 0.0
        report["lr"], report["kl_coef"] = rate, self.kl_coef
        if objective.kl.target is not None and "kl" in report:
            self.kl_coef = adapted_kl(
                self.kl_coef,
                report["kl"],
                target=objective.kl.target,
                horizon=objective.kl.horizon,
                episodes=rollouts.episodes,
            )
        return report

    def _plans(self, rollouts: Rollouts, update: int) -> list[tuple[int, BoolArray]]:
        """For each step of the update how many episodes it has, and which tokens it learns from, [N].

        Steps without any are left out.
        """
        keep = learnable(rollouts, self.recipe.overlong)
        optimisation = self.recipe.optimisation
        plans = []
        for number in range(optimisation.passes):
            seed = stable_seed("pass", self._seed, update, number)
            for episodes in optimizer_batches(rollouts, optimisation.episodes_per_step, seed=seed):
                plans.append((len(episodes), keep & np.isin(rollouts.action_episode, episodes)))
        return [(episodes, plan) for episodes, plan in plans if plan.any()]

    def _steps(
        self,
        rollouts: Rollouts,
        arrays: dict[str, FloatArray],
        plans: Sequence[tuple[int, BoolArray]],
        temperature: float,
    ) -> tuple[list[Sums], list[Step]]:
        objective = self.recipe.objective
        silent = self._silent(rollouts, arrays)
        parts: list[Sums] = []
        steps: list[Step] = []
        for number, (episodes, keep) in enumerate(plans):
            weights = token_weights(
                objective.aggregation,
                rollouts.action_episode,
                prompts=rollouts.group[rollouts.action_episode],
                norm_length=objective.norm_length,
                count=episodes if objective.aggregation == "dr-grpo" else None,
                keep=keep,
            )
            own = {**arrays, "weights": weights, "value_weights": keep / keep.sum()}
            if number == 0 and "old_logp" in own and "sampler_logp" not in own:
                # The policy is still the one that sampled: here the two can be compared.
                own["sampler_logp"] = own.pop("old_logp")
            quiet = keep & silent
            if (quiet == keep).all():
                quiet = np.zeros_like(keep)  # a step has gradients, if of zeros
            for tokens, learns in ((quiet, False), (keep & ~quiet, True)):
                parts += run_micros(
                    self.descent,
                    list(shared_micros(self.descent, rollouts, self._micro_tokens, tokens)),
                    temperature,
                    partial(self._loss, own),
                    entropy_grad=self.recipe.needs_entropy,
                    learns=learns,
                )
            steps.append(self.descent.step())
        return parts, steps

    def _silent(self, rollouts: Rollouts, arrays: dict[str, FloatArray]) -> BoolArray:
        """Tokens of rows that have no gradient, [N]: no advantage in them, and nothing but advantages in the loss.

        They are looked at for the metrics only, which spares them the way back.
        """
        if self.recipe.needs_entropy or self.recipe.critic is not None or "ref_logp" in arrays:
            return np.zeros(rollouts.actions, dtype=bool)
        loud = np.bincount(rollouts.action_row, arrays["advantages"] != 0, minlength=len(rollouts.rows)) > 0
        return ~loud[rollouts.action_row]

    def _loss(
        self, arrays: dict[str, FloatArray], micro: MicroBatch, scores: Sequence[Tensor]
    ) -> tuple[Tensor, Sums]:
        logp, entropy, values = scores
        device = logp.device

        def at(name: str) -> Tensor | None:
            if name not in arrays:
                return None
            return torch.as_tensor(arrays[name][micro.actions], dtype=torch.float32, device=device)

        advantages, weights = at("advantages"), at("weights")
        assert advantages is not None and weights is not None
        tokens = Tokens(
            logp=logp,
            advantages=advantages,
            weights=weights,
            rows=torch.as_tensor(micro.rows, device=device),
            turns=torch.as_tensor(micro.turns, device=device),
            old_logp=at("old_logp"),
            ref_logp=at("ref_logp"),
            sampler_logp=at("sampler_logp"),
            entropy=entropy,
        )
        loss, sums = policy_loss(self.recipe.objective, tokens, self.kl_coef)
        critic = self.recipe.critic
        if critic is not None:
            targets, shares = at("value_targets"), at("value_weights")
            assert targets is not None and shares is not None
            errors = value_losses(values, targets, at("old_values"), critic.clip)
            loss = loss + critic.coef * (errors * shares).sum()
            sums["value_loss"] = float(errors.detach().sum())
            sums["value"] = float(values.detach().sum())
        return loss, sums

    def _everyones(self, parts: list[Sums]) -> list[Sums]:
        """The sums of all processes."""
        if self.descent.world == 1:
            return parts
        from accelerate.utils import gather_object

        everyone: list[Sums] = gather_object(parts)
        return everyone

    def _of_steps(self, steps: Sequence[Step]) -> dict[str, float]:
        taken = [step for step in steps if not step.skipped]
        report = {
            "steps": float(len(steps)),
            "steps_skipped": float(len(steps) - len(taken)),
            "steps_skipped_in_all": float(self.descent.skipped),
        }
        if taken:
            report["grad_norm"] = float(np.mean([step.grad_norm for step in taken]))
            report["grad_norm_max"] = max(step.grad_norm for step in taken)
            if self.recipe.critic is not None:
                report["critic_grad_norm"] = float(np.mean([step.critic_grad_norm for step in taken]))
        return report

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of the learner, the policy's own weights excepted."""
        return {"descent": self.descent.state(), "kl_coef": self.kl_coef}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.descent.load(state["descent"])
        self.kl_coef = state["kl_coef"]
