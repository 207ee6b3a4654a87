"""The two reference agents of every result: random actions below, the environment's own solver above."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .base import Agent, Reply, Seat


def _reply(choose: Callable[[Seat], str], seat: Seat) -> Reply:
    """Return the reply with the chosen action; if the environment fails to offer one, its episode is aborted."""
    try:
        return Reply((choose(seat),))
    except Exception as error:
        return Reply((), error=f"the environment failed: {type(error).__name__}: {error}")


def _random_action(seat: Seat) -> str:
    return seat.env.random_action(seat.rng)


class RandomAgent(Agent):
    """Agent that draws uniformly from the admissible actions."""

    name = "random"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [_reply(_random_action, seat) for seat in seats]


class ExpertAgent(Agent):
    """Agent that takes the first action of the environment's own plan.

    It replans every turn, as stochastic environments require. In states without a plan to success it acts as
    `RandomAgent`.
    """

    name = "expert"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [_reply(self._choose, seat) for seat in seats]

    def _choose(self, seat: Seat) -> str:
        plan = seat.env.expert_actions()
        return plan[0] if plan else seat.env.random_action(seat.rng)
