"""Pretraining of the shipped model: a small transformer imitates the experts of two environments.

The last stage imitates noisy experts, so that the model still makes mistakes that reinforcement learning can
correct.

    for record in SaplingTrainer(SaplingConfig(out=Path("runs/sapling"))).run():
        print(record)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...agents.episode import Episode
from ...envs.checks import at_least, fraction, positive
from ...envs.seeding import stable_seed
from ..algorithms.recipe import Optimization
from ..algorithms.samplers import Chains
from ..config.resolve import make_entry
from ..config.settings import DialogueConfig, EnvConfig, ExpertConfig, ValidationConfig
from ..data.episodes import from_episodes
from ..data.microbatches import optimizer_batches
from ..data.rollouts import Rollouts
from ..learning.accumulation import accumulate_gradients, rank_microbatches
from ..learning.distributed import make_accelerator, make_optimizer
from ..learning.policy import Policy
from ..sampling.demonstrations import collect_demonstrations
from ..sampling.policy_engine import model_engine
from ..sampling.sampler import RolloutSampler
from ..sft import imitation_loss
from .tokenizer import make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FROZENLAKE = EnvConfig("TextFrozenLake-v0", {"observation_format": "grid", "p_frozen": 0.8, "success_rate": 1.0})
"""FrozenLake with as many holes as in RAGEN's first paper, but not slippery, so that a plan of several actions
succeeds."""
SOKOBAN = EnvConfig("TextSokoban-v0")
SPARSE_SOKOBAN = EnvConfig("TextSokoban-v0", {"reward_mode": "sparse"})
"""Sokoban with reward for solved levels only, as in the shipped studies. With a cost per move, the returns of a
group in which every episode fails differ only in wasted moves, and dividing by their standard deviation (GRPO)
teaches the policy to give up early."""
DIALOGUE = DialogueConfig("no_think")
"""RAGEN's protocol without reasoning: up to five actions per reply, five replies and ten actions per episode. The
reasoning of a model of this size would only repeat its actions in words."""
CONTEXT = 1024
"""Context window in tokens."""
WARMUP_STEPS = 30
"""Steps of linear learning-rate warmup at the beginning of each stage."""
MICROBATCH_TOKENS = 1024


@dataclass(frozen=True)
class Stage:
    """Stage of the pretraining.

    Attributes:
        frozenlake: Number of expert episodes of FrozenLake; each is used once.
        sokoban: Number of expert episodes of Sokoban; each is used once.
        noise: Probability that an action is random instead of the expert's. If it is positive, failed episodes are
            imitated too, and Sokoban uses the sparse reward.
        lr: Peak learning rate, reached after the warmup; it decays to 0 along a cosine.
        chunks: Number of equal parts in which episodes are generated and trained on.
    """

    frozenlake: int
    sokoban: int
    noise: float = 0.0
    lr: float = 2e-3
    chunks: int = 32

    def __post_init__(self) -> None:
        for name in ("frozenlake", "sokoban", "chunks"):
            at_least(name, getattr(self, name), 1)
        fraction("noise", self.noise)
        positive("lr", self.lr)

    def steps(self, batch: int) -> int:
        """Return the number of optimizer steps with `batch` episodes each."""
        episodes_per_chunk = self.frozenlake // self.chunks + self.sokoban // self.chunks
        return self.chunks * max(1, round(episodes_per_chunk / batch))


DEFAULT_STAGES = (
    Stage(frozenlake=32768, sokoban=98304),
    Stage(frozenlake=98304, sokoban=98304),
    Stage(frozenlake=8192, sokoban=8192, noise=0.25, lr=5e-4, chunks=8),
)
"""Stages of the shipped model: two with perfect experts, one with noisy experts."""


@dataclass(frozen=True)
class SaplingConfig:
    """Configuration of the pretraining; the defaults produce the shipped model.

    Attributes:
        out: Folder that the model is written to.
        stages: Stages of the pretraining, in order.
        batch: Episodes per optimizer step.
        layers: Number of transformer layers.
        width: Hidden size of the transformer.
        validations: Number of validations on held-out tasks in each stage.
        seed: Seed of the initial weights, the tasks and the episodes.
    """

    out: Path
    stages: tuple[Stage, ...] = DEFAULT_STAGES
    batch: int = 64
    layers: int = 4
    width: int = 96
    validations: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "layers", "width", "validations"):
            at_least(name, getattr(self, name), 1)


def make_model(tokenizer: PreTrainedTokenizerBase, config: SaplingConfig) -> PreTrainedModel:
    """Return a Qwen2 model with random weights; the default size has 0.44 million parameters."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model_config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=config.width,
        intermediate_size=round(config.width * 8 / 3),
        num_hidden_layers=config.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Qwen2ForCausalLM(model_config)


