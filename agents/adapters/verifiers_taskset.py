"""verifiers 0.4: the first tasks of an environment as a taskset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

from ..dialogue import make_dialogue
from .rows import open_tasks


class EnvironmentTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Options `--env.taskset.…` of `vf-eval`."""

    env: str = "TextSokoban-v0"
    """Id of the environment."""
    dialogue: str = "think"
    """Name of a dialogue with the history "full"."""
    tasks: int = 100
    """Maximum number of tasks, the environment's first distinct ones."""
    seed: int = 0
    """Base seed of the episodes, the option `--seed` of `arboretum eval`."""
    env_options: dict[str, Any] | None = None
    """Arguments of the environment."""
    dialogue_options: dict[str, Any] | None = None
    """Settings of the dialogue."""


class EpisodeData(vf.TaskData):  # type: ignore[misc]
    """Episode to play, which the rollouts of a group share; the name is that of the environment's task."""

    seed: int


class EpisodeTask(vf.Task[EpisodeData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """Task whose rewards and metrics its Env records."""


class EnvironmentTaskset(vf.Taskset[EpisodeTask, EnvironmentTasksetConfig]):  # type: ignore[misc]
    """The first tasks of an environment."""

    def load(self) -> Iterator[EpisodeTask]:
        """Yield the tasks with their opening messages."""
        given, dialogue = self.config, make_dialogue(self.config.dialogue, self.config.dialogue_options)
        for row in open_tasks(given.env, given.tasks, dialogue, seed=given.seed, **given.env_options or {}):
            system, user = (message["content"] for message in row.messages)
            yield EpisodeTask(
                EpisodeData(name=row.task, seed=row.seed, system_prompt=system, prompt=user), given.task
            )
