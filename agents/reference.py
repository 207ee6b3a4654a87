"""The reference agents of every result: random actions below, the environment's own solvers above."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from ..envs.core import TextEnv
from ..envs.user_code import USER_ERRORS, describe_failure, wrong_result
from .base import Agent, Reply, Seat
from .contracts import is_actions


def _reply(choose: Callable[[Seat], str], seat: Seat) -> Reply:
    """Return the reply with the chosen action; if the environment fails to offer one, its episode is aborted."""
    try:
        return Reply((choose(seat),))
    except USER_ERRORS as error:
        reason = describe_failure("the environment", error)
        return Reply((), error=reason, trace="".join(traceback.format_exception(error)))


def _random_action(seat: Seat) -> str:
    return seat.env.random_action(seat.rng)


def _first(plan: object, method: Callable[..., object]) -> str | None:
    """Return the first action of a plan that a method of the environment returned, or None if there is none.

    Raises:
        TypeError: It is no list of texts.
    """
    if plan is not None and not is_actions(plan):
        raise wrong_result(method, "a list of texts, or None", plan)
    return plan[0] if plan else None


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
        return _first(seat.env.expert_actions(), seat.env.expert_actions) or _random_action(seat)


class SearchingExpertAgent(Agent):
    """Agent that takes the first action of an expert that sees only the observations of the episode.

    Where nothing is hidden it is the same as `ExpertAgent`; see `TextEnv.searching_actions`. Where the expert has
    no action it acts as `RandomAgent`.
    """

    name = "searching_expert"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [_reply(self._choose, seat) for seat in seats]

    def _choose(self, seat: Seat) -> str:
        return _first(searching_plan(seat), seat.env.searching_actions) or _random_action(seat)


def has_searching_expert(env: TextEnv[Any]) -> bool:
    """Return True if an environment hides something, and has an expert that does without it."""
    return type(env).searching_actions is not TextEnv.searching_actions


def searching_plan(seat: Seat) -> list[str] | None:
    """Return the plan of the searching expert of an episode whose turns have one action each.

    Of a turn with several actions only the last observation is known, so the actions before the last are unknown
    to the expert.
    """
    turns = seat.episode.turns
    observations = [*(turn.observation for turn in turns), seat.observation]
    return seat.env.searching_actions(
        observations, [turn.moves[-1].action if turn.moves else "" for turn in turns]
    )
