"""Interaction that sampling costs, as Tree-GRPO counts it (arXiv:2509.21240): generated tokens and tool calls.

Turns that a branch takes over from another episode cost nothing and are counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...agents.episode import Episode


class Budget(NamedTuple):
    """Interaction of sampling with model and environment, failed and dropped episodes included.

    Attributes:
        tokens: Sampled tokens.
        steps: Actions executed in the environment.
        tool_calls: Valid actions among them that call a tool; see `TextEnv.calls_tool`.
        reused_tokens: Sampled tokens of turns that episodes took over from others.
        redrawn_steps: Actions executed again to draw random events anew, which no token asked for.
    """

    tokens: int = 0
    steps: int = 0
    tool_calls: int = 0
    reused_tokens: int = 0
    redrawn_steps: int = 0

    @classmethod
    def spent(cls, episodes: Iterable[tuple[Episode, int]], calls_tool: Callable[[str], bool]) -> Budget:
        """Return the budget that episodes cost.

        Args:
            episodes: Episodes, each with the number of its first turns that another episode paid for.
            calls_tool: Returns True for actions that call a tool.
        """
        tokens = steps = tool_calls = reused = 0
        for episode, shared in episodes:
            for number, turn in enumerate(episode.turns):
                sampled = sum(turn.loss_mask or ())
                if number < shared:
                    reused += sampled
                    continue
                tokens += sampled
                steps += len(turn.moves)
                tool_calls += sum(move.valid and calls_tool(move.action) for move in turn.moves)
        return cls(tokens, steps, tool_calls, reused)

    def add(self, other: Budget) -> Budget:
        """Return the sum of two budgets."""
        return Budget(*(a + b for a, b in zip(self, other, strict=True)))

    def metrics(self) -> dict[str, float]:
        """Return the budget as metrics."""
        metrics = {
            "sampled_tokens": float(self.tokens),
            "environment_steps": float(self.steps),
            "tool_calls": float(self.tool_calls),
            "reused_tokens": float(self.reused_tokens),
        }
        return metrics | ({"redrawn_steps": float(self.redrawn_steps)} if self.redrawn_steps else {})
