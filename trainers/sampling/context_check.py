"""Check that prompts and replies fit the context window before loading weights."""

from __future__ import annotations

from pathlib import Path

from ...agents.engines.base import Message
from ...agents.engines.local.load import load_context, load_tokenizer
from ...agents.tokens.chat import ChatTokens
from ...envs.errors import ConfigurationError
from ..config.resolve import dialogue_in, make_entry, resolve_dialogue
from ..config.run import TrainingConfig
from .tasks import draw_tasks

SAMPLED_PROMPTS = 16
"""First prompts of the run whose lengths are checked."""


def check_prompts_fit(source: str | Path, config: TrainingConfig) -> None:
    """Raise unless the first prompts of a run, and a reply to each, fit into the model's context window.

    Args:
        source: Folder of the model, or its name on the Hugging Face hub.
        config: Configuration of the run.

    Raises:
        ConfigurationError: They do not fit, or the model's tokenizer, configuration or chat template cannot be
            used.
    """
    # Servers of vLLM are started by others; the engines of a run end before positions are scaled otherwise.
    context = load_context(source, is_rescaled=config.hardware.engine == "vllm-server")
    tokenizer = load_tokenizer(source)
    chat = ChatTokens(tokenizer, config.dialogue.template)
    lengths = []
    for own in config.envs:
        dialogue = resolve_dialogue(dialogue_in(own, config.dialogue), config.recipe.sampler)
        if dialogue.tools:
            chat.check_tools()
        env = make_entry(own, own.split).make()
        for task in draw_tasks(env.tasks, 0, SAMPLED_PROMPTS, config.seed, own.tasks):
            observation, _ = env.reset(seed=0, options={"task": task})
            bound = dialogue.bind(env)
            opening = [Message("system", bound.system(env)), *bound.messages(observation, [])]
            tools = [tool.schema() for tool in bound.tools]
            lengths.append(len(chat.opening(opening, bound.prefill, tools)))
    check_context(context, max(lengths), config.recipe.sampler.reply_tokens)


def check_context(context: int | None, prompt_tokens: int, reply_tokens: int) -> None:
    """Raise unless a prompt and a reply fit into the model's context window.

    Args:
        context: Context window of the model in tokens; None if unlimited.
        prompt_tokens: Length of the longest prompt.
        reply_tokens: Maximum length of a reply.

    Raises:
        ConfigurationError: They do not fit.
    """
    if context is not None and prompt_tokens + reply_tokens > context:
        raise ConfigurationError(
            f"a prompt of {prompt_tokens} tokens and a reply of up to {reply_tokens} do not fit into the model's "
            f"context of {context}; lower sampler.reply_tokens, shorten the prompt, or choose another model."
        )
