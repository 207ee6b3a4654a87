"""Order in which a run on several environments draws prompts from them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


class EnvSchedule:
    """Endless sequence of environments in which every environment has its share of every window.

    After t prompts, environment i with share λᵢ has had λᵢ·t of them, up to a deviation below 1 (at most
    1 - 1 / (2k - 2) of k environments, so 1/2 of two), the best bound for all shares: Tijdeman's
    algorithm for the chairperson assignment problem (Discrete Mathematics 32:323, 1980). Of the environments whose
    share is due, the next one is that which must be drawn soonest to keep within the bound. A window of any w
    prompts therefore has λᵢ·w of them, up to a deviation below 2. The arithmetic is exact, so the sequence is the
    same on every machine.

    Args:
        weights: Weight of each environment, above 0; the shares are proportional to them.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        total = sum((Fraction(str(weight)) for weight in weights), Fraction(0))
        self._shares = [Fraction(str(weight)) / total for weight in weights]
        self._slack = Fraction(1, 2 * len(weights) - 2) if len(weights) > 1 else Fraction(0)
        self._order: list[int] = []
        self._counts = [0] * len(weights)

    def draw(self, first: int, count: int) -> list[int]:
        """Return the environments of the prompts `first` … `first + count - 1` of a run."""
        self._extend(first + count)
        return self._order[first : first + count]

    def count_before(self, first: int, env: int) -> int:
        """Return the number of prompts of an environment among the first so many of a run."""
        self._extend(first)
        return self._order[:first].count(env)

    def _extend(self, length: int) -> None:
        for time in range(len(self._order) + 1, length + 1):
            due = [
                env for env, share in enumerate(self._shares) if share * time - self._counts[env] >= self._slack
            ]
            chosen = min(due, key=lambda env: ((self._counts[env] + 1 - self._slack) / self._shares[env], env))
            self._order.append(chosen)
            self._counts[chosen] += 1
