"""Parts of a training run, assembled from the initial model or from a checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...eval.suite import Entry
from ..config.resolve import (
    dialogue_in,
    longest,
    make_entry,
    max_episode_tokens,
    resolve_correction,
    resolve_dialogue,
    resolve_limits,
)
from ..config.run import TrainingConfig
from ..learning.distributed import make_accelerator, make_optimizer
from ..learning.learner import Learner
from ..learning.optimizer import PolicyOptimizer
from ..learning.policy import Policy, load_trainable_model
from ..learning.reference import Reference
from ..sampling.asynchronous import AsynchronousSampling
from ..sampling.collector import Collector
from ..sampling.context_check import check_prompts_fit
from ..sampling.env_workers import EnvWorkers
from ..sampling.grafting import Grafter
from ..sampling.policy_engine import make_policy_engine
from ..sampling.sampler import RolloutSampler
from ..state import TrainerState
from .store import verify_checkpoint

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedTokenizerBase


class Components(NamedTuple):
    """Parts of a training run, assembled by `build_components`.

    Attributes:
        accelerator: Accelerate's view of the processes.
        tokenizer: Tokenizer of the model.
        optimizer: Policy, critic and their optimizer.
        learner: Updates the policy from rollouts; its recipe has the limits of the run.
        sampler: Rolls out episodes with the current policy.
        collector: Rolls out and selects the episodes of an update.
        grafter: Makes preference pairs for terms of the objective on pairs.
        ahead: Samples the next update's rollouts meanwhile; None samples them when they are due.
        workers: Steps the environments on a Ray cluster; None steps them in this process.
    """

    accelerator: Accelerator
    tokenizer: PreTrainedTokenizerBase
    optimizer: PolicyOptimizer
    learner: Learner
    sampler: RolloutSampler
    collector: Collector
    grafter: Grafter
    ahead: AsynchronousSampling | None
    workers: EnvWorkers | None


def build_components(config: TrainingConfig, state: TrainerState, checkpoint: Path | None) -> Components:
    """Load the models and assemble the parts of a training run.

    Args:
        config: Configuration of the run.
        state: Counters of the run.
        checkpoint: Checkpoint whose weights are loaded; None starts from the initial model.

    Raises:
        ConfigurationError: The model cannot be loaded or does not fit the run, or the Ray cluster does not.
        DataError: The checkpoint is damaged.
    """
    if checkpoint is not None:
        verify_checkpoint(checkpoint)
    hardware = config.hardware
    accelerator = make_accelerator(hardware.device, hardware.precision, config.trackers, str(config.out))
    workers = None
    if config.stepping.ray is not None:
        workers = EnvWorkers(
            config.stepping,
            [make_entry(env, env.split) for env in config.envs],
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
        )
    with ExitStack() as opened:  # Processes that have started end if a later part cannot be made.
        if workers is not None:
            opened.callback(workers.close)
        components = _assemble(config, state, checkpoint, accelerator, workers, opened)
        opened.pop_all()
    return components


def _assemble(
    config: TrainingConfig,
    state: TrainerState,
    checkpoint: Path | None,
    accelerator: Accelerator,
    workers: EnvWorkers | None,
    opened: ExitStack,
) -> Components:
    """Load the models and assemble the parts, which are closed with `opened`; see `build_components`."""
    hardware, recipe = config.hardware, config.recipe
    load = partial(
        load_trainable_model,
        device=str(accelerator.device),
        lora=hardware.lora,
        gradient_checkpointing=hardware.gradient_checkpointing,
    )
    # Adapters are loaded with the rest of the checkpoint.
    source = config.model if checkpoint is None or hardware.lora is not None else checkpoint / "model"
    check_prompts_fit(source, config)
    model, tokenizer = load(source)
    reference = None
    if recipe.needs_reference:
        decay = recipe.objective.reference_decay
        # A moving average is restored from the checkpoint.
        initial = source == config.model or decay is not None
        reference = Reference(model if initial else load(config.model)[0], decay)
    policy = Policy(model, critic=recipe.critic is not None)
    optimizer = make_optimizer(accelerator, policy, recipe.optimization, recipe.critic)
    engine = make_policy_engine(
        hardware,
        optimizer,
        tokenizer,
        lambda: load_trainable_model(config.model, str(accelerator.device), lora=hardware.lora)[0],
        config.model,
        config.out,
    )
    sampler = RolloutSampler(
        engine,
        config.dialogue,
        recipe.sampler,
        in_flight=hardware.in_flight,
        accelerator=accelerator,
        make_env=Entry.make if workers is None else workers.make,
        step_timeout=config.stepping.step_timeout,
    )
    opened.callback(sampler.engine.close)
    collector = Collector(config, sampler, state)
    limits = []
    for own, env in zip(config.envs, collector.envs, strict=True):
        dialogue = resolve_dialogue(dialogue_in(own, config.dialogue), recipe.sampler)
        limits.append(max_episode_tokens(dialogue, recipe.sampler, env, sampler.engine.context))
    learner = Learner(
        resolve_limits(resolve_correction(recipe), longest(limits)),
        optimizer,
        reference,
        microbatch_tokens=hardware.microbatch_tokens,
        seed=config.seed,
        # With another engine or in bfloat16, rounding differs between sampling and training.
        reuse_sampler_logprobs=hardware.engine == "transformers" and hardware.precision == "float32",
        share_prefixes=hardware.share_prefixes,
    )
    instructions = [sampler.dialogue.system(env) for env in collector.envs]
    grafter = Grafter(recipe.grafting, sampler, instructions, config.seed)
    ahead = AsynchronousSampling(config, optimizer, state) if recipe.sampler.asynchronous else None
    return Components(accelerator, tokenizer, optimizer, learner, sampler, collector, grafter, ahead, workers)
