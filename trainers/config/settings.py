"""Settings of a run beside its algorithm: environment, dialogue, hardware, validation, expert. Free of torch.

Constructing settings never raises; `check` does, so that a command line can be parsed first and judged as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...envs.addresses import parse_address, public_url
from ...envs.checks import at_least, fraction, integer_at_least, one_of, positive
from ...envs.errors import ConfigurationError
from ...eval.options import option_name
from ..algorithms.additions import ADDED


@dataclass(frozen=True)
class EnvConfig:
    """Environment and tasks to train on.

    Attributes:
        id: Gymnasium id of the environment, such as TextSokoban-v0.
        kwargs: Make-time options of the environment.
        split: Task split to train on.
        tasks: Train on the first so many tasks of the split. None uses all of them.
        name: Name in metrics, options and reports of a run on several environments. None uses the id.
        weight: Share of the run's prompts, relative to the weights of the run's other environments.
        dialogue: Settings of the dialogue in this environment; they override those of the run.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    split: str | None = "train"
    tasks: int | None = None
    name: str | None = field(default=None, metadata=ADDED)
    weight: float = field(default=1.0, metadata=ADDED)
    dialogue: Mapping[str, Any] = field(default_factory=dict, metadata=ADDED)

    @property
    def label(self) -> str:
        """Name of the environment within its run."""
        return self.name or self.id

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        integer_at_least("--tasks", self.tasks, 1)
        if not 0 < self.weight < math.inf:
            raise ConfigurationError(
                f"the weight of {self.label} must be a number above 0, but is {self.weight:g}; leave the "
                "environment out to train without it."
            )


