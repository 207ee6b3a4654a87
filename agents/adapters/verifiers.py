"""verifiers 0.4: environments as a taskset with its Env; the package `arboretum_verifiers` exports both."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

from ..dialogue import make_dialogue
from .rows import end_reply, make_chat, metrics, open_episode, open_tasks


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


class EnvironmentEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """Options `--env.…` of `vf-eval`. The agent only chats, which needs no sandbox."""

    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class EnvironmentEnv(vf.Env[EnvironmentEnvConfig]):  # type: ignore[misc]
    """Env that plays the episode of a task; if the environment fails, the episode has an error and no reward."""

    async def run(self, task: EpisodeTask, agents: vf.Agents) -> None:
        """Play one episode, and record its return with format penalties as the reward `score`, and its metrics."""
        given = self.config.taskset
        chat = await to_thread(make_chat, given.env, given.dialogue, given.env_options, given.dialogue_options)
        await to_thread(open_episode, chat, task.data.name, task.data.seed)
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                cut = interaction.trace.calls[-1].finish_reason == "length"
                reply = end_reply(segment.messages[-1].content or "", chat.dialogue, cut=cut)
                heard = await to_thread(chat.hear, reply, cut=cut)
                if chat.episode.error is not None:
                    raise RuntimeError(chat.episode.error)
                if heard.done:
                    break
                segment = await interaction.turn(heard.messages[-1].content)
            if not interaction.trace.errors:
                interaction.trace.record_reward("score", chat.score)
                interaction.trace.record_metrics(metrics(chat.episode))
