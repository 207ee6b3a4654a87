"""Pretraining of the shipped models: small transformers that imitate the experts of a family of environments.

for record in SaplingTrainer(SaplingConfig(out=Path("runs/sapling"), family=GRIDS)).run():
    print(record)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...agents.engines.shipped_models import model_source
from ...agents.episode import Episode
from ...envs.errors import ConfigurationError, DataError
from ...envs.seeding import stable_seed
from ...envs.tasks import distinct_tasks
from ..algorithms.recipe import Optimization
from ..algorithms.samplers import Chains
from ..checkpoints.run_folder import CHECKPOINTS_FOLDER
from ..checkpoints.store import Checkpoints, verify_checkpoint
from ..config.resolve import make_entry, resolve_dialogue
from ..config.settings import ValidationConfig
from ..data.episodes import from_episodes
from ..data.microbatches import optimizer_batches
from ..data.rollouts import Rollouts
from ..learning.accumulation import accumulate_gradients, rank_microbatches
from ..learning.distributed import make_accelerator, make_optimizer
from ..learning.optimizer import PolicyOptimizer
from ..learning.policy import Policy
from ..sampling.demonstrations import collect_demonstrations
from ..sampling.policy_engine import model_engine
from ..sampling.sampler import RolloutSampler
from ..sft import imitation_loss
from ..state import Activity
from .family import Family, Stage
from .imitation import joint_loss, with_observations
from .tokenizer import ASSISTANT

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WARMUP_STEPS = 30
"""Steps of linear learning-rate warmup at the beginning of each stage."""
IN_FLIGHT = 128
"""Validation episodes at the same time."""


@dataclass(frozen=True)
class SaplingConfig:
    """Configuration of the pretraining.

    Attributes:
        out: Folder that the model is written to.
        family: Environments, architecture and stages.
        seed: Seed of the initial weights, the tasks and the episodes; the shipped models have 0.
    """

    out: Path
    family: Family
    seed: int = 0


def make_model(tokenizer: PreTrainedTokenizerBase, config: SaplingConfig) -> PreTrainedModel:
    """Return a Qwen2 model with random weights, or with those of the model that the family starts from."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    family = config.family
    if family.start is not None:
        return Qwen2ForCausalLM.from_pretrained(model_source(family.start), dtype=torch.float32)
    model_config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=family.width,
        intermediate_size=round(family.width * 8 / 3),
        num_hidden_layers=family.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=family.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Qwen2ForCausalLM(model_config)