@dataclass(frozen=True)
class DialogueConfig:
    """Dialogue between environment and model.

    Attributes:
        name: Name of the dialogue. None follows the recipe's sampler (`think` or `no_think`; `think` if it is
            silent).
        settings: Settings of the dialogue; they override those of the recipe's sampler.
        template: Name of a shipped chat template, or a .jinja file. None uses the tokenizer's own.
    """

    name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (Hu et al., arXiv:2106.09685); the defaults are RAGEN's.

    Attributes:
        rank: Rank r of the LoRA matrices.
        alpha: Scale of the adapters; their output is multiplied by alpha / rank.
        targets: Layers to adapt, as peft names them; "all-linear" adapts every linear layer except the head.
    """

    rank: int = 64
    alpha: float = 64.0
    targets: str = "all-linear"

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        integer_at_least("--lora.rank", self.rank, 1)
        positive("--lora.alpha", self.alpha)


@dataclass(frozen=True)
class HardwareConfig:
    """Device, precision, memory and sampling engine.

    Attributes:
        device: Device to train on: "cuda" or "cpu". None uses the best available one (under Accelerate's launcher
            the process's own).
        precision: Compute dtype of sampling and training; weights and optimizer state stay in float32.
        gradient_checkpointing: Recompute activations in the backward pass instead of storing them, to save memory.
        lora: Adapters to train instead of all weights; None trains all weights.
        microbatch_tokens: Tokens of a micro-batch, padding included. Bounds the memory of an update and does not
            change its result. None means 2048 on a CPU and 16384 elsewhere.
        share_prefixes: Compute a prefix that several conversations of a micro-batch share once. None shares the
            turns of episodes that branch off each other; True also the prompts of episodes that do not; False
            repeats them. Results differ by rounding. Models whose attention does not accept trees repeat them in
            any case.
        in_flight: Episodes to roll out at the same time, in each process.
        engine: Sampling engine: "transformers" samples with the trained model itself; "vllm" samples with vLLM in
            every training process and copies the weights to it after every update; "vllm-server" samples on
            running vLLM servers, which take the weights after every update.
        base_url: Address of the vLLM server of the engine vllm-server, such as http://127.0.0.1:8000/v1; several,
            separated by commas, share the episodes.
        vllm_memory: Fraction of the GPU's memory (without a GPU: of the machine's) for vLLM in the training
            processes, from 0 to 1.
    """

    device: str | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    lora: LoraConfig | None = None
    microbatch_tokens: int | None = None
    share_prefixes: bool | None = None
    in_flight: int = 64
    engine: Literal["transformers", "vllm", "vllm-server"] = "transformers"
    base_url: str | None = field(default=None, metadata=ADDED)
    vllm_memory: float = 0.3

    @property
    def server_urls(self) -> tuple[str, ...]:
        """Addresses in `base_url`."""
        return tuple(url.strip() for url in (self.base_url or "").split(",") if url.strip())

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        one_of("engine", self.engine, ("transformers", "vllm", "vllm-server"))
        self._check_servers()
        fraction("vllm_memory", self.vllm_memory)
        one_of("--device", self.device, (None, "cuda", "cpu"))
        one_of("--precision", self.precision, ("float32", "bfloat16"))
        integer_at_least("--microbatch-tokens", self.microbatch_tokens, 1)
        integer_at_least("--in-flight", self.in_flight, 1)
        if self.lora is not None:
            self.lora.check()

    def _check_servers(self) -> None:
        if (self.engine == "vllm-server") != bool(self.server_urls):
            raise ConfigurationError(
                "engine = vllm-server and base_url go together: --engine vllm-server --base-url "
                "http://127.0.0.1:8000/v1."
            )
        for url in self.server_urls:
            if parse_address(url).username is not None:
                raise ConfigurationError(
                    f"base_url {public_url(url)} must not contain a user name or password, which would be written "
                    "into the run's folder; the key of a server is read from VLLM_API_KEY."
                )
        if len(set(self.server_urls)) < len(self.server_urls):
            raise ConfigurationError("base_url names a server twice.")


@dataclass(frozen=True)
class SteppingConfig:
    """Processes that step the environments, and the time of a step.

    Attributes:
        ray: Address of a Ray cluster whose nodes step the environments; "auto" or "local" also work. It does not
            sample replies. None steps the environments in the training process.
        ray_workers: Processes on the Ray cluster, for each training process; each takes one CPU, and has several
            environments. None takes all CPUs.
        step_timeout: Wall time of one step or one reset of an environment in seconds, after which its episode ends
            with an error. None sets no limit.
    """

    ray: str | None = None
    ray_workers: int | None = None
    step_timeout: float | None = None

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        integer_at_least("--ray-workers", self.ray_workers, 1)
        if self.ray_workers is not None and self.ray is None:
            raise ConfigurationError("--ray-workers has no effect without --ray; add it, or remove --ray-workers.")
        if self.step_timeout is not None:
            positive("--step-timeout", self.step_timeout)


@dataclass(frozen=True)
class ValidationConfig:
    """Validation on held-out tasks during training.

    Attributes:
        every: Updates between two validations; 0 turns validation off. The first validation precedes the first
            update, the last one follows the last update, unless the monitor ends the run at a fatal sign.
        tasks: Number of held-out tasks: the first distinct ones of the split. None uses 256 (a 95 % interval of at
            most ± 6 points), or all tasks of a split that has fewer.
        split: Task split of the held-out tasks.
        temperature: Sampling temperature of validation. None uses the training temperature (the final value of a
            schedule); 0 is greedy.
        repeats: Episodes per held-out task.
    """

    every: int = 10
    tasks: int | None = None
    split: str | None = "valid"
    temperature: float | None = None
    repeats: int = 1

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        integer_at_least("--validation.every", self.every, 0)
        integer_at_least("--validation.tasks", self.tasks, 1)
        integer_at_least("--validation.repeats", self.repeats, 1)
        at_least("--validation.temperature", self.temperature, 0)


@dataclass(frozen=True)
class ExpertConfig:
    """Expert that demonstrates episodes for supervised fine-tuning.

    Attributes:
        noise: Probability ε that an action is drawn at random from the admissible ones instead of the expert's.
        actions_per_turn: Actions in one reply. None fills the dialogue's limit. Use 1 in stochastic environments,
            where a plan holds only until chance interferes.
        thoughts: Text in the place of reasoning, where the dialogue has one: "plan" writes the plan in words,
            "none" leaves it empty.
        keep: Episodes to train on: "solved" ones only, or "all".
        refused: Fraction of the random actions that are not admissible at that point, so that the environment
            refuses them. They are drawn from the plan and from what was admissible earlier in the episode. Where
            there is no such action, or the environment cannot list its actions, an admissible one is drawn.
        learn_noise: Train on random actions too. False excludes them from the loss: they only lead to states from
            which the expert has to recover.
        searching: Demonstrate with the agent `searching_expert`, which sees only observations, in the place of
            `expert`; one action per reply.
    """

    noise: float = 0.0
    actions_per_turn: int | None = None
    thoughts: Literal["plan", "none"] = "plan"
    keep: Literal["solved", "all"] = "solved"
    refused: float = 0.0
    learn_noise: bool = True
    searching: bool = False

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        fraction("--expert.noise", self.noise)
        fraction("--expert.refused", self.refused)
        integer_at_least("--expert.actions-per-turn", self.actions_per_turn, 1)
        one_of("--expert.thoughts", self.thoughts, ("plan", "none"))
        one_of("--expert.keep", self.keep, ("solved", "all"))


@dataclass(frozen=True)
class SFTSettings:
    """Data and optimizer of supervised fine-tuning on expert episodes.

    Attributes:
        episodes: Expert episodes to train on.
        epochs: Passes over the episodes.
        batch: Episodes per optimizer step.
        lr: Peak learning rate; it rises linearly over the warm-up and falls to 0 along a cosine.
        warmup: Steps over which the learning rate rises.
        weight_decay: Weight decay of AdamW.
    """

    episodes: int = 1024
    epochs: int = 2
    batch: int = 32
    lr: float = 1e-5
    warmup: int = 10
    weight_decay: float = 0.0

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        for name in ("episodes", "epochs", "batch"):
            integer_at_least(option_name(name), getattr(self, name), 1)
        for name in ("warmup", "weight_decay"):
            at_least(option_name(name), getattr(self, name), 0)
        positive("--lr", self.lr)
