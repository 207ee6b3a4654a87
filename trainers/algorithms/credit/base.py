"""What every credit rule is: settings that turn rollouts into one advantage a sampled token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ...data.rollouts import Rollouts
from ...data.segments import FloatArray


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
    def assign(self, rollouts: Rollouts, values: FloatArray | None = None) -> Advantages:
        """Give every sampled token its advantage.

        Args:
            rollouts: the episodes; rewards include their penalties.
            values: a critic's prediction before each sampled token, [N].
        """