class SaplingTrainer:
    """Pretraining run, new or resumed from the last validation in its folder.

    Args:
        config: Configuration of the run.

    Attributes:
        config: Configuration of the run.
        tokenizer: Tokenizer of the model.
        model: Model in training.
        sampler: Rolls out validation episodes with the current model.
        history: Metrics of all validations so far.
        activity: Phase in progress, in which steps are counted.

    Raises:
        ConfigurationError: The folder has a checkpoint of another family, or of another seed.
        DataError: The checkpoint cannot be read.
    """

    def __init__(self, config: SaplingConfig) -> None:
        self.config = config
        family = config.family
        self.tokenizer = family.tokenizer(family.context)
        self.model = make_model(self.tokenizer, config)
        self._accelerator = make_accelerator("cpu", "float32")
        self._chains = Chains(reply_tokens=family.reply_tokens)
        self.sampler = RolloutSampler(
            model_engine(self.model, self.tokenizer, IN_FLIGHT),
            family.dialogue,
            self._chains,
            in_flight=IN_FLIGHT,
            accelerator=self._accelerator,
        )
        self._policy = Policy(self.model)
        self._reply_start = self.tokenizer.convert_tokens_to_ids(ASSISTANT)
        self.history: list[dict[str, float]] = []
        self.activity = Activity()
        self._step = self._tokens = 0
        self._checkpoints = Checkpoints(config.out / CHECKPOINTS_FOLDER)
        self._optimizer_state: dict[str, object] | None = None
        if self._checkpoints.last is not None:
            self._load(self._checkpoints.last)

    def run(self) -> Iterator[dict[str, float]]:
        """Train, and yield the metrics of every validation.

        Yields:
            `step`, `tokens` (trained on so far, observations included), `loss` (mean per token of a reply since
            the previous validation), `observation_loss` likewise where observations are in the loss, and the
            results of `validate`.

        Raises:
            Diverged: Gradients were NaN or infinite in three consecutive steps.
            CheckpointError: A checkpoint could not be written.
        """
        first_chunk = first_step = 0
        for stage in self.config.family.stages:
            steps = stage.steps(self.config.family.batch)
            if self._step < first_step + steps:
                yield from self._run_stage(stage, first_chunk, first_step)
            first_chunk += stage.chunks
            first_step += steps

    def _run_stage(self, stage: Stage, first_chunk: int, first_step: int) -> Iterator[dict[str, float]]:
        steps = stage.steps(self.config.family.batch)
        optimizer = make_optimizer(
            self._accelerator,
            self._policy,
            Optimization(
                updates=round(steps * stage.lr_span),
                lr=stage.lr,
                schedule="cosine",
                warmup=min(WARMUP_STEPS, steps - 1),
            ),
        )
        done = (self._step - first_step) * stage.chunks // steps
        self._count_steps()
        if done and self._optimizer_state is not None:
            optimizer.load_state_dict(self._optimizer_state)
        sums: list[dict[str, float]] = []
        validate_every = max(1, stage.chunks // stage.validations)
        for chunk in range(done, stage.chunks):
            # The label and the numbering determine the episodes of the shipped models; they must not change.
            seed = stable_seed("lot", self.config.seed, first_chunk + chunk)
            rollouts = self._demonstrate(stage, first_chunk + chunk, seed)
            for episodes in optimizer_batches(rollouts, self.config.family.batch, seed=seed):
                optimizer.set_lr(self._step - first_step)
                sums.append(self._take_step(stage, optimizer, rollouts.select(episodes)))
                self._step += 1
                self.activity.advance()
            if (chunk + 1) % validate_every == 0 or chunk + 1 == stage.chunks:
                means = {name: sum(part[name] for part in sums) / len(sums) for name in sums[0]}
                self.activity.begin("validating")
                record = {"step": self._step, "tokens": self._tokens, **means, **self.validate()}
                sums = []
                self.history.append(record)
                self._checkpoints.save(self._step, partial(self._write, optimizer))
                yield record
                self._count_steps()

    def _count_steps(self) -> None:
        self.activity.begin("training", self.config.family.steps, "steps")
        self.activity.advance(self._step)

    def _take_step(self, stage: Stage, optimizer: PolicyOptimizer, rollouts: Rollouts) -> dict[str, float]:
        """Take an optimizer step on a batch, and return its losses."""
        self._tokens += sum(map(len, rollouts.rows))
        microbatches = list(rank_microbatches(optimizer, rollouts, self.config.family.microbatch_tokens))
        if stage.observation_weight:
            loss_of = joint_loss(rollouts, self._reply_start, stage.observation_weight)
        else:
            loss_of = imitation_loss(rollouts)
        parts = accumulate_gradients(optimizer, microbatches, 1.0, loss_of)
        optimizer.step()
        names = [name for name in ("loss", "observation_loss") if name in parts[0]]
        return {name: sum(part[name] for part in parts) for name in names}

    def _demonstrate(self, stage: Stage, chunk: int, seed: int) -> Rollouts:
        """Roll out the experts for one chunk of a stage."""
        demonstrations: list[Episode] = []
        for number, source in enumerate(stage.sources):
            env = source.environment(chunk)
            dialogue, source_seed = self.sampler.dialogue, seed
            if source.dialogue is not None:
                dialogue = resolve_dialogue(source.dialogue, self._chains)
                # Sources that differ in their dialogue alone would otherwise demonstrate the same levels.
                source_seed = stable_seed("source", seed, number)
            demonstrations += collect_demonstrations(
                make_entry(env, env.split),
                source.episodes // stage.chunks,
                tokenizer=self.tokenizer,
                context=self.config.family.context,
                dialogue=dialogue,
                expert=stage.expert,
                seed=source_seed,
            )
        if stage.observation_weight:
            demonstrations = [with_observations(episode, self._reply_start) for episode in demonstrations]
        return from_episodes(demonstrations, list(range(len(demonstrations))))

    def validate(self) -> dict[str, float]:
        """Return the success rates on held-out tasks.

        Returns:
            Success rates by the family's labels, with sampling at temperature 1 (such as `sokoban`) and with
            greedy decoding (`sokoban/greedy`).
        """
        rates = {}
        for name, env in self.config.family.held_out.items():
            split = self.config.family.validation_split
            some = make_entry(env, split).make()
            tasks = len(distinct_tasks(some, self.config.family.validation_tasks))
            for suffix, temperature in (("", 1.0), ("/greedy", 0.0)):
                validation = ValidationConfig(tasks=tasks, split=split, temperature=temperature)
                rates[name + suffix] = self.sampler.validate(env, validation, 1.0, 0).success.value
        return rates

    # ------------------------------------------------------------------ checkpoints

    def _write(self, optimizer: PolicyOptimizer, folder: Path) -> None:
        state = {
            "weights": self.model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": self._step,
            "tokens": self._tokens,
            "identity": self._identity,
        }
        torch.save(state, folder / "sapling.pt")
        (folder / "history.json").write_text(json.dumps(self.history), encoding="utf-8")

    @property
    def _identity(self) -> str:
        """Everything that determines the weights, as text."""
        family = self.config.family
        names = ("name", "stages", "dialogue", "context", "start", "layers", "width", "batch", "microbatch_tokens")
        return repr([self.config.seed, *(getattr(family, name) for name in names)])

    def _load(self, folder: Path) -> None:
        verify_checkpoint(folder)
        try:
            state = torch.load(folder / "sapling.pt", map_location="cpu", weights_only=True)
            self.history = json.loads((folder / "history.json").read_text(encoding="utf-8"))
        except Exception as error:  # a damaged archive can raise anything
            raise DataError(folder, f"is not a checkpoint that can be resumed ({error}).") from None
        if state["identity"] != self._identity:
            raise ConfigurationError(
                f"{self.config.out}: has the checkpoint of another sapling or seed; choose another --out, or "
                f"delete {self._checkpoints.folder}."
            )
        self.model.load_state_dict(state["weights"])
        self._optimizer_state = state["optimizer"]
        self._step, self._tokens = state["step"], state["tokens"]

    def export(self) -> Path:
        """Write the model as a Hugging Face folder in bfloat16, delete the checkpoints, and return the folder."""
        from ..checkpoints.export import export_model
        from ..checkpoints.taught_dialogue import record_dialogue

        record_dialogue(self.model, self.sampler.dialogue.name)
        export_model(self.model.to(torch.bfloat16), self.tokenizer, self.config.out)
        shutil.rmtree(self._checkpoints.folder, ignore_errors=True)
        return self.config.out
