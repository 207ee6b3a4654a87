"""How the seed model is made: a fresh transformer imitates the experts of two worlds.

It is stopped while it still errs, so that there is something left to learn by practice.

    for look in Growing(Growth(out=Path("runs/seed"))).run():
        print(look)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...agents.episode import Episode
from ...envs.checks import at_least, fraction, positive
from ...envs.seeding import stable_seed
from ..algorithms.recipe import Optimization
from ..algorithms.samplers import Chains
from ..config.resolve import make_entry
from ..config.settings import DialogueConfig, EnvConfig, ExpertConfig, ValidationConfig
from ..data.microbatches import optimizer_batches
from ..data.rollouts import Rollouts, from_episodes
from ..learning.accumulation import accumulate_gradients, rank_microbatches
from ..learning.distributed import make_accelerator, make_optimizer
from ..learning.policy import Policy
from ..sampling.demonstrations import collect_demonstrations
from ..sampling.policy_engine import model_engine
from ..sampling.sampler import RolloutSampler
from ..sft import imitation_loss
from .tokenizer import make_tokenizer

LAKE = EnvConfig("TextFrozenLake-v0", {"observation_format": "grid", "p_frozen": 0.8, "success_rate": 1.0})
"""RAGEN's lakes with as many holes as in its first paper, on ice that does not slip: a plan can be made."""
SOKOBAN = EnvConfig("TextSokoban-v0")
GOAL_ONLY = EnvConfig("TextSokoban-v0", {"reward_mode": "sparse"})
"""Sokoban that pays for solved levels only, as it is practised. With a cost for every move the deviation of a
group that fails as a whole is that of the moves wasted, and what divides by it (GRPO) teaches to give up early."""
SPEECH = DialogueConfig("no_think")
"""RAGEN's protocol without thoughts: up to five actions a reply, five replies, ten actions. What a model of this
size can think in words is no more than the actions themselves."""
CONTEXT = 1024
WARMUP = 30
"""Steps in which the learning rate rises."""


