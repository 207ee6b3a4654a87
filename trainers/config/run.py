"""Configurations of a training run and of a supervised fine-tuning run, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...agents.forks import take_snapshot
from ...envs.checks import integer_at_least
from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError, DataError
from ...envs.extras import missing_extra
from ...envs.tasks import GeneratedTasks
from ..algorithms.additions import ADDED
from ..algorithms.recipe import Recipe
from ..algorithms.samplers import Chains, Trees
from ..monitor import Monitor
from .mixture import check_environments
from .resolve import (
    dialogue_in,
    held_out_tasks,
    longest,
    make_entry,
    max_episode_tokens,
    resolve_dialogue,
    resolve_limits,
)
from .settings import (
    DialogueConfig,
    EnvConfig,
    ExpertConfig,
    HardwareConfig,
    SFTSettings,
    SteppingConfig,
    ValidationConfig,
)


@dataclass(frozen=True)
class TrainingConfig:
    """Configuration of a training run.

    Attributes:
        recipe: Algorithm and its hyper-parameters.
        env: Environment and tasks to train on; the first of several.
        model: Folder of the initial model, or its name on the Hugging Face hub.
        out: Folder of the run.
        seed: Seed of task order, episodes and optimizer batches.
        dialogue: Dialogue between environment and model.
        hardware: Device, precision, memory and sampling engine.
        validation: Validation on held-out tasks.
        monitor: Detection of collapse, and the response to it.
        checkpoint_every: Updates between two checkpoints; the last update always has one.
        trackers: Trackers of Accelerate, such as "tensorboard" or "wandb", that receive the metrics as well.
        checkpoint_keep: Number of the last checkpoints that are kept, beside the best one.
        stepping: Processes that step the environments.
        mixture: Further environments. The prompts of every update are drawn from all environments in the ratio of
            their weights, and each is validated.
    """

    recipe: Recipe
    env: EnvConfig
    model: str
    out: Path
    seed: int = 0
    dialogue: DialogueConfig = field(default_factory=DialogueConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    monitor: Monitor = field(default_factory=Monitor)
    checkpoint_every: int = 10
    trackers: tuple[str, ...] = ()
    checkpoint_keep: int = 1
    mixture: tuple[EnvConfig, ...] = field(default=(), metadata=ADDED)
    stepping: SteppingConfig = field(default_factory=SteppingConfig, metadata=ADDED)

    @property
    def envs(self) -> tuple[EnvConfig, ...]:
        """All environments of the run."""
        return (self.env, *self.mixture)

    @property
    def env_names(self) -> str:
        """Names of all environments, for titles."""
        return " + ".join(env.label for env in self.envs)

    def check(self) -> None:
        """Raise if the run cannot work, as far as can be determined without the model.

        Raises:
            ConfigurationError: Unknown environment, dialogue or setting; a value out of range; too few tasks;
                settings that contradict each other; an environment that cannot be forked, for a sampler of trees
                or a credit that redraws outcomes.
        """
        self.check_values()
        limits = []
        for env in self.envs:
            try:
                limits.append(self._check_environment(env))
            except ConfigurationError as error:
                if not self.mixture or isinstance(error, DataError):
                    raise
                raise ConfigurationError(f"{env.label}: {error}") from None
        for engine, extra, module in (("vllm", "vllm", "vllm"), ("vllm-server", "openai", "aiohttp")):
            if self.hardware.engine == engine and find_spec(module) is None:
                raise missing_extra(f"engine = {engine}", extra, module)
        if self.hardware.engine != "transformers" and self.recipe.sampler.asynchronous:
            raise ConfigurationError(
                "sampler.asynchronous works with engine = transformers; set that, or sampler.asynchronous=false."
            )
        if self.stepping.ray is not None and find_spec("ray") is None:
            raise missing_extra("--ray", "ray", "ray")
        if self.stepping.ray is not None and self.recipe.sampler.asynchronous:
            raise ConfigurationError(
                "sampler.asynchronous samples in another process of this machine, which steps the environments "
                "itself; set sampler.asynchronous=false, or leave --ray out."
            )
        recipe = resolve_limits(self.recipe, longest(limits))
        terms = recipe.objective.pair_terms
        if terms and not recipe.credit.finds_divergences:
            raise ConfigurationError(
                f"{recipe.name}: the term {terms[0].name!r} in objective.terms reads preference pairs, made at "
                f"divergences, but the credit {recipe.credit.name!r} finds none; set credit.name=cognitive, or "
                "take the term out of objective.terms."
            )
        lacks_length = recipe.objective.needs_norm_length and recipe.objective.norm_length is None
        if lacks_length or (recipe.overlong.coef and recipe.overlong.max_tokens is None):
            user, setting = "the overlong penalty", "overlong.max_tokens"
            if lacks_length:
                user, setting = f"objective.aggregation {recipe.objective.aggregation!r}", "objective.norm_length"
            raise ConfigurationError(
                f"{recipe.name}: {user} needs a limit on an episode's tokens, but neither {self.env_names} nor "
                f"the dialogue has one; set {setting} or sampler.max_turns."
            )

    def check_values(self) -> None:
        """Raise `ConfigurationError` for a value out of range; part of `check` that needs no environment."""
        integer_at_least("--seed", self.seed, 0)
        integer_at_least("--checkpoint-every", self.checkpoint_every, 1)
        integer_at_least("--checkpoint-keep", self.checkpoint_keep, 1)
        check_environments(self.envs)
        for settings in (self.hardware, self.stepping, self.validation, self.monitor):
            settings.check()
        styled = [env.label for env in self.mixture if env.dialogue != self.env.dialogue]
        if styled and self.recipe.objective.pair_terms:
            raise ConfigurationError(
                f"{self.recipe.name} writes thoughts in the dialogue of the run, so {styled[0]} cannot have "
                "settings of its own; set --dialogue-arg for all environments."
            )
        compares = self.recipe.credit.needs_policy or bool(self.recipe.objective.pair_terms)
        if self.mixture and compares and resolve_dialogue(self.dialogue, self.recipe.sampler).tools:
            raise ConfigurationError(
                f"{self.recipe.name} has the policy compare actions as it writes them, but each environment has"
                " functions of its own; train on one environment, or choose another dialogue."
            )

    def _check_environment(self, config: EnvConfig) -> int | None:
        """Check one environment, and return an upper bound on the sampled tokens of its episodes."""
        env = make_entry(config, config.split).make()
        if len(env.tasks) == 0:
            raise ConfigurationError(f"{config.label} has no tasks in split {config.split!r}.")
        self._check_validation(config, env)
        if self.stepping.ray is None:  # On a cluster, servers need to be reached from its nodes only.
            env.check_server()
        if isinstance(self.recipe.sampler, Trees) or "snapshots" in self.recipe.credit.keep:
            env.reset(seed=0)
            take_snapshot(env)
        dialogue = resolve_dialogue(dialogue_in(config, self.dialogue), self.recipe.sampler)
        return max_episode_tokens(dialogue, self.recipe.sampler, env, None)

    def _check_validation(self, config: EnvConfig, env: TextEnv[Any]) -> None:
        if not self.validation.every:
            return
        held_out = make_entry(config, self.validation.split, self.validation.tasks)
        try:
            validation_env = held_out.make()
        except ConfigurationError as error:  # the training split has just been opened
            raise ConfigurationError(f"--validation.split: {error}") from None
        held_out_tasks(held_out, validation_env)
        # Training on an endless split visits tasks of its own, unless it is limited to the first few.
        is_endless = isinstance(env.tasks, GeneratedTasks) and config.tasks is None
        if config.split is None or (self.validation.split in (None, config.split) and not is_endless):
            raise ConfigurationError(
                f"validation would use training tasks: splits {config.split!r} and {self.validation.split!r} "
                "overlap; set --split or --validation.split to another one, or --validation.every 0."
            )


@dataclass(frozen=True)
class SFTConfig:
    """Configuration of supervised fine-tuning on expert episodes.

    Attributes:
        env, model, out, seed, dialogue, hardware: See `TrainingConfig`.
        expert: Expert that demonstrates the episodes.
        sft: Data and optimizer.
        checkpoint_every: Steps between two checkpoints; they are deleted once the model is written.
    """

    env: EnvConfig
    model: str
    out: Path
    seed: int = 0
    dialogue: DialogueConfig = field(default_factory=DialogueConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    sft: SFTSettings = field(default_factory=SFTSettings)
    checkpoint_every: int = 100

    @property
    def sampler(self) -> Chains:
        """Sampler that leaves the dialogue's own settings unchanged."""
        return Chains()

    def check(self) -> None:
        """Raise if the run cannot work, as far as can be determined without the model.

        Raises:
            ConfigurationError: Unknown environment, dialogue or setting; a value out of range; an environment
                without an expert.
        """
        self.check_values()
        resolve_dialogue(dialogue_in(self.env, self.dialogue), self.sampler)
        env = make_entry(self.env, self.env.split).make()
        env.check_server()
        env.reset(seed=0)
        if env.expert_actions() is None:
            raise ConfigurationError(
                f"{self.env.id} has no expert plan for task {env.task!r}, so there is nothing to imitate; choose "
                "another environment or --env-arg."
            )

    def check_values(self) -> None:
        """Raise `ConfigurationError` for a value out of range; part of `check` that needs no environment."""
        integer_at_least("--seed", self.seed, 0)
        integer_at_least("--checkpoint-every", self.checkpoint_every, 1)
        for settings in (self.env, self.hardware, self.expert, self.sft):
            settings.check()
