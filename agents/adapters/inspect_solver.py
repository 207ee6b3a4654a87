"""Inspect AI 0.3: solver that plays the episode of a sample with the model under evaluation."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyio.to_thread import run_sync
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser
from inspect_ai.solver import Generate, Solver, TaskState, solver

from ..dialogue import Dialogue
from .rows import end_reply, make_chat, metrics, open_episode

OUTCOME = "arboretum:outcome"
"""Key of a sample's store: score and metrics of the episode so far; absent if the environment failed."""


@solver  # type: ignore[untyped-decorator]
def play_episode(
    env: str,
    dialogue: str,
    env_options: dict[str, Any] | None = None,
    dialogue_options: dict[str, Any] | None = None,
) -> Solver:
    """Return a solver; a failure of the environment is an error of the sample."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        chat = await run_sync(make_chat, env, dialogue, env_options, dialogue_options)
        await run_sync(open_episode, chat, state.metadata["task"], state.metadata["seed"])
        following: list[ChatMessageUser] = []
        while True:
            # Inspect scores a sample that one of its own limits ends below, by the outcome so far.
            state.store.set(OUTCOME, {"score": chat.score, **metrics(chat.episode)})
            if chat.done:
                return state
            state.messages += following
            state = await generate(state, stop_seqs=list(chat.dialogue.stop) or None)
            reason = state.output.stop_reason
            if reason in ("content_filter", "model_length"):
                chat.refuse(f"the reply ended with {reason}", too_long=reason == "model_length")
                continue
            cut = reason == "max_tokens"
            reply = read_reply(state.output.message, chat.dialogue, cut)
            heard = await run_sync(partial(chat.hear, reply, cut=cut))
            if chat.episode.error is not None:
                state.store.delete(OUTCOME)
                raise RuntimeError(chat.episode.error)
            following = [ChatMessageUser(content=message.content) for message in heard.messages]

    return solve


def read_reply(message: ChatMessageAssistant, dialogue: Dialogue, cut: bool) -> str:
    """Return a reply as the model wrote it, up to its stop text, and store it in the message for later prompts.

    Args:
        message: The message of the reply.
        dialogue: The dialogue.
        cut: True if a limit of tokens ended the reply.
    """
    parts = [] if isinstance(message.content, str) else message.content
    # Inspect moves a thought between tags out of the text, where the dialogue expects it.
    thought = "".join(part.text for part in parts if part.type == "reasoning" and part.internal == "think")
    reply = end_reply(thought + message.text.removeprefix(thought), dialogue, cut=cut)
    if thought:
        message.content = reply
    else:
        message.text = reply
    return reply
