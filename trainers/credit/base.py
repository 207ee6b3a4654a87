"""What every credit rule is: settings that turn rollouts into one advantage a sampled token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ...envs.errors import ConfigurationError
from ..arrays import FloatArray, totals
from ..rollouts import Rollouts


class Advantages(NamedTuple):
    """What a credit rule says.

    Attributes:
        advantages: of each sampled token, [N].
        value_targets: what a critic should have predicted there, [N]; None without a critic.
    """

    advantages: FloatArray
    value_targets: FloatArray | None = None


@dataclass(frozen=True)
class Credit(ABC):
    """A rule of credit assignment."""

    name: ClassVar[str]
    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False

    @abstractmethod
    def assign(
        self,
        rollouts: Rollouts,
        *,
        values: FloatArray | None = None,
        token_penalties: FloatArray | None = None,
    ) -> Advantages:
        """Give every sampled token its advantage.

        Args:
            rollouts: the episodes; rewards include their penalties.
            values: a critic's prediction before each sampled token, [N].
            token_penalties: added to the reward of single tokens, [N], such as -β·KL to a reference policy.
        """


def turn_scores(rollouts: Rollouts, token_penalties: FloatArray | None) -> FloatArray:
    """What each turn earned, [S]: the world's reward, the turn's penalty and those of its tokens."""
    scores = rollouts.turn_reward + rollouts.turn_penalty
    if token_penalties is not None:
        scores = scores + totals(token_penalties, rollouts.action_turn, rollouts.turns)
    return scores


def fraction(name: str, value: float) -> None:
    """Raise unless 0 ≤ value ≤ 1."""
    if not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"{name} must lie between 0 and 1, but is {value}.")


def one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise unless the value is among the choices."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ConfigurationError(f"{name} must be one of {listed}, not {value!r}.")


def at_least(name: str, value: float | None, bound: float) -> None:
    """Raise unless value ≥ bound; None passes."""
    if value is not None and not value >= bound:
        raise ConfigurationError(f"{name} must be at least {bound:g}, but is {value}.")
