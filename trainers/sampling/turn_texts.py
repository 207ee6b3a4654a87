"""Texts of the turns of rollouts, decoded from their tokens, and the tokens of their thoughts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...agents.dialogue import Dialogue
from ...agents.engines.local.stop import decode
from ..data.preferences import Continuation
from ..data.rollouts import Rollouts
from ..data.segments import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NONE = "(none)"
"""Text in place of a thought or an action that a turn does not have."""


class TurnTexts:
    """Texts of the turns of rollouts.

    Args:
        rollouts: Rollouts.
        dialogue: Dialogue in which they were played.
        tokenizer: Tokenizer of the policy.
    """

    def __init__(self, rollouts: Rollouts, dialogue: Dialogue, tokenizer: PreTrainedTokenizerBase) -> None:
        self.rollouts = rollouts
        self._dialogue = dialogue
        self._tokenizer = tokenizer

    # ------------------------------------------------------------------ tokens

    def prompt(self, turn: int) -> IntArray:
        """Return the conversation before the reply of a turn, prefill included; empty if nothing was sampled."""
        places = self._places(turn)
        if len(places) == 0:
            return np.zeros(0, dtype=np.int64)
        tokens = [self.rollouts.turn_tokens[other] for other in self.rollouts.conversation(turn)]
        return np.concatenate([*tokens[:-1], tokens[-1][: places[0]]])

    def sampled(self, turn: int) -> IntArray:
        """Return the sampled tokens of a turn."""
        return self.rollouts.turn_tokens[turn][self._places(turn)]

    def _places(self, turn: int) -> IntArray:
        first, last = np.searchsorted(self.rollouts.action_turn, [turn, turn + 1])
        return self.rollouts.action_offset[first:last]

    def compared_part(self, turn: int, context: int) -> Continuation | None:
        """Return the part of a reply that preference pairs compare, in the conversation before another turn.

        It is the thought, or the whole reply of a dialogue without thoughts.

        Args:
            turn: The turn.
            context: Turn whose conversation precedes the part.

        Returns:
            None if the turn has no such part, since it is malformed or its thought is empty.
        """
        tokens, prompt = self.sampled(turn), self.prompt(context)
        start, end = 0, len(tokens)
        if self._dialogue.has_thoughts:
            span = self._dialogue.thought_span(self.reply(turn))
            if span is None or span[0] == span[1]:
                return None
            shift = len(self._dialogue.prefill)
            start, end = self._token_span(tokens, span[0] - shift, span[1] - shift)
        if start >= end or len(prompt) == 0:
            return None
        return Continuation(np.concatenate([prompt, tokens[:start]]), tokens[start:end])

    def _token_span(self, tokens: IntArray, start: int, end: int) -> tuple[int, int]:
        """Return first and end of the tokens that hold some of the characters from `start` to `end`."""

        def tokens_within(characters: int) -> int:
            """Return how many first tokens have at most so many characters."""
            low, high = 0, len(tokens)
            while low < high:
                middle = (low + high + 1) // 2
                if len(decode(self._tokenizer, tokens[:middle].tolist())) <= characters:
                    low = middle
                else:
                    high = middle - 1
            return low

        return tokens_within(max(start, 0)), min(tokens_within(max(end - 1, 0)) + 1, len(tokens))

    # ------------------------------------------------------------------ texts

    def reply(self, turn: int) -> str:
        """Return the reply of a turn, prefill included."""
        return self._dialogue.prefill + decode(self._tokenizer, self.sampled(turn).tolist())

    def thought(self, turn: int) -> str:
        """Return the thought of a turn."""
        reply = self.reply(turn)
        span = self._dialogue.thought_span(reply)
        return reply[slice(*span)] if span is not None and span[0] < span[1] else NONE

    def actions(self, turn: int) -> list[str]:
        """Return the actions of a turn, without a thought that a dialogue counts among them."""
        dialogue = self._dialogue
        return [
            dialogue.read_action(dialogue.write_action(action))
            for action in self.rollouts.turn_actions[turn]
            if action.strip()
        ]

    def action(self, turn: int) -> str:
        """Return the actions of a turn as one text."""
        return "; ".join(self.actions(turn)) or NONE

    def path(self, turn: int) -> list[int]:
        """Return the turns from the start of the episode up to a turn."""
        turns = [turn]
        while (parent := int(self.rollouts.turn_parent[turns[-1]])) >= 0:
            turns.append(parent)
        return turns[::-1]

    def outcome(self, turn: int) -> str:
        """Return the observation after a turn, and how the episodes through it ended; branches share turns."""
        rollouts = self.rollouts
        solved = rollouts.success[rollouts.paths.episode[rollouts.paths.turn == turn]]
        ended = f"{int(solved.sum())} of {len(solved)} attempts from here solved the task."
        if solved.all() or not solved.any():
            ended = "the task was solved." if solved.all() else "the task was not solved."
        following = np.flatnonzero(rollouts.turn_parent == turn)
        if len(following) == 0:
            return f"The episode ended; {ended}"
        return f"{rollouts.turn_observation[following[0]]}\nIn the end {ended}"
