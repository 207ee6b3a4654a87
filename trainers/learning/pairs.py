"""Preference pairs in an update: their reference scores, their division among optimizer steps, and their loss."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...envs.seeding import stable_seed
from ..algorithms.objectives.loss import Sums
from ..algorithms.objectives.term import PairTerm, pair_losses
from ..algorithms.objectives.tokens import Pairs
from ..data.microbatches import MicroBatch, make_microbatches, split_by_tokens
from ..data.preferences import Preference, pair_rollouts
from ..data.prefix_trees import common_prefix, lexicographic_order, shared_lengths, split_tree
from ..data.rollouts import Rollouts
from ..data.segments import FloatArray, IntArray
from .accumulation import Microbatching, share_among_ranks
from .preparation import StepPlan
from .scoring import Scorer


@dataclass(frozen=True)
class PreparedPairs:
    """Preference pairs of an update with their scores under the reference.

    Attributes:
        rollouts: The pairs as rollouts; see `pair_rollouts`.
        ref_logprobs: Log-probability of each token under the reference policy, [N]; None if nothing reads it.
    """

    rollouts: Rollouts
    ref_logprobs: FloatArray | None

    @property
    def count(self) -> int:
        """Number of pairs."""
        return self.rollouts.episodes // 2


def score_pairs(
    scorer: Scorer, terms: Sequence[PairTerm], preferences: Sequence[Preference], temperature: float
) -> PreparedPairs | None:
    """Return pairs with their reference scores; None if there are none, or no term reads them.

    Args:
        scorer: Scorer of policy and reference.
        terms: Terms of the objective on pairs.
        preferences: Pairs of the update.
        temperature: Temperature of the policy.
    """
    if not preferences or not terms:
        return None
    rollouts, ref_logprobs = pair_rollouts(preferences), None
    if any(term.needs_reference for term in terms):
        ref_logprobs = scorer.score(rollouts, temperature, reference=True, sequences=True)[0]
    return PreparedPairs(rollouts, ref_logprobs)


def divide_pairs(count: int, plans: Sequence[StepPlan], *, update: int, seed: int) -> list[IntArray]:
    """Divide the pairs at random among the optimizer steps of every pass over the rollouts.

    Args:
        count: Number of pairs.
        plans: Optimizer steps of the update.
        update: Number of the update, from 0.
        seed: Seed of the run.

    Returns:
        Indices of the pairs of each step; sizes within a pass differ by at most one, and every pair is in one step
        of each pass.
    """
    numbers = [plan.number for plan in plans]
    shares: list[IntArray] = []
    for number in dict.fromkeys(numbers):
        order = np.random.default_rng(stable_seed("pairs", seed, update, number)).permutation(count)
        shares += [np.sort(share) for share in np.array_split(order, numbers.count(number))]
    return shares


def pair_microbatches(
    microbatching: Microbatching, rollouts: Rollouts, pairs: IntArray
) -> list[tuple[MicroBatch, bool]]:
    """Return this rank's micro-batches of preference pairs, padded to an equal count per rank.

    Both continuations of a pair are in one micro-batch, as are pairs with a common beginning, if it has room.

    Args:
        microbatching: Size and layout of micro-batches. Tokens that the layout computes once count once; a single
            pair may exceed the size.
        rollouts: See `pair_rollouts`.
        pairs: Indices of the pairs.

    Returns:
        Micro-batches, each with a flag that is False for padding.
    """
    optimizer, max_tokens = microbatching.optimizer, microbatching.max_tokens
    tree = microbatching.layout(rollouts, sequences=True)
    rows = [(rollouts.rows[2 * pair], rollouts.rows[2 * pair + 1]) for pair in pairs.tolist()]
    if tree == "segments":
        order = lexicographic_order([chosen for chosen, _ in rows])
        pairs, rows = pairs[order], [rows[i] for i in order]
        sizes = [len(chosen) + len(other) - common_prefix(chosen, other) for chosen, other in rows]
        shared = shared_lengths([chosen for chosen, _ in rows])
        parts = split_tree(sizes, shared, max_tokens, multiple_of=optimizer.world_size)
    else:
        sizes = [max(len(chosen), len(other)) for chosen, other in rows]
        order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
        parts = split_by_tokens(sizes, order, max(max_tokens // 2, 1), multiple_of=optimizer.world_size)
    microbatches: list[MicroBatch] = []
    for part in parts:
        episodes = np.concatenate([2 * pairs[part], 2 * pairs[part] + 1])
        microbatches += make_microbatches(rollouts, episodes, sys.maxsize, tree=tree)
    return share_among_ranks(optimizer, microbatches)


def pair_loss(
    terms: Iterable[PairTerm], prepared: PreparedPairs, total: int, micro: MicroBatch, scores: Sequence[Tensor]
) -> tuple[Tensor, Sums]:
    """Return the share of a micro-batch of pairs in the loss of its optimizer step, and sums over its pairs.

    Args:
        terms: Terms of the objective on pairs.
        prepared: Pairs of the update.
        total: Number of pairs of the optimizer step, whose mean is the loss.
        micro: Micro-batch.
        scores: Result of `Policy.forward`.

    Returns:
        Loss, a scalar with gradient, and sums for `reduce_pair_metrics`.
    """
    device, copies = scores[0].device, prepared.rollouts.copies
    logp = scores[0][torch.as_tensor(micro.copy_source, device=device)]
    episodes = copies.episode[micro.copies]
    found, pair = np.unique(episodes // 2, return_inverse=True)
    places = torch.as_tensor(2 * pair.reshape(-1) + episodes % 2, device=device)

    def add_up(values: Tensor) -> Tensor:
        """Return sums over the tokens of each continuation, [p, 2]."""
        return values.new_zeros(2 * len(found)).index_add(0, places, values).view(-1, 2)

    policy, tokens = add_up(logp), add_up(torch.ones_like(logp))
    margins = policy.detach()[:, 0] - policy.detach()[:, 1]
    reference = None
    if prepared.ref_logprobs is not None:
        own = prepared.ref_logprobs[copies.action[micro.copies]]
        reference = add_up(torch.as_tensor(own, dtype=logp.dtype, device=device))
        margins = margins - (reference[:, 0] - reference[:, 1])
    pairs = Pairs(
        chosen=policy[:, 0],
        rejected=policy[:, 1],
        chosen_tokens=tokens[:, 0],
        rejected_tokens=tokens[:, 1],
        ref_chosen=None if reference is None else reference[:, 0],
        ref_rejected=None if reference is None else reference[:, 1],
    )
    # Values of a critic are part of the graph, as DDP expects of all parameters.
    loss = scores[2].sum() * 0.0
    sums = {"pair_margin": float(margins.sum()), "pair_accuracy": float((margins > 0).sum())}
    for term in terms:
        losses = pair_losses(term, pairs).sum()
        sums[f"term/{term.name}"] = sums.get(f"term/{term.name}", 0.0) + float(losses.detach())
        loss = loss + losses / total
    return loss, {**sums, "pairs": float(len(found))}


def reduce_pair_metrics(parts: Sequence[Sums]) -> Sums:
    """Return means over the pairs of several micro-batches (of all ranks); empty without pairs.

    Args:
        parts: Sums of each micro-batch.

    Returns:
        `term/<name>` of every term on pairs, `pair_margin` (log-ratio to the reference of the chosen continuation,
        minus that of the rejected one) and `pair_accuracy` (fraction of pairs whose margin is above 0).
    """
    count = sum(part["pairs"] for part in parts)
    names = [name for name in (parts[0] if parts else {}) if name != "pairs"]
    return {name: sum(part[name] for part in parts) / count for name in names}
