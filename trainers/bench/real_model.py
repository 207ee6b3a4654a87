"""Benchmark of sampling and updates of a pretrained model in bfloat16 against plain transformers.

With a vocabulary of 49,152 tokens and 30 layers, time is spent elsewhere than in a tiny model. Both systems
compute in one process and one thread, with float32 weights under autocast, and take turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...agents.engines.base import Request, Sampling
from ...agents.engines.model_check import check_model
from ...agents.engines.packaged_model import SMOLLM2
from ...envs.errors import ConfigurationError
from ...eval.bench.row import Row, paired, ratio
from ...eval.bench.threads import one_thread
from .update_ours import make_recipe
from .workload import LR, Workload

if TYPE_CHECKING:
    from ..data.rollouts import Rollouts
    from ..learning.learner import Learner

_TARGET = 0.9
_MICROBATCH = 2048


@dataclass(frozen=True)
class Conversations:
    """Shape of the conversations to sample.

    Attributes:
        prompts: Number of different first prompts.
        rollouts: Conversations of each prompt, adjacent to each other.
        prompt_tokens: Tokens of a first prompt.
        turns: Replies in a conversation.
        reply_tokens: Tokens of a reply.
        observation_tokens: Tokens between two replies.
    """

    prompts: int
    rollouts: int
    prompt_tokens: int
    turns: int
    reply_tokens: int
    observation_tokens: int = 0

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return self.prompts * self.rollouts * self.turns * self.reply_tokens

    def first_prompts(self, vocabulary: int) -> list[list[int]]:
        """Return the random tokens of the first prompt of every conversation."""
        rng = np.random.default_rng(0)
        prompts = rng.integers(0, vocabulary, (self.prompts, self.prompt_tokens)).repeat(self.rollouts, axis=0)
        return [[int(token) for token in prompt] for prompt in prompts]

    def observations(self, vocabulary: int, turn: int) -> list[list[int]]:
        """Return the random tokens after the reply of a turn in every conversation."""
        rng = np.random.default_rng(1 + turn)
        shape = (self.prompts * self.rollouts, self.observation_tokens)
        return [[int(token) for token in row] for row in rng.integers(0, vocabulary, shape)]


SINGLE = Conversations(prompts=12, rollouts=1, prompt_tokens=160, turns=1, reply_tokens=32)
"""Replies to prompts that have nothing in common: no cache saves a token."""
EPISODES = Conversations(prompts=2, rollouts=6, prompt_tokens=320, turns=3, reply_tokens=16, observation_tokens=48)
"""Groups of episodes, as training rolls them out."""
BATCH = Workload(prompts=2, rollouts=2, env="TextFrozenLake-v0")
"""Episodes of an update."""


def measure(
    peers: bool = False,
    model: str = SMOLLM2,
    shapes: Sequence[Conversations] = (SINGLE, EPISODES),
    batch: Workload = BATCH,
    rounds: int = 3,
) -> Iterator[Row]:
    """Yield the speed of sampling and of an update, relative to plain transformers on the same tokens.

    Sampling is compared with `generate`, which encodes a conversation from its beginning in every turn; all its
    prompts have one length, so that nothing is padded. The update is GRPO's, on episodes of an expert with random
    returns. It is compared with forward and backward passes over padded rows, a log-softmax at the sampled tokens
    only, clipping and AdamW; the gradients of both first updates are compared to verify equal work.

    Args:
        peers: Unused; transformers is always installed.
        model: Name or folder of the model.
        shapes: Conversations without and with reuse, in this order.
        batch: Episodes of an update.
        rounds: Measurements of each system.
    """
    del peers
    try:
        check_model(model)
    except ConfigurationError as error:
        yield Row("real model", math.nan, "", details=str(error))
        return
    with one_thread():
        yield from _measure_sampling(model, shapes, rounds)
        yield from _measure_updates(model, batch, rounds)


def _bfloat16() -> AbstractContextManager[Any]:
    import torch

    context: AbstractContextManager[Any] = torch.autocast("cpu", dtype=torch.bfloat16)
    return context


# ---------------------------------------------------------------------- sampling


def _measure_sampling(model: str, shapes: Sequence[Conversations], rounds: int) -> Iterator[Row]:
    from ..learning.policy import load_trainable_model
    from ..sampling.policy_engine import model_engine

    loaded, tokenizer = load_trainable_model(model, "cpu")
    loaded.eval()
    for name, shape in zip(("new prompts", "episodes"), shapes, strict=True):
        policy = model_engine(loaded, tokenizer, shape.prompts * shape.rollouts, _bfloat16)
        policy.engine.end_ids = set()  # All replies have the same length.

        def ours(policy: Any = policy, shape: Conversations = shape) -> int:
            policy.refresh()
            with policy.precision():
                return _sample(policy.engine, shape, loaded.config.vocab_size)

        def plain(shape: Conversations = shape) -> int:
            return _generate(loaded, shape)

        seconds, baseline = paired([ours, plain], rounds)
        details = f"generate {1 / min(baseline):,.0f} tokens/s, ours {1 / min(seconds):,.0f}"
        yield Row(f"real model: sampling, {name}", ratio(baseline, seconds), "x", target=_TARGET, details=details)


def _sample(engine: Any, shape: Conversations, vocabulary: int) -> int:
    """Sample all turns of the conversations with our engine, and return the number of sampled tokens."""
    conversations = shape.first_prompts(vocabulary)
    sampling = Sampling(max_tokens=shape.reply_tokens)
    for turn in range(shape.turns):
        for number, tokens in enumerate(conversations):
            engine.submit(Request(str(number), (), tokens, sampling, seed=100 * turn + number))
        replies: dict[str, Any] = {}
        while len(replies) < len(conversations):
            replies |= engine.collect()
        observations = shape.observations(vocabulary, turn)
        conversations = [
            [*tokens, *replies[str(number)].token_ids, *observations[number]]
            for number, tokens in enumerate(conversations)
        ]
    for number in range(len(conversations)):
        engine.release(str(number))
    return shape.sampled


def _generate(model: Any, shape: Conversations) -> int:
    """Sample all turns of the conversations with `generate`, and return the number of sampled tokens."""
    import torch

    vocabulary = model.config.vocab_size
    conversations = torch.tensor(shape.first_prompts(vocabulary))
    with torch.random.fork_rng(devices=[]), _bfloat16():
        torch.manual_seed(0)
        for turn in range(shape.turns):
            conversations = model.generate(
                conversations,
                attention_mask=torch.ones_like(conversations),
                do_sample=True,
                top_k=0,
                max_new_tokens=shape.reply_tokens,
                min_new_tokens=shape.reply_tokens,
            )
            observations = torch.tensor(shape.observations(vocabulary, turn), dtype=torch.long)
            conversations = torch.cat([conversations, observations], dim=1)
    return shape.sampled


# ---------------------------------------------------------------------- updates


def _measure_updates(model: str, batch: Workload, rounds: int) -> Iterator[Row]:
    from ..data.episodes import from_episodes
    from ..learning.distributed import make_accelerator, make_optimizer
    from ..learning.learner import Learner
    from ..learning.policy import Policy, load_trainable_model

    recipe = make_recipe(rounds + 1)
    loaded, tokenizer = load_trainable_model(model, "cpu")
    rollouts = from_episodes(*batch.demonstrate(tokenizer))
    returns = np.random.default_rng(0).normal(size=rollouts.turns)  # Every row has an advantage.
    rollouts = replace(rollouts, turn_reward=returns)
    optimizer = make_optimizer(make_accelerator("cpu", "bfloat16"), Policy(loaded), recipe.optimization)
    learner = Learner(recipe, optimizer, None, microbatch_tokens=_MICROBATCH, seed=0)
    baseline = _PlainTrainer(model, learner, rollouts)
    tokens = sum(len(row) for row in rollouts.rows)
    gradients: list[Any] = []
    hooks = [
        one.register_step_pre_hook(lambda one, *_: gradients.append(_gradient(one)))
        for one in (optimizer.torch_optimizer, baseline.optimizer)
    ]

    def ours() -> int:
        learner.update(rollouts, update=0, temperature=1.0)
        return tokens

    def plain() -> int:
        baseline.update()
        return tokens

    for update in (ours, plain):
        update()
    for hook in hooks:
        hook.remove()
    distance = float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
    gradients.clear()
    seconds, theirs = paired([ours, plain], rounds)
    details = f"transformers {1 / min(theirs):,.0f} tokens/s, ours {1 / min(seconds):,.0f}"
    yield Row("real model: update", ratio(theirs, seconds), "x", target=_TARGET, details=details)
    # Autocast rounds to 8 bits, and the two lay the rows out differently.
    yield Row(
        "real model: gradient distance of an update", 100 * distance, "%", target=10.0, higher_is_better=False
    )


def _gradient(optimizer: Any) -> Any:
    import torch

    return torch.cat([p.grad.flatten() for group in optimizer.param_groups for p in group["params"]])


class _PlainTrainer:
    """Policy gradient as a short script on transformers computes it.

    Args:
        model: Name or folder of the model.
        learner: Learner whose advantages are taken.
        rollouts: Rollouts in which every row is one episode.
    """

    def __init__(self, model: str, learner: Learner, rollouts: Rollouts) -> None:
        import torch

        from ..learning.policy import load_trainable_model

        self.model, _ = load_trainable_model(model, "cpu")
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=0.0)
        advantages = learner.prepare(rollouts, update=0, temperature=1.0).credit.advantages
        assert len(rollouts.copies.action) == rollouts.actions, "every sampled token is in one row"
        self.rows = []
        for row, ids in enumerate(rollouts.rows):
            copies = np.flatnonzero(rollouts.copies.row == row)
            weights = torch.zeros(len(ids))
            positions = rollouts.action_position[rollouts.copies.action[copies]]
            weights[torch.as_tensor(positions)] = torch.as_tensor(advantages[copies], dtype=torch.float32)
            sampled = torch.zeros(len(ids), dtype=torch.bool)
            sampled[torch.as_tensor(positions)] = True
            self.rows.append((torch.as_tensor(np.asarray(ids)), weights, sampled))
        self.rows.sort(key=lambda one: -len(one[0]))
        self.count = rollouts.actions

    def update(self) -> None:
        """Take one optimizer step on micro-batches of padded rows."""
        import torch

        start = 0
        while start < len(self.rows):
            part = self.rows[start : start + max(1, _MICROBATCH // len(self.rows[start][0]))]
            start += len(part)
            ids, weights, sampled = (
                torch.nn.utils.rnn.pad_sequence(list(column), batch_first=True)
                for column in zip(*part, strict=True)
            )
            ones = [torch.ones_like(row) for row, _, _ in part]
            mask = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True)
            with _bfloat16():
                logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            chosen = sampled[:, 1:]
            logprobs = torch.log_softmax(logits[:, :-1][chosen].float(), dim=-1)
            logprobs = logprobs.gather(-1, ids[:, 1:][chosen].unsqueeze(-1)).squeeze(-1)
            (-(weights[:, 1:][chosen] * logprobs).sum() / self.count).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
