"""What `arboretum train` and `arboretum sft` can be told, and the run that it makes.

The help of each option is the docstring of the setting that it sets, so nothing is described twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tyro.conf import AvoidSubcommands, UseAppendAction, arg

from ..monitor import Monitor
from .settings import Expert, Hardware, Lora, Validation

T = TypeVar("T")

if TYPE_CHECKING:
    from .run import Lesson, Run


def _unchecked(kind: type) -> type:
    """Settings that tyro can make without checking them: it would wrap the complaint in one of its own."""
    return type(kind.__name__, (kind,), {"__doc__": kind.__doc__, "__post_init__": lambda self: None})


def _checked(kind: type[T], told: T) -> T:
    """The settings themselves, from what was told.

    Raises:
        ConfigurationError: they cannot work.
    """
    return kind(**{setting.name: getattr(told, setting.name) for setting in fields(kind)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Options:
    """What both commands are told.

    Attributes:
        world: id of a world, such as TextSokoban-v0.
        model: name or folder of the model to start from; "sapling" is the small one that comes with the package.
        out: folder of the run; the trained model lands in its model/. By default runs/ and a name made of
            algorithm, world and seed.
        split: task split to learn from.
        tasks: learn from the first so many tasks only.
        seed: seed of tasks, luck and draws.
        world_arg: a make-time option of the world, as key=value, such as size=8; may be given several times.
        dialogue: how the world speaks to the model: think, no_think, react, tags, plain, or a plug-in's; by
            default as the recipe says, else think.
        dialogue_arg: a setting of the dialogue, as key=value, such as max_turns=5; may be given several times.
        template: a shipped chat template, such as qwen3, instead of the tokenizer's own.
        checkpoint_every: updates (steps of a warm start) between two checkpoints.
        resume: go on from the run's last checkpoint.
        hardware: how the model is held.
        use_lora: train low-rank adapters instead of all weights; the settings under "lora" are theirs.
        lora: the adapters.
    """

    world: str
    model: str
    out: Path | None = None
    split: str | None = "train"
    tasks: int | None = None
    seed: int = 0
    world_arg: UseAppendAction[tuple[str, ...]] = ()
    dialogue: str | None = None
    dialogue_arg: UseAppendAction[tuple[str, ...]] = ()
    template: str | None = None
    checkpoint_every: int = 10
    resume: bool = False
    use_lora: Annotated[bool, arg(name="lora")] = False
    hardware: Annotated[Hardware, arg(name="", constructor=AvoidSubcommands[_unchecked(Hardware)])] = field(
        default_factory=Hardware
    )
    lora: Annotated[Lora, arg(constructor=_unchecked(Lora))] = field(default_factory=Lora)

    def shared(self, algorithm: str) -> dict[str, Any]:
        """The settings that a `Run` and a `Lesson` have in common.

        Args:
            algorithm: what the run's folder is named after, where none was given.

        Raises:
            ConfigurationError: what should be key=value is not.
        """
        from ...eval.agents import options_of
        from .settings import Speech, World

        hardware = _checked(Hardware, self.hardware)
        return {
            "world": World(self.world, options_of(self.world_arg, "--world-arg"), self.split, self.tasks),
            "model": self.model,
            "out": self.out or Path("runs") / f"{algorithm}-{self.world}-{self.seed}",
            "seed": self.seed,
            "speech": Speech(self.dialogue, options_of(self.dialogue_arg, "--dialogue-arg"), self.template),
            "checkpoint_every": self.checkpoint_every,
            "hardware": replace(hardware, lora=_checked(Lora, self.lora) if self.use_lora else None),
        }


@dataclass(frozen=True)
class TrainOptions(Options):
    """How the policy is trained, beyond the recipe.

    Attributes:
        set: a setting of the recipe, as path=value, such as objective.clip_high=0.28 or sampler.rollouts=8; may be
            given several times.
        tracker: where Accelerate sends the metrics, beside metrics.jsonl, such as tensorboard or wandb; may be
            given several times.
        validation: how the policy is looked at during the run.
        monitor: what counts as a collapse, and what follows.
    """

    set: UseAppendAction[tuple[str, ...]] = ()
    tracker: UseAppendAction[tuple[str, ...]] = ()
    validation: Annotated[Validation, arg(constructor=_unchecked(Validation))] = field(default_factory=Validation)
    monitor: Annotated[Monitor, arg(constructor=_unchecked(Monitor))] = field(default_factory=Monitor)

    def run(self, recipe: str) -> Run:
        """The run that was asked for.

        Raises:
            ConfigurationError: unknown recipe or setting, or one that cannot work.
        """
        from ...eval.agents import options_of
        from ..algorithms.recipes import recipe_named
        from .run import Run

        return Run(
            recipe_named(recipe).changed(options_of(self.set, "--set")),
            **self.shared(recipe),
            validation=_checked(Validation, self.validation),
            monitor=_checked(Monitor, self.monitor),
            trackers=self.tracker,
        )


@dataclass(frozen=True)
class LessonOptions(Options):
    """How a model is warmed up.

    Attributes:
        episodes: expert episodes to learn from.
        epochs: how often each is learnt from.
        batch: episodes a step.
        lr: the highest learning rate; it rises over the warm-up and falls to 0 along a cosine.
        warmup: steps in which the learning rate rises.
        weight_decay: of AdamW.
        expert: how well the expert plays.
    """

    checkpoint_every: int = 100
    episodes: int = 1024
    epochs: int = 2
    batch: int = 32
    lr: float = 1e-5
    warmup: int = 10
    weight_decay: float = 0.0
    expert: Annotated[Expert, arg(constructor=_unchecked(Expert))] = field(default_factory=Expert)

    def lesson(self) -> Lesson:
        """The warm start that was asked for.

        Raises:
            ConfigurationError: a setting that cannot work.
        """
        from .run import Lesson

        return Lesson(
            **self.shared("sft"),
            expert=_checked(Expert, self.expert),
            episodes=self.episodes,
            epochs=self.epochs,
            batch=self.batch,
            lr=self.lr,
            warmup=self.warmup,
            weight_decay=self.weight_decay,
        )
