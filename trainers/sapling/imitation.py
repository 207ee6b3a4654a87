"""Loss of the pretraining: the actions of experts and, with a smaller weight, what the environment answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...agents.episode import Episode, Turn
from ..algorithms.objectives.loss import Sums
from ..data.microbatches import MicroBatch
from ..data.rollouts import Rollouts
from ..data.segments import BoolArray


def with_observations(episode: Episode, reply_start: int) -> Episode:
    """Return an episode whose observations are in the loss too, except for the first one.

    The first observation is a random task, which nothing before it predicts. Random actions that the expert's
    settings exclude from the loss stay excluded.

    Args:
        episode: Episode with a full history.
        reply_start: Token that ends every prompt.
    """
    first, *later = episode.turns
    return replace(episode, turns=[first, *(_with_prompt(turn, reply_start) for turn in later)])


def _with_prompt(turn: Turn, reply_start: int) -> Turn:
    assert turn.token_ids is not None and turn.loss_mask is not None
    length = prompt_length(turn.token_ids, reply_start)
    return replace(turn, loss_mask=[1] * length + turn.loss_mask[length:])


def prompt_length(token_ids: Sequence[int], reply_start: int) -> int:
    """Return the number of a turn's tokens up to the last one that begins a reply, which is included."""
    return len(token_ids) - list(reversed(token_ids)).index(reply_start)


def is_reply_token(rollouts: Rollouts, reply_start: int) -> BoolArray:
    """Return True for the tokens in the loss that are part of a reply, [N]."""
    lengths = np.array([prompt_length(ids.tolist(), reply_start) for ids in rollouts.turn_tokens], dtype=np.int64)
    within_reply: BoolArray = rollouts.action_offset >= lengths[rollouts.action_turn]
    return within_reply


def joint_loss(
    rollouts: Rollouts, reply_start: int, observation_weight: float
) -> Callable[[MicroBatch, Sequence[Tensor]], tuple[Tensor, Sums]]:
    """Return the loss of an optimizer batch, for `accumulate_gradients`.

    With the mean cross-entropies H_r over the tokens of replies and H_o over those of observations, the loss is
    H_r + λ H_o. Predicting an observation takes the same steps as choosing an action: finding a block or a room in
    the last observation and following its relations.

    Args:
        rollouts: Chains; see `with_observations`.
        reply_start: Token that ends every prompt.
        observation_weight: λ.
    """
    is_reply = is_reply_token(rollouts, reply_start)
    replies, observations = int(is_reply.sum()), int((~is_reply).sum())
    shares = np.where(is_reply, 1.0 / max(replies, 1), 1.0 / max(observations, 1))

    def loss_of(micro: MicroBatch, scores: Sequence[Tensor]) -> tuple[Tensor, Sums]:
        tokens = rollouts.copies.action[micro.copies]
        share = torch.as_tensor(shares[tokens], dtype=torch.float32)
        mask = torch.as_tensor(is_reply[tokens])
        losses = -scores[0][torch.as_tensor(micro.copy_source)] * share
        reply_loss, observation_loss = losses[mask].sum(), losses[~mask].sum()
        loss = reply_loss + observation_weight * observation_loss
        return loss, {"loss": float(reply_loss.detach()), "observation_loss": float(observation_loss.detach())}

    return loss_of
