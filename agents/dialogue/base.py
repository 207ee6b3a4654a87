"""How a world speaks to a language model, the same in evaluation and in training.

A dialogue renders what the model is told (a system message once, a user message every turn) and reads actions out
of what it says. Both directions are pure functions of the episode so far: what is sampled under is what is
trained on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ..episode import Turn


class Parsed(NamedTuple):
    """What a reply says.

    Attributes:
        actions: the actions in it, in order; empty when it cannot be read.
        thought: the reasoning in it, if the dialogue has any.
        well_formed: whether the reply keeps to the format.
    """

    actions: tuple[str, ...]
    thought: str | None
    well_formed: bool


@dataclass(frozen=True, kw_only=True)
class Dialogue(ABC):
    """Settings that all dialogues share; the defaults are those of RAGEN (arXiv:2504.20073).

    Attributes:
        max_turns: replies an episode; None for no limit of the dialogue's own.
        max_actions_per_turn: actions executed in one turn; further ones are dropped.
        max_actions: accepted actions an episode; None for no limit beside the world's own.
        format_penalty: added to the episode's penalty account (not to its return) once for every turn that is
            malformed or holds an action the world refuses.
        history: "full": the whole conversation; "window": the last `window` turns as messages; "single": one
            message that sums up the last `window` turns as text.
        window: how many turns are shown, the current one included, unless `history` is "full".
        show_reward: tell the model the reward of its last turn.
    """

    max_turns: int | None = None
    max_actions_per_turn: int = 1
    max_actions: int | None = None
    format_penalty: float = -0.1
    history: str = "full"
    window: int = 5
    show_reward: bool = False

    name: ClassVar[str]
    prefill: ClassVar[str] = ""
    """What every reply is made to begin with, where the engine can."""
    stop: ClassVar[tuple[str, ...]] = ()
    """Texts that end a reply."""

    def __post_init__(self) -> None:
        if self.history not in ("full", "window", "single"):
            raise ConfigurationError(f'history must be "full", "window" or "single", not {self.history!r}.')
        for option in ("max_turns", "max_actions_per_turn", "max_actions", "window"):
            value = getattr(self, option)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{option} must be a positive integer, not {value!r}.")
        if self.format_penalty > 0:
            raise ConfigurationError(f"format_penalty must not be positive, but is {self.format_penalty}.")

    # ------------------------------------------------------------------ what a dialogue defines

    @abstractmethod
    def format_rules(self) -> str:
        """How the model should answer, in one or two sentences."""

    @abstractmethod
    def parse(self, reply: str) -> Parsed:
        """Read a reply (prefill included). Total: any text in, never an exception."""

    def demonstrate(self, thought: str, action: str) -> str:
        """A reply as this dialogue wants it, for examples."""
        return action

    # ------------------------------------------------------------------ what the model is told

    def system(self, env: TextEnv[Any]) -> str:
        """The system message."""
        parts = [env.instructions, self.format_rules()]
        if self.max_actions_per_turn > 1:
            parts.append(f"A reply may hold up to {self.max_actions_per_turn} actions.")
        if self.max_actions is not None:
            parts.append(f"You have {self.max_actions} actions in all.")
        return "\n".join(parts)

    def user(self, observation: str, turns: list[Turn]) -> str:
        """The message of the next turn.

        Args:
            observation: the world's current text.
            turns: the turns so far.
        """
        lines = []
        if turns and self.show_reward:
            lines.append(f"Reward: {sum(move.reward for move in turns[-1].moves):g}")
        lines.append(f"Turn {len(turns) + 1}")
        lines.append(observation)
        if turns and not any(move.valid for move in turns[-1].moves):
            lines.append(f"Your last reply held no action that the world accepts. {self.format_rules()}")
        left = self.actions_left(turns)
        if left is not None:
            lines.append(f"Actions left: {left}.")
        return "\n".join(lines)

    def summary(self, observation: str, turns: list[Turn]) -> str:
        """The one message of `history="single"`: the last turns as text, then the current one."""
        lines = []
        first = max(0, len(turns) - (self.window - 1))
        for k, turn in enumerate(turns[first:], first + 1):
            actions = ", ".join(move.action for move in turn.moves) or "(none)"
            reward = sum(move.reward for move in turn.moves)
            lines.append(f"Turn {k}: you saw\n{turn.observation}\nYou did: {actions}. Reward: {reward:g}.")
        return "\n".join([*lines, self.user(observation, turns)])

    # ------------------------------------------------------------------ budgets and penalties

    def actions_left(self, turns: list[Turn]) -> int | None:
        """Accepted actions that may still be taken; refused ones cost none."""
        if self.max_actions is None:
            return None
        return max(0, self.max_actions - sum(move.valid for turn in turns for move in turn.moves))

    def allowed(self, actions: tuple[str, ...], turns: list[Turn]) -> tuple[str, ...]:
        """The actions of a reply that will be executed: the budgets' worth of them, from the first."""
        left = self.actions_left(turns)
        return actions[: self.max_actions_per_turn if left is None else min(left, self.max_actions_per_turn)]

    def spent(self, turns: list[Turn]) -> str | None:
        """Why the episode must end now by the dialogue's budgets; None while it may go on."""
        if self.max_turns is not None and len(turns) >= self.max_turns:
            return f"the {self.max_turns} turns are spent"
        if self.actions_left(turns) == 0:
            return f"the {self.max_actions} actions are spent"
        return None

    def penalty(self, turn: Turn) -> float:
        """The format penalty of a turn, once it was carried out."""
        clean = turn.well_formed and turn.moves and all(move.valid for move in turn.moves)
        return 0.0 if clean else self.format_penalty
