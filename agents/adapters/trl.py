"""TRL 1.16: an environment whose tools `GRPOTrainer(environment_factory=…)` lets the model call."""

from __future__ import annotations

import json
from typing import Any

from ...envs.registry import make_env
from ..dialogue import Dialogue
from .rows import ActTool, append_only_chat, open_episode, open_episodes


class ToolEnvironment:
    """One environment for `GRPOTrainer(environment_factory=…)`; the public methods are the model's tools."""

    def __init__(self, env: str, dialogue: Dialogue | None = None, **kwargs: Any) -> None:
        self._chat = append_only_chat(make_env(env, **kwargs), dialogue or ActTool())

    def reset(self, task: str | None = None, seed: int = 0, **row: Any) -> str:
        """Open the task of a row, and return the first observation."""
        return open_episode(self._chat, task, int(seed))[-1].content

    def act(self, action: str) -> str:
        """Take one action in the environment.

        Args:
            action: The action, in the words of the instructions.

        Returns:
            The new observation.
        """
        heard = self._chat.hear(action)  # After the end it raises, which TRL tells the model and counts.
        if self._chat.episode.error is not None:
            raise RuntimeError(self._chat.episode.error)
        return self._chat.episode.final_observation if heard.done else heard.messages[-1].content

    def get_reward(self) -> float | None:
        """Return the return with format penalties; None, which TRL does not score, if the environment failed."""
        return None if self._chat.episode.error is not None else self._chat.score


def environment_rows(
    env: str, count: int, dialogue: Dialogue | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Return rows for `environment_factory`; the options are those of `open_episodes`."""
    rows = open_episodes(env, count, dialogue or ActTool(), **options)
    # `reset` appends the first observation to the user message.
    return [
        {"prompt": [row.messages[0], {"role": "user", "content": ""}], "task": row.task, "seed": row.seed}
        for row in rows
    ]


def rollout_rows(env: str, count: int, dialogue: Dialogue, **options: Any) -> list[dict[str, Any]]:
    """Return rows for `trl_rollout.rollout_func`, whose prompts only name task and seed; see `open_episodes`."""
    rows = open_episodes(env, count, dialogue, **options)
    names = [json.dumps({"task": row.task, "seed": row.seed}) for row in rows]
    return [{"prompt": [{"role": "user", "content": name}]} for name in names]
