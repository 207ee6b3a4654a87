"""Training of a tabular policy by one arm, with exact evaluation after every update.

One update: roll out all tasks, assign advantages by the arm's credit rule, weight the tokens by the mean over all
tokens, and take one step along the gradient. Rollouts are used once, so importance ratios are 1 and clipping never
acts; there is no momentum, no KL penalty and no entropy bonus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...envs.seeding import stable_seed
from ..algorithms.credit.base import Advantages
from ..algorithms.objectives.aggregate import token_weights
from ..algorithms.objectives.surgical import Surgical
from ..data.cognitive_graph import DivergencePair
from ..data.rollouts import Rollouts
from ..data.segments import FloatArray, IntArray
from .arms import Arm
from .forest import TableProbe
from .mdp import Mdp, evaluate, exact_values
from .sampling import TableSampler
from .table_policy import action_probabilities, log_probabilities, policy_gradient, step_of_divergence
from .tasks import Panel

DIVERGENCE = 0.02
"""Mean divergence of the policy from the one before an update, in nats, in the regime of fixed divergence."""
REFERENCE_DECAY = 0.95
"""Decay of the reference policy of T-STAR's preference loss, a moving average of the logits (as in the recipe)."""
CURVE_POINTS = 21


@dataclass(frozen=True)
class StepSize:
    """Size of a gradient step.

    Attributes:
        lr: Learning rate of the table of one task, whose gradient is the mean over that table's tokens if all
            tables have equally many; None takes the step whose mean divergence over exact on-policy visits is
            `DIVERGENCE`.
    """

    lr: float | None = None


class Curve(NamedTuple):
    """Result of a run.

    Attributes:
        steps: Generated steps before each evaluation, ascending from 0.
        success: Exact success, mean over tasks, at each evaluation.
        episodes: Number of episodes that were rolled out.
        budget: Steps at which the run ends.
    """

    steps: FloatArray
    success: FloatArray
    episodes: int
    budget: float

    @property
    def points(self) -> FloatArray:
        """Success at equally spaced numbers of steps from 0 to the budget, interpolated."""
        grid = np.linspace(0.0, self.budget, CURVE_POINTS)
        return np.asarray(np.interp(grid, self.steps, self.success))

    @property
    def auc(self) -> float:
        """Mean of the curve's points."""
        return float(self.points.mean())

    @property
    def final(self) -> float:
        """Success at the budget."""
        return float(self.points[-1])


def train(panel: Panel, arm: Arm, step_size: StepSize, *, seed: int, budget: float | None = None) -> Curve:
    """Train until a budget of generated steps is used, and return the curve of exact success.

    Args:
        panel: Tasks and initial policy.
        arm: Arm.
        step_size: Size of a step.
        seed: Seed of the run. Arms with equal seeds draw from equal generators in every update.
        budget: Generated steps, shared ones counted once; None takes the panel's.
    """
    budget = panel.budget if budget is None else budget
    mdp, logits = panel.mdp, panel.logits
    if arm.sees_plans:
        mdp = replace(mdp, keys=None)
    learner = TableLearner(mdp, arm, logits)
    evaluation = evaluate(mdp, action_probabilities(logits))
    steps, success, episodes = [0.0], [float(evaluation.success.mean())], 0
    update = 0
    while steps[-1] < budget:
        policy = action_probabilities(logits)
        rng = np.random.Generator(np.random.PCG64(stable_seed("laboratory rollouts", seed, update)))
        rollouts, rows = TableSampler(mdp, policy, rng).roll_out(arm.sampler, seed, update)
        direction = learner.direction(rollouts, rows, logits, policy)
        if step_size.lr is None:
            logits = step_of_divergence(logits, direction, evaluation.visits, DIVERGENCE)
        else:
            logits = logits + step_size.lr * mdp.tables * direction
        learner.follow(logits)
        evaluation = evaluate(mdp, action_probabilities(logits))
        steps.append(steps[-1] + rollouts.turns)
        success.append(float(evaluation.success.mean()))
        episodes += rollouts.episodes
        update += 1
    return Curve(np.array(steps), np.array(success), episodes, budget)