@dataclass(frozen=True)
class Stage:
    """A part of the seed's schooling.

    Attributes:
        lake, sokoban: expert episodes of each env, none seen twice.
        noise: chance that an action of the expert's is a random one instead; then failures are learnt from too,
            and Sokoban is the one that pays for solved levels only.
        lr: the highest learning rate; it rises over the first steps and falls to 0 along a cosine.
        lots: portions that episodes are played and learnt in.
    """

    lake: int
    sokoban: int
    noise: float = 0.0
    lr: float = 2e-3
    lots: int = 32

    def __post_init__(self) -> None:
        for name in ("lake", "sokoban", "lots"):
            at_least(name, getattr(self, name), 1)
        fraction("noise", self.noise)
        positive("lr", self.lr)

    def steps(self, batch: int) -> int:
        """Optimizer steps of a number of episodes each."""
        return self.lots * max(1, round((self.lake // self.lots + self.sokoban // self.lots) / batch))


STAGES = (Stage(32768, 98304), Stage(98304, 98304), Stage(8192, 8192, noise=0.25, lr=5e-4, lots=8))
"""Of the shipped model: experts to learn to plan from, then players who err to imitate."""


@dataclass(frozen=True)
class SaplingConfig:
    """What decides the seed model; the defaults are those of the shipped one.

    Attributes:
        out: the folder that the model is written to.
        stages: what it is shown.
        batch: episodes a step.
        layers, width: of the transformer.
        looks: how often it is tried on held-out tasks in each stage.
        seed: of the first weights, tasks and luck.
    """

    out: Path
    stages: tuple[Stage, ...] = STAGES
    batch: int = 64
    layers: int = 4
    width: int = 96
    looks: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "layers", "width", "looks"):
            at_least(name, getattr(self, name), 1)


def fresh_model(tokenizer: Any, growth: SaplingConfig) -> Any:
    """A Qwen2 model with random weights; of a width of 96 and four layers it has 0.44 million."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=growth.width,
        intermediate_size=round(growth.width * 8 / 3),
        num_hidden_layers=growth.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(growth.seed)
        return Qwen2ForCausalLM(config)


class SaplingTrainer:
    """A seed model under way.

    Args:
        growth: the settings.

    Attributes:
        steps: optimizer steps in all.
    """

    def __init__(self, growth: SaplingConfig) -> None:
        self.growth = growth
        self.tokenizer = make_tokenizer(CONTEXT)
        self.model = fresh_model(self.tokenizer, growth)
        accelerator = make_accelerator("cpu", "float32")
        live = model_engine(self.model, self.tokenizer, 128)
        self.sampler = RolloutSampler(
            live, SPEECH, Chains(reply_tokens=32), in_flight=128, accelerator=accelerator
        )
        self._accelerator = accelerator
        self._policy = Policy(self.model)
        self.steps = sum(stage.steps(growth.batch) for stage in growth.stages)

    def run(self) -> Iterator[dict[str, float]]:
        """Learn, and look a few times on the way.

        Yields:
            `step`, `loss` a token since the last look, and the held-out success in each env, sampled (`lake`,
            `sokoban`) and greedy (`lake/greedy`, `sokoban/greedy`).

        Raises:
            Diverged: see `Descent.step`.
        """
        done = 0
        for number, stage in enumerate(self.growth.stages):
            for record in self._stage(number, stage):
                yield {**record, "step": done + record["step"]}
            done += stage.steps(self.growth.batch)

    def _stage(self, number: int, stage: Stage) -> Iterator[dict[str, float]]:
        steps = stage.steps(self.growth.batch)
        optimizer = make_optimizer(
            self._accelerator,
            self._policy,
            Optimization(updates=steps, lr=stage.lr, schedule="cosine", warmup=min(WARMUP, steps - 1)),
        )
        step, losses = 0, []
        every = max(1, stage.lots // self.growth.looks)
        first = sum(before.lots for before in self.growth.stages[:number])
        for lot in range(stage.lots):
            luck = stable_seed("lot", self.growth.seed, first + lot)
            rollouts = self._lot(stage, luck)
            for episodes in optimizer_batches(rollouts, self.growth.batch, seed=luck):
                optimizer.set_lr(step)
                part = rollouts.select(episodes)
                microbatches = list(rank_microbatches(optimizer, part, 1024))
                sums = accumulate_gradients(optimizer, microbatches, 1.0, imitation_loss(part))
                optimizer.step()
                losses.append(sum(found["loss"] for found in sums))
                step += 1
            if (lot + 1) % every == 0 or lot + 1 == stage.lots:
                yield {"step": step, "loss": sum(losses) / len(losses), **self.look()}
                losses = []

    def _lot(self, stage: Stage, luck: int) -> Rollouts:
        found: list[Episode] = []
        expert = ExpertConfig(noise=stage.noise, keep="all" if stage.noise else "solved")
        for env, count in ((LAKE, stage.lake), (GOAL_ONLY if stage.noise else SOKOBAN, stage.sokoban)):
            found += collect_demonstrations(
                make_entry(env, env.split),
                count // stage.lots,
                tokenizer=self.tokenizer,
                context=CONTEXT,
                dialogue=self.sampler.dialogue,
                expert=expert,
                seed=luck,
            )
        return from_episodes(found, list(range(len(found))))

    def look(self, tasks: int = 200) -> Mapping[str, float]:
        """Held-out success in both worlds, sampled and greedy."""
        found = {}
        for name, env in (("lake", LAKE), ("sokoban", SOKOBAN)):
            for kind, temperature in (("", 1.0), ("/greedy", 0.0)):
                validation = ValidationConfig(tasks=tasks, temperature=temperature)
                found[name + kind] = self.sampler.validate(env, validation, 1.0, 0).success.value
        return found

    def export(self) -> Path:
        """Write a plain Hugging Face folder, in bfloat16."""
        from ..checkpoints.export import export_model

        export_model(self.model.to(torch.bfloat16), self.tokenizer, self.growth.out)
        return self.growth.out
