"""TRL 1.16: rollouts of `GRPOTrainer(rollout_func=…)` with Arboretum's own loop and engine, in any dialogue."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from ...envs.registry import make_env
from ...envs.seeding import stable_seed
from ..base import Seat
from ..dialogue import Dialogue
from ..engines.transformers import TransformersEngine
from ..episode import Episode
from ..language import LanguageAgent
from ..play import Job, play
from .rows import append_only_chat
from .trl_columns import make_columns, read_sampling


class _Member(LanguageAgent):
    """Language agent whose episodes of the same task and seed get different replies.

    Attributes:
        draws: Seeds of the episodes' replies, no two alike.
    """

    draws: Iterator[int]

    def begin(self, seat: Seat) -> None:
        super().begin(seat)
        seat.rng = random.Random(next(self.draws))


def rollout_func(
    env: str, dialogue: Dialogue, *, at_once: int = 64, **kwargs: Any
) -> Callable[..., dict[str, Any]]:
    """Return a function with which TRL rolls out the model that it trains.

    Args:
        env: Id of the environment.
        dialogue: Dialogue with the history "full". Its budgets limit the number of tokens of an episode, and TRL's
            `max_completion_length` those of a reply. Replies are sampled with TRL's temperature, top-p and top-k.
        at_once: Maximum number of episodes at once.
        kwargs: Arguments of the environment.
    """
    envs = [append_only_chat(make_env(env, **kwargs), dialogue, sends_tools=True).env]
    numbers = count()

    def roll_out(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        jobs = [Job(**json.loads(prompt[-1]["content"])) for prompt in prompts]
        envs.extend(make_env(env, **kwargs) for _ in range(min(at_once, len(jobs)) - len(envs)))
        model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
        engine = TransformersEngine(model, tokenizer, processed_logprobs=True)
        agent = _Member("trl", engine, dialogue, read_sampling(trainer.args))
        # TRL divides a group among its processes, which must not all draw the same replies.
        own = trainer.args.seed, trainer.accelerator.process_index
        agent.draws = (stable_seed("member", *own, number) for number in numbers)
        played: dict[tuple[str, int], list[Episode]] = {}
        for episode in play(agent, envs, jobs):
            played.setdefault((episode.task, episode.seed), []).append(episode)
        columns = [make_columns(played[job.task or "", job.seed].pop(), tokenizer.eos_token_id) for job in jobs]
        return {name: [column[name] for column in columns] for name in columns[0]}

    return roll_out


def episode_return(score: list[float | None], **others: Any) -> list[float | None]:
    """Reward function of these rollouts: the return with format penalties."""
    return score
