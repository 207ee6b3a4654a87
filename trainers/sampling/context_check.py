"""Whether prompts and replies fit a model, told from its tokenizer and configuration before weights are read."""

from __future__ import annotations

from pathlib import Path

from ...agents.engines.base import Message
from ...agents.engines.local.load import load_context, load_tokenizer
from ...agents.tokens.chat import ChatTokens
from ..algorithms.recipe import check_context
from ..config.run import Run
from .sampler import dialogue_of, drawn_tasks, entry_of

TASKS = 16
"""First prompts that are looked at."""


def check_room(source: str | Path, run: Run) -> None:
    """Raise unless the first prompts of a run and a reply fit into the model's context.

    Args:
        source: the model, a folder or a name on the Hugging Face hub.
        run: the settings.

    Raises:
        ConfigurationError: they do not fit; or the model's tokenizer or configuration cannot be had, or its chat
            template cannot be used.
    """
    tokenizer, context = load_tokenizer(source), load_context(source)
    chat = ChatTokens(tokenizer, run.speech.template)
    dialogue = dialogue_of(run.speech, run.recipe.sampler)
    env = entry_of(run.world, run.world.split).make()
    lengths = []
    for task in drawn_tasks(env.tasks, 0, TASKS, run.seed, run.world.tasks):
        observation, _ = env.reset(seed=0, options={"task": task})
        opening = [Message("system", dialogue.system(env)), Message("user", dialogue.user(observation, []))]
        lengths.append(len(chat.opening(opening, dialogue.prefill)))
    check_context(context, max(lengths), run.recipe.sampler.reply_tokens)
