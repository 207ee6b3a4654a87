"""verifiers 0.4: Env that plays the tasks of a taskset; the package `arboretum_verifiers` exports both."""

from __future__ import annotations

from asyncio import to_thread

import verifiers.v1 as vf

from .rows import end_reply, make_chat, metrics, open_episode
from .verifiers_taskset import EpisodeTask


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
