"""Definition of a sapling: the environments that it imitates experts of, its architecture, and its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...envs.checks import at_least, positive
from ..config.settings import DialogueConfig, EnvConfig, ExpertConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Source:
    """Expert episodes of one environment.

    Attributes:
        env: Environment; its split is the one to train on.
        episodes: Number of episodes in the stage; each is used once.
        dialogue: Dialogue of these episodes, which has levels of its own; None: that of the family.
    """

    env: EnvConfig
    episodes: int
    dialogue: DialogueConfig | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        at_least("episodes", self.episodes, 1)

    def environment(self, chunk: int) -> EnvConfig:
        """Return the environment of the episodes of a chunk, numbered through all stages from 0."""
        return self.env


@dataclass(frozen=True)
class VariedSource(Source):
    """Expert episodes of an environment with an option whose value is another one in every chunk.

    Attributes:
        option: Option of the environment; its value is 1 in the first chunk, 2 in the second, and so on.
    """

    option: str = "seed"

    def environment(self, chunk: int) -> EnvConfig:
        return replace(self.env, kwargs={**self.env.kwargs, self.option: chunk + 1})


@dataclass(frozen=True)
class Stage:
    """Stage of the pretraining.

    Attributes:
        sources: Environments and numbers of episodes.
        expert: Expert that demonstrates the episodes.
        lr: Peak learning rate, reached after the warmup; it decays along a cosine.
        lr_span: Steps after which the learning rate is 0, as a multiple of those of the stage. Above 1 the stage
            ends before, with a policy that still explores.
        chunks: Number of equal parts in which episodes are generated and trained on.
        observation_weight: Weight λ of the loss on observations; see `imitation.joint_loss`.
        validations: Number of validations on held-out tasks; they are evenly spaced, the last one at the end.
    """

    sources: tuple[Source, ...]
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    lr: float = 2e-3
    lr_span: float = 1.0
    chunks: int = 32
    observation_weight: float = 0.0
    validations: int = 4

    def __post_init__(self) -> None:
        self.expert.check()
        for name in ("chunks", "validations"):
            at_least(name, getattr(self, name), 1)
        positive("lr", self.lr)
        at_least("lr_span", self.lr_span, 1)
        at_least("observation_weight", self.observation_weight, 0)

    def steps(self, batch: int) -> int:
        """Return the number of optimizer steps with `batch` episodes each."""
        episodes_per_chunk = sum(source.episodes // self.chunks for source in self.sources)
        return self.chunks * max(1, round(episodes_per_chunk / batch))


@dataclass(frozen=True)
class Family:
    """Environments that share a sapling, and everything that determines its weights except the seed.

    Attributes:
        name: Name in commands.
        model: Name of the shipped model.
        summary: Description in a few words.
        stages: Stages of the pretraining, in order.
        held_out: Environments of validation and evaluation, by the label of their results.
        dialogue: Dialogue between environment and model.
        tokenizer: Makes the tokenizer, given the context window in tokens.
        context: Context window in tokens.
        reply_tokens: Maximum length of a reply in tokens.
        start: Name of the shipped model whose weights the pretraining begins with, and whose architecture it has;
            None begins with random weights.
        layers: Number of transformer layers.
        width: Hidden size of the transformer.
        batch: Episodes per optimizer step.
        microbatch_tokens: Maximum size of a micro-batch in tokens.
        validation_split, test_split: Task splits of validation and of the evaluation at the end.
        validation_tasks: Held-out tasks of each environment in a validation.
        evaluation_tasks: Test tasks of each environment in the evaluation at the end.
    """

    name: str
    model: str
    summary: str
    stages: tuple[Stage, ...]
    held_out: Mapping[str, EnvConfig]
    dialogue: DialogueConfig
    tokenizer: Callable[[int], PreTrainedTokenizerBase]
    context: int = 2048
    reply_tokens: int = 32
    start: str | None = None
    layers: int = 4
    width: int = 128
    batch: int = 64
    microbatch_tokens: int = 2048
    validation_split: str = "valid"
    test_split: str = "test"
    validation_tasks: int = 64
    evaluation_tasks: int = 256

    def __post_init__(self) -> None:
        names = ("context", "reply_tokens", "layers", "width", "batch", "microbatch_tokens")
        for name in (*names, "validation_tasks", "evaluation_tasks"):
            at_least(name, getattr(self, name), 1)

    @property
    def steps(self) -> int:
        """Number of optimizer steps in total."""
        return sum(stage.steps(self.batch) for stage in self.stages)
