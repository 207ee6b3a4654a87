"""The two players that every result is read against: chance below, the world's own solver above."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Agent, Reply, Seat


class RandomAgent(Agent):
    """Draws uniformly from the admissible actions."""

    name = "random"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [Reply((seat.env.random_action(seat.rng),)) for seat in seats]


class ExpertAgent(Agent):
    """Takes the first action of the world's own plan, and plans again every turn, as chance demands.

    Where no plan leads to success it plays like `random`.
    """

    name = "expert"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [Reply((self._choose(seat),)) for seat in seats]

    def _choose(self, seat: Seat) -> str:
        plan = seat.env.expert_actions()
        return plan[0] if plan else seat.env.random_action(seat.rng)
