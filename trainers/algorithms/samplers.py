"""Settings of samplers: how many episodes an update rolls out, from which starts, and under which budgets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from ...envs.checks import fraction, integer_at_least, one_of, positive
from ...envs.errors import ConfigurationError
from .additions import ADDED
from .schedules import Linear

NodeChoice = Literal["random", "entropy", "value"]


@dataclass(frozen=True)
class Sampler(ABC):
    """Settings common to all samplers; sizes default to RAGEN's (arXiv:2504.20073).

    Class attributes:
        name: Name of the sampler, in `sampler.name`.
        size_setting: Settings whose product is the number of episodes per prompt, for messages.

    Attributes:
        prompts: Prompts P of an update, each the start of a group of episodes.
        temperature: Sampling temperature; constant, or linear over the run.
        top_p: Probability mass of nucleus sampling; 1 turns it off. Below 1 the sampling distribution differs from
            the trained policy, as the mismatch metrics show; objective.mismatch corrects for it.
        reply_tokens: Maximum length of a reply in tokens.
        max_turns, max_actions_per_turn, max_actions: Budgets of the dialogue; None keeps the dialogue's own, but
            in `think` and `no_think` means RAGEN's 5 turns and 10 actions (arXiv:2504.20073).
        format_penalty: Reward (at most 0) for a malformed turn or a refused action; None keeps the dialogue's own.
        think: True for replies that reason before they act, False for replies that do not; None keeps the
            dialogue.
        asynchronous: Sample the next update's rollouts in another process while this update learns, with the
            weights from before it: one update off-policy. objective.mismatch corrects the loss; its cap is then 2
            by default.
    """

    prompts: int = 8
    temperature: float | Linear = 1.0
    top_p: float = 1.0
    reply_tokens: int = 400
    max_turns: int | None = None
    max_actions_per_turn: int | None = None
    max_actions: int | None = None
    format_penalty: float | None = None
    think: bool | None = None
    asynchronous: bool = field(default=False, kw_only=True, metadata=ADDED)

    name: ClassVar[str]
    size_setting: ClassVar[str] = "sampler.rollouts"

    @property
    @abstractmethod
    def rollouts(self) -> int:
        """Episodes N per prompt."""

    @property
    def final_temperature(self) -> float:
        """Temperature at the end of a run."""
        return self.temperature.end if isinstance(self.temperature, Linear) else self.temperature

    @property
    def episodes_per_tree(self) -> int:
        """Episodes that share a start and may branch off each other; 1 if every episode is sampled on its own."""
        return 1

    def __post_init__(self) -> None:
        for name in ("prompts", "rollouts", "reply_tokens", "max_turns", "max_actions_per_turn", "max_actions"):
            integer_at_least(f"sampler.{name}", getattr(self, name), 1)
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
    """P prompts × N independent episodes.

    Attributes:
        rollouts: Episodes N per prompt.
    """

    rollouts: int = 16

    name: ClassVar[str] = "chains"


@dataclass(frozen=True)
class Trees(Sampler):
    """P prompts × M trees of episodes that branch off each other (Tree-GRPO, arXiv:2509.21240, sec. 3.2).

    A tree begins as one episode. In each of L rounds, N nodes of the tree as it was before the round are expanded:
    from each, a further episode is sampled to its end. Nodes are the start of the tree and the turns after which
    an episode went on. The sizes default to the paper's.

    Attributes:
        trees: Trees M per prompt.
        expansions: Expansions N per tree and round.
        rounds: Rounds L of expansion.
        leaves: Episodes K that are kept of each tree, drawn at random from its L · N + 1. None keeps all.
        choice: Nodes to expand: "random" draws uniformly, with replacement (published); "entropy" takes those
            whose next turns were the most uncertain, by the mean surprisal of their sampled tokens; "value" takes
            those in whose state the further returns of the prompt's episodes differ most.
        redraw: Draw the random events of the environment after a branch anew. False repeats those of the tree's
            first episode as long as the actions ask for the same draws.
    """

    trees: int = 2
    expansions: int = 2
    rounds: int = 1
    leaves: int | None = None
    choice: NodeChoice = "random"
    redraw: bool = True

    name: ClassVar[str] = "trees"
    size_setting: ClassVar[str] = "sampler.trees × sampler.leaves"

    def __post_init__(self) -> None:
        for name in ("trees", "expansions", "rounds", "leaves"):
            integer_at_least(f"sampler.{name}", getattr(self, name), 1)
        one_of("sampler.choice", self.choice, get_args(NodeChoice))
        grown = self.rounds * self.expansions + 1
        if self.leaves is not None and self.leaves > grown:
            raise ConfigurationError(
                f"sampler.leaves is {self.leaves}, but a tree has only {self.rounds} rounds × {self.expansions} "
                f"expansions + 1 = {grown} episodes; lower it, or raise sampler.expansions."
            )
        super().__post_init__()

    @property
    def rollouts(self) -> int:
        return self.trees * self.episodes_per_tree

    @property
    def episodes_per_tree(self) -> int:
        return self.rounds * self.expansions + 1 if self.leaves is None else self.leaves
