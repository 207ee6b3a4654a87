"""Settings of samplers: how many episodes an update rolls out, from which starts, and under which budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...envs.checks import at_least, fraction, positive
from ...envs.errors import ConfigurationError
from .schedules import Linear


@dataclass(frozen=True)
class Sampler:
    """Settings common to all samplers; sizes default to RAGEN's (arXiv:2504.20073).

    Attributes:
        prompts: Prompts P of an update, each the start of a group of episodes.
        rollouts: Episodes N per prompt.
        temperature: Sampling temperature; constant, or linear over the run.
        top_p: Probability mass of nucleus sampling; 1 turns it off. Below 1 the sampling distribution differs from
            the trained policy, as the mismatch metrics show; objective.mismatch corrects for it.
        reply_tokens: Maximum length of a reply in tokens.
        max_turns, max_actions_per_turn, max_actions: Budgets of the dialogue; None keeps the dialogue's own, but
            in `think` and `no_think` means RAGEN's 5 turns and 10 actions (arXiv:2504.20073).
        format_penalty: Reward (at most 0) for a malformed turn or a refused action; None keeps the dialogue's own.
        think: True for replies that reason before they act, False for replies that do not; None keeps the
            dialogue.
    """

    prompts: int = 8
    rollouts: int = 16
    temperature: float | Linear = 1.0
    top_p: float = 1.0
    reply_tokens: int = 400
    max_turns: int | None = None
    max_actions_per_turn: int | None = None
    max_actions: int | None = None
    format_penalty: float | None = None
    think: bool | None = None

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for name in ("prompts", "rollouts", "reply_tokens", "max_turns", "max_actions_per_turn", "max_actions"):
            at_least(f"sampler.{name}", getattr(self, name), 1)
        schedule = self.temperature if isinstance(self.temperature, Linear) else Linear(*(self.temperature,) * 2)
        if not min(schedule.start, schedule.end) > 0:
            raise ConfigurationError(
                "sampler.temperature must be above 0: greedy episodes of one prompt do not differ, so they have "
                "no advantage."
            )
        fraction("sampler.top_p", self.top_p)
        positive("sampler.top_p", self.top_p)
        if self.format_penalty is not None and self.format_penalty > 0:
            raise ConfigurationError(f"sampler.format_penalty must not be positive, but is {self.format_penalty}.")


@dataclass(frozen=True)
class Chains(Sampler):
    """P prompts × N independent episodes."""

    name: ClassVar[str] = "chains"