class TableLearner:
    """Gradient of one arm's objective, with the arm's critic and reference policy.

    Args:
        mdp: Tasks.
        arm: Arm.
        logits: Logits of the initial policy, [N, A].

    Attributes:
        critic: Value of each row, [N]; 0 at first, and without a critic.
    """

    def __init__(self, mdp: Mdp, arm: Arm, logits: FloatArray) -> None:
        self._mdp, self._arm = mdp, arm
        self.critic = np.zeros(mdp.rows)
        self._reference = logits

    def direction(self, rollouts: Rollouts, rows: IntArray, logits: FloatArray, policy: FloatArray) -> FloatArray:
        """Return the ascent direction of an update, [N, A].

        Args:
            rollouts: Episodes of the update.
            rows: Row of each turn, [S].
            logits: Logits of the policy that sampled them, [N, A].
            policy: Its probabilities, [N, A].
        """
        actions = rollouts.action_tokens
        credit = self.assign(rollouts, rows, actions, policy)
        copied = rollouts.copies.action
        weights = token_weights("token-mean", rollouts.copies.episode, multiplicity=credit.multiplicity)
        weighted = weights * credit.advantages
        direction = policy_gradient(policy, rows[copied], actions[copied], weighted)
        if self._arm.surgical is not None and credit.divergences:
            direction += preference_gradient(
                self._arm.surgical, credit.divergences, rows, actions, logits, self._reference
            )
        return direction

    def assign(self, rollouts: Rollouts, rows: IntArray, actions: IntArray, policy: FloatArray) -> Advantages:
        """Return the advantages of the arm, and improve its critic if it has one.

        Args:
            rollouts: Episodes.
            rows: Row of each turn, [S].
            actions: Action of each turn, [S].
            policy: Probabilities of the policy that sampled them, [N, A].
        """
        arm = self._arm
        if arm.exact != "none":
            return self._exact(rollouts, rows, actions, policy)
        if arm.discount != 1.0:
            discounts = arm.discount**rollouts.turn_depth
            rollouts = replace(rollouts, turn_reward=rollouts.turn_reward * discounts)
        values = self.critic[rows] if arm.credit.needs_critic else None
        probe: dict[str, Any] = {}
        if arm.credit.needs_policy:
            with np.errstate(divide="ignore"):
                probe["policy"] = TableProbe(self._mdp, np.log(policy))
        credit = arm.credit.assign(rollouts, values, **probe)
        if credit.value_targets is not None:
            visited = rows[rollouts.copies.action]
            counts = np.bincount(visited, minlength=len(self.critic))
            targets = np.bincount(visited, weights=credit.value_targets, minlength=len(self.critic))
            errors = np.where(counts > 0, targets / np.maximum(counts, 1) - self.critic, 0.0)
            self.critic = self.critic + arm.critic_rate * errors
        return credit

    def _exact(self, rollouts: Rollouts, rows: IntArray, actions: IntArray, policy: FloatArray) -> Advantages:
        values, action_values = exact_values(self._mdp, policy)
        left = self._mdp.horizon - rollouts.turn_depth
        baselines = values[left, rows]
        copied, episodes = rollouts.copies.action, rollouts.copies.episode
        if self._arm.exact == "advantage":
            return Advantages((action_values[left, rows, actions] - baselines)[copied])
        return Advantages(rollouts.returns(penalties=False)[episodes] - baselines[copied])

    def follow(self, logits: FloatArray) -> None:
        """Move the reference policy towards the policy after an update."""
        if self._arm.surgical is not None:
            with np.errstate(invalid="ignore"):
                moved = REFERENCE_DECAY * self._reference + (1 - REFERENCE_DECAY) * logits
            self._reference = np.where(np.isinf(logits), logits, moved)


def preference_gradient(
    term: Surgical,
    pairs: Sequence[DivergencePair],
    rows: IntArray,
    actions: IntArray,
    logits: FloatArray,
    reference: FloatArray,
) -> FloatArray:
    """Return the negative gradient of T-STAR's preference loss with respect to the logits, [N, A].

    A table has no thoughts to correct, so the pair of a divergence prefers the action of its better branch to that
    of its worse branch (the recipes' `grafting.mode=branch`). The loss is λ times the mean of -log σ(β Δ) over
    pairs (`Surgical`).

    Args:
        term: β and λ.
        pairs: Divergences.
        rows: Row of each turn, [S].
        actions: Action of each turn, [S].
        logits: Logits of the policy, [N, A].
        reference: Logits of the reference policy, [N, A].
    """
    best, worst = (np.array([getattr(pair, name) for pair in pairs]) for name in ("best", "worst"))
    log_policy, log_reference = log_probabilities(logits), log_probabilities(reference)

    def gain(turns: IntArray) -> FloatArray:
        ratios: FloatArray = (log_policy - log_reference)[rows[turns], actions[turns]]
        return ratios

    with np.errstate(invalid="ignore"):  # Actions that a row does not have are infinite in both.
        margins = gain(best) - gain(worst)
    weights = term.weight * term.beta / (1.0 + np.exp(term.beta * margins)) / len(pairs)
    policy = action_probabilities(logits)
    turns = np.concatenate([best, worst])
    return policy_gradient(policy, rows[turns], actions[turns], np.concatenate([weights, -weights]))
