"""verl 0.9: an environment as an agent loop, named in the file of `rollout.agent.agent_loop_config_path`."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from .rows import as_dicts, end_reply, make_chat, open_episode, tokens_to_stop


class EnvironmentLoop(AgentLoopBase):  # type: ignore[misc]
    """Agent loop that plays one episode; rows of the dataset have `task` and `seed`, which a group shares.

    Args:
        env: Id of the environment.
        dialogue: Name of a dialogue with the history "full".
        env_options, dialogue_options: Arguments of the environment, and settings of the dialogue.
        settings: Arguments of `AgentLoopBase`.
    """

    def __init__(
        self,
        *args: Any,
        env: str,
        dialogue: str = "think",
        env_options: dict[str, Any] | None = None,
        dialogue_options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._chat = make_chat(env, dialogue, env_options, dialogue_options)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play the episode of a row; raise RuntimeError if the environment fails."""
        chat, length = self._chat, self.rollout_config.response_length
        messages = as_dicts(open_episode(chat, str(row["task"]), int(row["seed"])))
        ids = await self.ct_build_initial_tokens(messages)
        start, request = len(ids), uuid4().hex
        mask: list[int] = []
        logprobs: list[float] | None = None
        while len(mask) < length:
            output = await self.server_manager.generate(
                request_id=request, prompt_ids=ids, sampling_params=sampling_params
            )
            sampled = tokens_to_stop(output.token_ids, self.tokenizer, chat.dialogue)
            values = (output.log_probs or [])[: len(sampled)]
            if not mask:
                logprobs = [] if values else None
            merged, mask, logprobs = await self.ct_merge_assistant_token(
                ids, sampled, mask, logprobs, assistant_logprobs=values or None
            )
            ids = merged.token_ids
            text = end_reply(self.tokenizer.decode(sampled, skip_special_tokens=True), chat.dialogue, cut=True)
            # A slow environment must not hold up the other episodes of this event loop.
            heard = await asyncio.to_thread(chat.hear, text)
            if chat.episode.error is not None:
                raise RuntimeError(chat.episode.error)
            messages = [*messages, {"role": "assistant", "content": text}]
            if heard.done:
                break
            if len(sampled) < len(output.token_ids):  # The model has not ended its turn.
                ids, mask = [*ids, self.tokenizer.eos_token_id], [*mask, 0]
                logprobs = None if logprobs is None else [*logprobs, 0.0]
            following = [*messages, *as_dicts(heard.messages)]
            merged, mask, logprobs = await self.ct_merge_context_msg(messages, following, ids, mask, logprobs)
            ids, messages = merged.token_ids, following
        return AgentLoopOutput(
            prompt_ids=ids[:start],
            response_ids=ids[start:][:length],
            response_mask=mask[:length],
            response_logprobs=logprobs[:length] if logprobs else None,
            reward_score=chat.score,
            num_turns=2 * len(chat.episode.turns),
            metrics=AgentLoopMetrics(),
        )
