"""Access of credit rules to the policy: scores and samples of actions without a thought."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...agents.engines.base import Sampling
from ...envs.seeding import stable_seed
from ..data.segments import FloatArray, IntArray
from ..learning.learner import Learner
from .sampler import RolloutSampler


class LearnerProbe:
    """`PolicyProbe` whose scores the learner computes, and whose samples come from the sampling engine.

    An action is written in the form of a reply, after the fixed prefix of replies without a thought
    (`Dialogue.action_prefix`), so that its probability is that of the action alone. Its end belongs to it: the
    dialogue's stop text, or the token that ends the turn; without it "go" would be as likely as "go north".

    Equal pairs of context and action are scored once. An action that does not fit into the context window has the
    score NaN, so that no divergence compares with it; where not even its prefix fits, samples are empty. All
    methods are collective operations of all processes.

    Args:
        learner: Learner of the policy.
        sampler: Sampler of the policy; its dialogue renders actions.
        temperature: Sampling temperature of the update, at which actions are scored and sampled.
    """

    def __init__(self, learner: Learner, sampler: RolloutSampler, temperature: float) -> None:
        self._learner = learner
        self._sampler = sampler
        self._temperature = temperature
        dialogue, chat = sampler.dialogue, sampler.chat
        self._prefix = chat.encode(dialogue.action_prefix.removeprefix(dialogue.prefill))
        self._written: dict[str, tuple[int, ...]] = {}

    def action_logprobs(
        self, contexts: Sequence[IntArray], actions: Sequence[Sequence[str]], *, normalize: bool = True
    ) -> list[FloatArray]:
        """See `PolicyProbe`. Contexts include the prefill of the reply."""
        places: dict[tuple[bytes, tuple[int, ...]], int] = {}
        prompts: list[IntArray] = []
        replies: list[IntArray] = []
        wanted: list[list[int]] = []
        for context, options in zip(contexts, actions, strict=True):
            key, prompt = context.tobytes(), np.concatenate([context, np.array(self._prefix, dtype=np.int64)])
            row = []
            for action in options:
                ids = self._action_ids(action)
                if not self._has_room(len(prompt) + len(ids)):
                    row.append(-1)
                    continue
                place = places.setdefault((key, ids), len(places))
                if place == len(prompts):
                    prompts.append(prompt)
                    replies.append(np.array(ids, dtype=np.int64))
                row.append(place)
            wanted.append(row)
        scores = self._learner.scorer.score_sequences(prompts, replies, self._temperature)
        sums = np.array([*(float(score.mean() if normalize else score.sum()) for score in scores), np.nan])
        return [sums[row] if row else np.zeros(0) for row in wanted]

    def sample_actions(self, contexts: Sequence[IntArray], count: int, seed: int) -> list[list[str]]:
        """See `PolicyProbe`. Contexts include the prefill of the reply; equal ones have equal samples."""
        dialogue = self._sampler.dialogue
        distinct = {context.tobytes(): [*context.tolist(), *self._prefix] for context in contexts}
        found = {key: [""] * count for key in distinct}
        fitting = [key for key, prompt in distinct.items() if self._has_room(len(prompt) + 1)]
        sampling = Sampling(
            temperature=self._temperature,
            max_tokens=self._sampler.reply_tokens,
            stop=(*dialogue.stop, *dialogue.action_stop),
        )
        seeds = [
            stable_seed("action", seed, number, sample) >> 11
            for number in range(len(fitting))
            for sample in range(count)
        ]
        repeated = [distinct[key] for key in fitting for _ in range(count)]
        replies = self._sampler.complete(repeated, sampling, seeds, phase="sampling actions")
        texts = [dialogue.read_action(reply.text) for reply in replies]
        found |= {key: texts[number * count : (number + 1) * count] for number, key in enumerate(fitting)}
        return [list(found[context.tobytes()]) for context in contexts]

    def _has_room(self, tokens: int) -> bool:
        context = self._sampler.engine.context
        return context is None or tokens <= context

    def _action_ids(self, action: str) -> tuple[int, ...]:
        """Return the tokens of an action after the prefix, with its end."""
        if action not in self._written:
            dialogue, chat = self._sampler.dialogue, self._sampler.chat
            text = dialogue.write_action(action)
            ids = chat.encode(text)
            if chat.turn_end is not None and not any(text.endswith(stop) for stop in dialogue.stop):
                ids.append(chat.turn_end)
            self._written[action] = tuple(ids)
        return self._written[action]
