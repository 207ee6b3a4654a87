"""What a run needs to know beyond its algorithm, checked without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...envs.checks import at_least, fraction, one_of, positive


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al., arXiv:2106.09685); the defaults are RAGEN's.

    Attributes:
        rank: of the two factors.
        alpha: adapters are scaled by alpha / rank.
        targets: which layers are adapted, as peft names them; "all-linear" for every linear one but the head.
    """

    rank: int = 64
    alpha: float = 64
    targets: str = "all-linear"

    def __post_init__(self) -> None:
        at_least("lora.rank", self.rank, 1)
        positive("lora.alpha", self.alpha)


@dataclass(frozen=True)
class Hardware:
    """How a model is held and run while it learns.

    Attributes:
        device: "cpu", or None for the best there is (with Accelerate's launcher: the process's own).
        precision: of computations, in sampling and learning alike; weights and optimizer stay in float32.
        gradient_checkpointing: compute activations twice instead of keeping them.
        lora: train adapters instead of all weights.
        micro_tokens: tokens run through the model at once when learning, padding included. Bounds memory; what is
            learnt does not depend on it. None is 2048 on the CPU, whose caches hold no more, and 16384 elsewhere.
        in_flight: episodes played, and replies sampled, at once.
        engine: what samples: the model that learns itself ("transformers"), or vLLM in this process, which takes
            over the weights after every update.
        vllm_memory: share of the GPU's memory that vLLM may take.
    """

    device: str | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    lora: Lora | None = None
    micro_tokens: int | None = None
    in_flight: int = 64
    engine: Literal["transformers", "vllm"] = "transformers"
    vllm_memory: float = 0.3

    def __post_init__(self) -> None:
        one_of("engine", self.engine, ("transformers", "vllm"))
        fraction("vllm_memory", self.vllm_memory)
        one_of("device", self.device, (None, "cpu"))
        one_of("precision", self.precision, ("float32", "bfloat16"))
        at_least("micro_tokens", self.micro_tokens, 1)
        at_least("in_flight", self.in_flight, 1)


@dataclass(frozen=True)
class Validation:
    """How the policy is looked at during a run, on tasks that it never learns from.

    Attributes:
        every: updates between two looks; 0 for none. The first is before the first update, the last at the end.
        tasks: how many, the first distinct ones of the split.
        split: where they come from.
        temperature: of sampling; None for the training's own (where that is a line, its end), 0 is greedy.
        repeats: plays of each task.
    """

    every: int = 10
    tasks: int = 64
    split: str | None = "valid"
    temperature: float | None = None
    repeats: int = 1

    def __post_init__(self) -> None:
        at_least("validation.every", self.every, 0)
        at_least("validation.tasks", self.tasks, 1)
        at_least("validation.repeats", self.repeats, 1)
        at_least("validation.temperature", self.temperature, 0)


@dataclass(frozen=True)
class World:
    """Where the policy learns.

    Attributes:
        id: Gymnasium id.
        kwargs: make-time options of the world.
        split: tasks to learn from.
        tasks: only the first so many of them; None for all.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    split: str | None = "train"
    tasks: int | None = None

    def __post_init__(self) -> None:
        at_least("tasks", self.tasks, 1)


@dataclass(frozen=True)
class Speech:
    """How the world speaks to the model.

    Attributes:
        dialogue: name of the dialogue; None for think or no_think as the recipe's sampler says, and think where it
            does not say.
        settings: its settings; they go over what a recipe's sampler sets.
        template: a shipped chat template instead of the tokenizer's own.
    """

    dialogue: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None


@dataclass(frozen=True)
class Expert:
    """How well, and how, the expert plays.

    Attributes:
        noise: ε: the chance that an action is drawn at random from those admissible, instead of the expert's.
        actions_per_turn: actions in one reply; None for as many as the dialogue allows. One is right in worlds
            with chance: a plan holds only as long as chance does not interfere.
        thoughts: what stands where the dialogue wants reasoning: the plan in words, or nothing.
        keep: episodes to learn from.
    """

    noise: float = 0.0
    actions_per_turn: int | None = None
    thoughts: Literal["plan", "none"] = "plan"
    keep: Literal["solved", "all"] = "solved"

    def __post_init__(self) -> None:
        fraction("expert.noise", self.noise)
        at_least("expert.actions_per_turn", self.actions_per_turn, 1)
        one_of("expert.thoughts", self.thoughts, ("plan", "none"))
        one_of("expert.keep", self.keep, ("solved", "all"))
