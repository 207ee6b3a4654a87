"""Checks of what the methods of agents, dialogues, engines and environments return.

A class of another package may return something else than its interface says. The error then names the class, the
method and the line of its definition, instead of a place in this package where the value did not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from ..envs.core import TextEnv
from ..envs.user_code import is_ours, wrong_result
from .base import Agent, Reply, Seat
from .dialogue.base import Dialogue, Parsed
from .engines.base import Completion, Engine


def is_actions(value: object) -> TypeGuard[Sequence[str]]:
    """Return True if a value is a tuple or a list of texts."""
    return isinstance(value, (tuple, list)) and all(isinstance(action, str) for action in value)


def _is_number(value: Any) -> bool:
    """Return True if `float` takes a value that is no text: numbers of any library, and arrays of one element."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, (str, bytes))


def act(agent: Agent, seats: Sequence[Seat]) -> Sequence[Reply | None]:
    """Return the agent's reply for each seat; one without actions has the empty action.

    The environment rejects that action and counts it as a step; otherwise an agent could evade the step limit.

    Raises:
        TypeError: There is not one reply, or None, for each seat, or the actions of one are no tuple of texts.
    """
    found: Any = agent.act(seats)
    replies = list(found) if isinstance(found, Iterable) else []
    if len(replies) != len(seats):
        raise wrong_result(agent.act, f"a list of {len(seats)}, a Reply or None for each seat", found)
    checked: list[Reply | None] = []
    for reply in replies:
        if reply is not None:
            if not isinstance(reply, Reply):
                raise wrong_result(agent.act, "a Reply or None for each seat", reply)
            if not is_actions(reply.actions):
                raise wrong_result(agent.act, "a Reply whose actions are a tuple of texts", reply.actions)
            if not reply.actions and reply.quit is None and reply.error is None:
                reply = replace(reply, actions=("",))
            elif isinstance(reply.actions, list):
                reply = replace(reply, actions=tuple(reply.actions))
        checked.append(reply)
    return checked


def check_parsed(dialogue: Dialogue, parsed: object) -> Parsed:
    """Return what a dialogue's `parse` returned.

    Raises:
        TypeError: It is not `Parsed`, or its actions are no tuple of texts.
    """
    if not isinstance(parsed, Parsed):
        raise wrong_result(dialogue.parse, "Parsed", parsed)
    if not is_actions(parsed.actions):
        raise wrong_result(dialogue.parse, "Parsed whose actions are a tuple of texts", parsed.actions)
    return parsed if isinstance(parsed.actions, tuple) else parsed._replace(actions=tuple(parsed.actions))


def check_completions(engine: Engine, finished: object) -> Sequence[tuple[str, Completion]]:
    """Return what an engine's `collect` returned.

    Raises:
        TypeError: It is no list of pairs of a conversation's name and a completion, or it is empty although no
            `wake` can have ended the wait.
    """
    pairs = "a list of pairs of a conversation's name and its Completion"
    if not isinstance(finished, Sequence) or isinstance(finished, str):
        raise wrong_result(engine.collect, pairs, finished)
    for one in finished:
        if not (isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], Completion)):
            raise wrong_result(engine.collect, pairs, one)
    if not finished and type(engine).wake is Engine.wake:
        raise wrong_result(engine.collect, "at least one finished request, for which it waits", finished)
    return finished


def check_opened(env: TextEnv[Any], observation: object, info: object) -> None:
    """Raise `TypeError` unless the results of `reset` are those of a text environment."""
    if not isinstance(observation, str):
        raise _wrong(env, "_observe", "reset", "the observation as a text", observation)
    _check_info(env, "reset", info)


def check_step(env: TextEnv[Any], observation: object, reward: object, info: object) -> None:
    """Raise `TypeError` unless the results of `step` are those of a text environment."""
    if not isinstance(observation, str):
        raise _wrong(env, "_apply", "step", "the observation as a text", observation)
    if type(reward) is not float and not _is_number(reward):
        raise _wrong(env, "_apply", "step", "the reward as a number", reward)
    _check_info(env, "step", info)


def _check_info(env: TextEnv[Any], method: str, info: object) -> None:
    if not isinstance(info, dict) or "success" not in info or "valid" not in info or "changed" not in info:
        raise _wrong(env, method, method, "an info with success, valid and changed", info)


def _wrong(env: TextEnv[Any], own: str, public: str, expected: str, found: object) -> TypeError:
    """Return the error of an environment's method, that of the subclass of `TextEnv` if there is one."""
    return wrong_result(getattr(env, public if is_ours(type(env)) else own, getattr(env, public)), expected, found)
