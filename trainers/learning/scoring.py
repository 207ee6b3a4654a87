"""Scores of sampled tokens: log-probabilities under policy or reference, and values of the critic."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..data.rollouts import Rollouts
from ..data.segments import FloatArray, IntArray
from ..data.sequences import from_sequences
from ..state import Activity
from .accumulation import Microbatching
from .optimizer import PolicyOptimizer
from .policy import forward_inputs
from .reference import Reference

if TYPE_CHECKING:
    from torch import nn


class Scorer:
    """Scores tokens with forward passes over micro-batches, which all processes share.

    Its methods are collective operations: all processes must call them together, with the same tokens.

    Args:
        optimizer: Policy and optimizer.
        reference: Reference policy; None if nothing is scored under it.
        microbatching: Division of the tokens into micro-batches.

    Attributes:
        activity: Phase in progress, in which micro-batches are counted.
    """

    def __init__(
        self, optimizer: PolicyOptimizer, reference: Reference | None, microbatching: Microbatching
    ) -> None:
        self.activity = Activity()
        self._optimizer = optimizer
        self._reference = reference
        self._microbatching = microbatching

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
        optimizer, device = self._optimizer, self._optimizer.accelerator.device
        scored = torch.zeros(2, rollouts.actions, dtype=torch.float64)
        # A token shared by several episodes is scored once over all processes.
        first = np.zeros(len(rollouts.copies.action), dtype=bool)
        first[np.unique(rollouts.copies.action, return_index=True)[1]] = True
        microbatches = self._microbatching.divide(rollouts, first, sequences=sequences)
        self.activity.begin("scoring", len(microbatches), "micro-batches")
        with torch.no_grad(), self._model(reference) as model:
            for micro, counts in self.activity.count(microbatches):
                with optimizer.autocast():
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
        if optimizer.world_size > 1:
            scored = optimizer.accelerator.reduce(scored.to(device), "sum").cpu()
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

    def _model(self, reference: bool) -> AbstractContextManager[nn.Module]:
        """Context that yields the module to call: the policy, or the reference policy."""
        if reference:
            assert self._reference is not None
            return self._reference.scorer(self._optimizer.model)
        return nullcontext(self._optimizer.model)