class SaplingTrainer:
    """Pretraining run of the shipped model.

    Args:
        config: Configuration of the run.

    Attributes:
        config: Configuration of the run.
        tokenizer: Tokenizer of the model.
        model: Model in training.
        sampler: Rolls out validation episodes with the current model.
        steps: Optimizer steps in total.
    """

    def __init__(self, config: SaplingConfig) -> None:
        self.config = config
        self.tokenizer = make_tokenizer(CONTEXT)
        self.model = make_model(self.tokenizer, config)
        self._accelerator = make_accelerator("cpu", "float32")
        self.sampler = RolloutSampler(
            model_engine(self.model, self.tokenizer, 128),
            DIALOGUE,
            Chains(reply_tokens=32),
            in_flight=128,
            accelerator=self._accelerator,
        )
        self._policy = Policy(self.model)
        self.steps = sum(stage.steps(config.batch) for stage in config.stages)

    def run(self) -> Iterator[dict[str, float]]:
        """Train, and yield the metrics of every validation.

        Yields:
            `step`, `loss` (mean per sampled token since the previous validation), and the results of `validate`.

        Raises:
            Diverged: Gradients were NaN or infinite in three consecutive steps.
        """
        done = 0
        for number, stage in enumerate(self.config.stages):
            for record in self._run_stage(number, stage):
                yield {**record, "step": done + record["step"]}
            done += stage.steps(self.config.batch)

    def _run_stage(self, number: int, stage: Stage) -> Iterator[dict[str, float]]:
        batch = self.config.batch
        steps = stage.steps(batch)
        optimizer = make_optimizer(
            self._accelerator,
            self._policy,
            Optimization(updates=steps, lr=stage.lr, schedule="cosine", warmup=min(WARMUP_STEPS, steps - 1)),
        )
        step, losses = 0, []
        validate_every = max(1, stage.chunks // self.config.validations)
        first_chunk = sum(earlier.chunks for earlier in self.config.stages[:number])
        for chunk in range(stage.chunks):
            # The label and the numbering determine the episodes of the shipped model; they must not change.
            seed = stable_seed("lot", self.config.seed, first_chunk + chunk)
            rollouts = self._demonstrate(stage, seed)
            for episodes in optimizer_batches(rollouts, batch, seed=seed):
                optimizer.set_lr(step)
                selected = rollouts.select(episodes)
                microbatches = list(rank_microbatches(optimizer, selected, MICROBATCH_TOKENS))
                parts = accumulate_gradients(optimizer, microbatches, 1.0, imitation_loss(selected))
                optimizer.step()
                losses.append(sum(part["loss"] for part in parts))
                step += 1
            if (chunk + 1) % validate_every == 0 or chunk + 1 == stage.chunks:
                yield {"step": step, "loss": sum(losses) / len(losses), **self.validate()}
                losses = []

    def _demonstrate(self, stage: Stage, seed: int) -> Rollouts:
        """Roll out the experts for one chunk of a stage."""
        demonstrations: list[Episode] = []
        expert = ExpertConfig(noise=stage.noise, keep="all" if stage.noise else "solved")
        sokoban = SPARSE_SOKOBAN if stage.noise else SOKOBAN
        for env, count in ((FROZENLAKE, stage.frozenlake), (sokoban, stage.sokoban)):
            demonstrations += collect_demonstrations(
                make_entry(env, env.split),
                count // stage.chunks,
                tokenizer=self.tokenizer,
                context=CONTEXT,
                dialogue=self.sampler.dialogue,
                expert=expert,
                seed=seed,
            )
        return from_episodes(demonstrations, list(range(len(demonstrations))))

    def validate(self, tasks: int = 200) -> dict[str, float]:
        """Return the success rates on held-out tasks.

        Args:
            tasks: Number of tasks per environment.

        Returns:
            Success rates with sampling at temperature 1 (`frozenlake`, `sokoban`) and with greedy decoding
            (`frozenlake/greedy`, `sokoban/greedy`).
        """
        rates = {}
        for name, env in (("frozenlake", FROZENLAKE), ("sokoban", SOKOBAN)):
            for suffix, temperature in (("", 1.0), ("/greedy", 0.0)):
                validation = ValidationConfig(tasks=tasks, temperature=temperature)
                rates[name + suffix] = self.sampler.validate(env, validation, 1.0, 0).success.value
        return rates

    def export(self) -> Path:
        """Write the model as a plain Hugging Face folder in bfloat16, and return the folder."""
        from ..checkpoints.export import export_model
        from ..checkpoints.taught_dialogue import record_dialogue

        record_dialogue(self.model, self.sampler.dialogue.name)
        export_model(self.model.to(torch.bfloat16), self.tokenizer, self.config.out)
        return self.config.out
