"""Few-shot examples, made by the world's own expert on tasks other than the one being played."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Any

from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError
from ..envs.registry import make_env
from ..envs.seeding import stable_seed
from .base import Seat
from .dialogue.base import Dialogue
from .episode import Move, Turn

LONGEST = 12
"""Examples are solved in at most this many actions, so that they stay short enough to be read."""

PATIENCE = 400
"""Tasks looked at before fewer examples have to do."""


class Demonstrations:
    """Solved tasks in the words of a dialogue.

    They come from the training split where the world has one, never from the task being played, and are of the
    same kind of task (`info["task_type"]`) where the world tells kinds apart. The same task always gets the same
    examples.

    Args:
        dialogue: how observations and replies are written.
        count: how many; fewer where the expert finds no more short solutions.
    """

    def __init__(self, dialogue: Dialogue, count: int = 3) -> None:
        self.dialogue = dialogue
        self.count = count
        self._envs: dict[str, TextEnv[Any]] = {}
        self._made: dict[Hashable, list[tuple[str, str]]] = {}

    def text(self, seat: Seat) -> str:
        """The examples for a seat's task, as one text for the system message."""
        kind = seat.info.get("task_type")
        key = (_identity(seat.env), kind)
        if key not in self._made:
            # One more than needed, so that there are enough when the task itself is among them.
            self._made[key] = list(islice(self._find(self._training_env(seat.env), kind), self.count + 1))
        shown = [text for task, text in self._made[key] if task != seat.env.task][: self.count]
        if not shown:
            return ""
        plural = "An example" if len(shown) == 1 else f"{len(shown)} examples"
        return f"{plural} of how it is done:\n\n" + "\n\n---\n\n".join(shown)

    def _training_env(self, env: TextEnv[Any]) -> TextEnv[Any]:
        """An environment like this one, on the training split if it has one."""
        identity = _identity(env)
        if identity not in self._envs:
            assert env.spec is not None
            kwargs = dict(env.spec.kwargs)
            try:
                training_env = make_env(env.spec.id, **{**kwargs, "split": "train"})
            except ConfigurationError:
                training_env = make_env(env.spec.id, **kwargs)
            self._envs[identity] = training_env
        return self._envs[identity]

    def _find(self, env: TextEnv[Any], kind: object) -> Iterator[tuple[str, str]]:
        for k in range(PATIENCE):
            seed = stable_seed("example", k) >> 33
            _, info = env.reset(seed=seed)
            if info.get("task_type") != kind:
                continue
            turns = solve(env, env.reset(seed=seed)[0])
            if turns is not None:
                yield env.task, self._write(turns)

    def _write(self, turns: list[Turn]) -> str:
        lines = []
        for k, turn in enumerate(turns):
            lines.append(self.dialogue.user(turn.observation, turns[:k]))
            lines.append(self.dialogue.demonstrate(_thought(turns, k), turn.moves[0].action))
        return "\n".join(lines)


def solve(env: TextEnv[Any], observation: str) -> list[Turn] | None:
    """The expert's turns from the current state to success, or None if it needs more than `LONGEST`."""
    turns: list[Turn] = []
    while len(turns) < LONGEST:
        plan = env.expert_actions()
        if not plan or len(turns) + len(plan) > LONGEST:
            return None
        action = plan[0]
        after, reward, terminated, truncated, info = env.step(action)
        turns.append(
            Turn(observation, action, moves=[Move(action, float(reward), info["valid"], info["changed"])])
        )
        observation = after
        if terminated or truncated:
            return turns if info["success"] else None
    return None


def _thought(turns: list[Turn], k: int) -> str:
    """What the expert could say before its k-th action: its plan from here, which is all that it has in mind."""
    return plan_in_words([turn.moves[0].action for turn in turns[k:]])


def plan_in_words(actions: list[str]) -> str:
    """A plan of at least one action as a thought; of a long one only how it begins."""
    if len(actions) == 1:
        return "One step is left."
    rest = ", then ".join(actions[1:4]) + (", and so on" if len(actions) > 4 else "")
    return f"My plan from here: {actions[0]}, then {rest}."


def _identity(env: TextEnv[Any]) -> str:
    assert env.spec is not None
    return f"{env.spec.id} {sorted(env.spec.kwargs.items(), key=str)}"
