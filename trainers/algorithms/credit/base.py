"""Interface of credit rules: settings that assign an advantage to each sampled token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray


class Advantages(NamedTuple):
    """Result of a credit rule.

    Attributes:
        advantages: Advantage of each copy of a sampled token (see `Rollouts`), [M].
        value_targets: Regression target of the critic at each copy, [M]; None without a critic.
    """

    advantages: FloatArray
    value_targets: FloatArray | None = None


@dataclass(frozen=True)
class Credit(ABC):
    """Rule of credit assignment.

    Class attributes:
        name: Name of the rule, in `credit.name`.
        needs_critic: True if `assign` reads the critic's values.
        needs_groups: True if the rule compares episodes of one prompt.

    Attributes:
        needs_states: True if `assign` reads the state keys of the turns.
    """

    name: ClassVar[str]
    needs_critic: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False

    @property
    def needs_states(self) -> bool:
        return False

    @abstractmethod
    def assign(
        self, rollouts: Rollouts, values: FloatArray | None = None, in_loss: BoolArray | None = None
    ) -> Advantages:
        """Return the advantage of every copy of a sampled token: of every episode's own tokens.

        Args:
            rollouts: Episodes of the update, with their penalties.
            values: Critic's value before each sampled token, [N]; None without a critic.
            in_loss: Mask of the tokens that are trained on, [N]; None for all. Statistics over tokens must not
                include the others.
        """
