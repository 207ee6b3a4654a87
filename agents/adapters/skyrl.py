"""SkyRL gym 0.4: an environment as `BaseTextEnv`, to be registered under one id for all environments.

skyrl_gym.register("arboretum", entry_point="arboretum.agents.adapters.skyrl:SkyRLEnv")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from ...envs.errors import ConfigurationError
from .rows import as_dicts, end_reply, make_chat, metrics, open_episode, open_episodes


class SkyRLEnv(BaseTextEnv):  # type: ignore[misc]
    """One environment of SkyRL gym.

    Args:
        env_config: Settings for all rows; unused.
        extras: The row: `env` (id), `task`, `seed`, and optionally `dialogue` (name), `dialogue_options` and
            `env_options`. Members of a group share the row, so they share task and seed.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        row = dict(extras or {})
        if "env" not in row:
            raise ConfigurationError("the row has no column `env`; make rows with `rows` of this module.")
        options = row.get("env_options"), row.get("dialogue_options")
        self._chat = make_chat(row["env"], row.get("dialogue", "think"), *options)
        self._start = row.get("task"), int(row.get("seed", 0))
        self.max_turns = self._chat.dialogue.max_turns

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Open the row's task; return its first messages, which take the place of `prompt`."""
        messages = open_episode(self._chat, *self._start)
        self.turns = 0
        return as_dicts(messages), {"task": self._chat.episode.task, "seed": self._chat.episode.seed}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Execute a reply of the model up to the dialogue's stop text, which SkyRL's engines may not know.

        Raises:
            RuntimeError: The environment failed, so that the episode has no reward.
        """
        heard = self._chat.hear(end_reply(action, self._chat.dialogue, cut=True))
        if self._chat.episode.error is not None:
            raise RuntimeError(self._chat.episode.error)
        self.turns += 1
        return BaseTextEnvStepOutput(
            observations=as_dicts(heard.messages),
            reward=heard.reward + heard.penalty,
            done=heard.done,
            metadata={"success": self._chat.episode.success},
        )

    def get_metrics(self) -> dict[str, Any]:
        """Return figures of the episode, which SkyRL averages."""
        return metrics(self._chat.episode)


def rows(
    env: str,
    count: int,
    dialogue: str = "think",
    *,
    seed: int = 0,
    dialogue_options: Mapping[str, Any] | None = None,
    env_options: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return rows of a SkyRL dataset, whose other columns reach the environment as `extras`.

    Args:
        env: Id of the environment.
        count: Number of rows.
        dialogue: Name of the dialogue.
        seed: Seed of the draw of tasks.
        dialogue_options: Settings of the dialogue.
        env_options: Arguments of the environment.

    Raises:
        ConfigurationError: A name or an option is unknown, or the dialogue does not fit; see `append_only_chat`.
    """
    chosen = make_chat(env, dialogue, env_options, dialogue_options).dialogue
    opened = open_episodes(env, count, chosen, seed=seed, **env_options or {})
    common: dict[str, Any] = {"env_class": "arboretum", "env": env, "dialogue": dialogue}
    options = {"dialogue_options": dialogue_options, "env_options": env_options}
    common |= {name: value for name, value in options.items() if value is not None}
    return [{"prompt": row.messages, "task": row.task, "seed": row.seed, **common} for row in opened]
