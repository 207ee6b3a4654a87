"""Interface of dialogues, which are the same objects in evaluation and in training.

A dialogue renders an environment as chat messages (a system message once, a user message every turn) and parses
replies into actions. Both directions are pure functions of the episode so far, so that training uses exactly the
prompts of sampling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.tools import Tool
from ..checks import check_count, check_number
from ..engines.base import Message
from ..episode import SPENT, Turn

HISTORIES = ("full", "window", "single")
"""Values of `Dialogue.history`."""


class Parsed(NamedTuple):
    """A parsed reply.

    Attributes:
        actions: The actions, in order; empty if the reply cannot be parsed.
        thought: The reasoning, if there is any.
        well_formed: True if the reply follows the format.
    """

    actions: tuple[str, ...]
    thought: str | None
    well_formed: bool


@dataclass(frozen=True, kw_only=True)
class Dialogue(ABC):
    """Base class of dialogues, with the settings that all share.

    Turns and actions are unlimited unless a suite, a run or a user sets a limit.

    Attributes:
        max_turns: Maximum number of replies per episode; None for no limit.
        max_actions_per_turn: Maximum number of actions executed per turn; further ones are dropped.
        max_actions: Maximum number of valid actions per episode; None for the environment's limit only.
        format_penalty: Penalty, at most 0, of each turn that is malformed or has an invalid action. It is recorded
            as the turn's penalty and is not part of the return.
        history: Earlier turns in the prompt. "full": the whole conversation; "window": the last `window` turns as
            messages; "single": one message that summarizes the last `window` turns as text.
        window: Number of turns in the prompt, the current one included, unless `history` is "full".
        show_reward: Include the reward of the last turn in the next user message.
    """

    max_turns: int | None = None
    max_actions_per_turn: int = 1
    max_actions: int | None = None
    format_penalty: float = -0.1
    history: str = "full"
    window: int = 5
    show_reward: bool = False

    name: ClassVar[str]
    """Name in the registry."""
    prefill: ClassVar[str] = ""
    """Forced beginning of every reply, for engines with a tokenizer."""
    stop: ClassVar[tuple[str, ...]] = ()
    """Stop texts of replies."""
    has_thoughts: ClassVar[bool] = False
    """True if replies contain a thought before the action."""
    action_prefix: ClassVar[str] = ""
    """Beginning of a reply without a thought, up to the action; it begins with the prefill."""
    action_stop: ClassVar[tuple[str, ...]] = ()
    """Stop texts of the action, beside those of replies."""

    def __post_init__(self) -> None:
        if self.history not in HISTORIES:
            raise ConfigurationError(f"history must be one of {', '.join(HISTORIES)}, not {self.history!r}.")
        for option in ("max_turns", "max_actions_per_turn", "max_actions", "window"):
            value = getattr(self, option)
            if value is not None or option not in ("max_turns", "max_actions"):
                check_count(option, value, 1)
        check_number("format_penalty", self.format_penalty, high=0)
        if not isinstance(self.show_reward, bool):
            raise ConfigurationError(f"show_reward must be true or false, not {self.show_reward!r}.")

    # ------------------------------------------------------------------ defined by subclasses

    @abstractmethod
    def format_rules(self) -> str:
        """Return the instructions on the format of a reply, in one or two sentences."""

    @abstractmethod
    def parse(self, reply: str) -> Parsed:
        """Parse a reply, prefill included. Accepts any text and never raises."""

    def demonstrate(self, thought: str, action: str) -> str:
        """Return a well-formed reply with a thought and an action, for examples."""
        return action

    def write_action(self, action: str) -> str:
        """Return an action as it follows `action_prefix` in a reply, up to the end of the action.

        Args:
            action: Action as `parse` returns it; several of one reply are separated as in the reply.
        """
        return action

    def read_action(self, text: str) -> str:
        """Return the action of a text that follows `action_prefix` in a reply; the inverse of `write_action`.

        A text without an action is returned stripped.
        """
        actions = self.parse(self.action_prefix + text).actions
        return actions[0] if actions else text.strip()

    def thought_span(self, reply: str) -> tuple[int, int] | None:
        """Return start and end of the thought in a reply, prefill included, without white space around it.

        None if the reply is not well-formed, or the dialogue has no thoughts.
        """
        return None

    # ------------------------------------------------------------------ functions

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Functions that a reply may call; none unless the dialogue consists of calls."""
        return ()

    def bind(self, env: TextEnv[Any]) -> Self:
        """Return the dialogue in an environment: itself unless replies call the environment's functions."""
        return self

    # ------------------------------------------------------------------ prompts

    def system(self, env: TextEnv[Any]) -> str:
        """Return the system message."""
        instructions: object = env.instructions
        if not isinstance(instructions, str):
            raise TypeError(f"{type(env).__name__}.instructions must be a text, not {instructions!r:.80}")
        parts = [instructions, self.format_rules()]
        if self.max_actions_per_turn > 1:
            parts.append(f"A reply may hold up to {self.max_actions_per_turn} actions.")
        if self.max_actions is not None:
            parts.append(f"You have {self.max_actions} actions in all.")
        return "\n".join(parts)

    def user(self, observation: str, turns: list[Turn]) -> str:
        """Return the user message of the next turn.

        Args:
            observation: The current observation.
            turns: The turns so far.
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

    def messages(self, observation: str, turns: list[Turn]) -> list[Message]:
        """Return the messages that precede the reply of the next turn and follow the reply before; see `user`."""
        return [Message("user", self.user(observation, turns))]

    def summary(self, observation: str, turns: list[Turn]) -> str:
        """Return the user message of `history="single"`: the last turns as text, then the current one."""
        lines = []
        first = max(0, len(turns) - (self.window - 1))
        for k, turn in enumerate(turns[first:], first + 1):
            actions = ", ".join(move.action for move in turn.moves) or "(none)"
            reward = sum(move.reward for move in turn.moves)
            lines.append(f"Turn {k}: you saw\n{turn.observation}\nYou did: {actions}. Reward: {reward:g}.")
        return "\n".join([*lines, self.user(observation, turns)])

    # ------------------------------------------------------------------ budgets and penalties

    @property
    def action_limit(self) -> int | None:
        """Number of valid actions that an episode can have within both budgets; None for no limit."""
        by_turns = None if self.max_turns is None else self.max_turns * self.max_actions_per_turn
        return min((limit for limit in (self.max_actions, by_turns) if limit is not None), default=None)

    def actions_left(self, turns: list[Turn]) -> int | None:
        """Return the remaining budget of valid actions, of which invalid ones use none; None for no limit."""
        if self.max_actions is None:
            return None
        return max(0, self.max_actions - sum(move.valid for turn in turns for move in turn.moves))

    def spent(self, turns: list[Turn]) -> str | None:
        """Return the reason why a budget ends the episode; None if the episode may continue."""
        if self.max_turns is not None and len(turns) >= self.max_turns:
            return f"the {self.max_turns} turns {SPENT}"
        if self.actions_left(turns) == 0:
            return f"the {self.max_actions} actions {SPENT}"
        return None

    def penalty(self, turn: Turn) -> float:
        """Return the format penalty of an executed turn."""
        is_valid = turn.well_formed and turn.moves and all(move.valid for move in turn.moves)
        return 0.0 if is_valid else self.format_penalty


def strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a span of a text without the white space at its ends."""
    content = text[start:end]
    start += len(content) - len(content.lstrip())
    return start, start + len(content.strip())
