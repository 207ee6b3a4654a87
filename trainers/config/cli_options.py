"""Options of `arboretum train` and `arboretum sft`, and the configurations that they make.

The help of an option is the docstring of the setting that it sets, so no setting is described twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from tyro.conf import AvoidSubcommands, Fixed, SuppressFixed, UseAppendAction, arg

from ...agents.dialogue.registry import DIALOGUES
from ...envs.checks import first_difference
from ...envs.errors import ConfigurationError
from ..monitor import Monitor
from .mixture import EnvSpec, divide_options, parse_env
from .settings import (
    DialogueConfig,
    EnvConfig,
    ExpertConfig,
    HardwareConfig,
    LoraConfig,
    SFTSettings,
    SteppingConfig,
    ValidationConfig,
)

if TYPE_CHECKING:
    from .run import SFTConfig, TrainingConfig

T = TypeVar("T")


@dataclass(frozen=True)
class LoraOptions:
    """Low-rank adapters. An option that is not given keeps the value of a resumed run.

    Attributes:
        rank: Rank r of the LoRA matrices. None means 64.
        alpha: Scale of the adapters; their output is multiplied by alpha / rank. None means 64.
        targets: Layers to adapt, as peft names them. None means "all-linear": every linear layer except the head.
    """

    rank: int | None = None
    alpha: float | None = None
    targets: str | None = None


@dataclass(frozen=True)
class SFTHardware(HardwareConfig):
    """Device, precision and memory; `arboretum sft` samples no replies, and has no options of an engine."""

    share_prefixes: Fixed[bool | None] = None
    engine: Fixed[Literal["transformers", "vllm", "vllm-server"]] = "transformers"
    base_url: Fixed[str | None] = None
    vllm_memory: Fixed[float] = 0.3


@dataclass(frozen=True)
class Options:
    """Options that both commands share.

    Attributes:
        env: Id of the environment, such as TextSokoban-v0. Required for a new run. `arboretum train` takes several
            by repetition, each as [NAME=]ID[:WEIGHT]; prompts are drawn from them in the ratio of the weights.
        model: Initial model: a folder, a name on the Hugging Face hub, or "sapling", the small model that ships
            with the package. Required for a new run.
        out: Folder of the run; the trained model is written to its subfolder model/. None makes a name of
            algorithm, environment and seed below runs/.
        resume: Folder of a run to continue from its last checkpoint, with the settings stored there. Options
            given beside it override stored settings, where a run in progress allows it.
        split: Task split to train on.
        tasks: Train on the first so many tasks of the split. None uses all of them.
        seed: Seed of task order, episodes and optimizer batches.
        env_arg: Make-time option of the environment, as key=value, such as size=8. Repeat the option for more. Of
            several environments, NAME.key=value is for one of them (without a name: its id).
        dialogue: Name of the dialogue between environment and model; None follows the
            recipe.
        dialogue_arg: Setting of the dialogue, as key=value, such as max_turns=5. Repeat the option for more. Of
            several environments, NAME.key=value is for one of them.
        template: Name of a shipped chat template, such as qwen3, or a .jinja file. None uses the
            tokenizer's own.
        checkpoint_every: Updates (optimizer steps of `arboretum sft`) between two checkpoints.
        hardware: Device, precision, memory and sampling engine.
        use_lora: Train low-rank adapters (LoRA) instead of all weights.
        lora: Low-rank adapters.
    """

    env: UseAppendAction[tuple[str, ...]] = ()
    model: str | None = None
    out: Path | None = None
    resume: Path | None = None
    split: str | None = "train"
    tasks: int | None = None
    seed: int = 0
    env_arg: UseAppendAction[tuple[str, ...]] = ()
    dialogue: Annotated[
        str | None,
        arg(
            help=f"Name of the dialogue between environment and model: {', '.join(DIALOGUES)}, or a plug-in's. "
            "None follows the recipe."
        ),
    ] = None
    dialogue_arg: UseAppendAction[tuple[str, ...]] = ()
    template: str | None = None
    checkpoint_every: int = 10
    hardware: Annotated[AvoidSubcommands[HardwareConfig], arg(name="")] = field(default_factory=HardwareConfig)
    use_lora: Annotated[bool, arg(name="lora")] = False
    lora: LoraOptions = field(default_factory=LoraOptions)

    def _shared_settings(
        self, algorithm: str, stored: TrainingConfig | SFTConfig | None, given: AbstractSet[str]
    ) -> dict[str, Any]:
        """Return the settings that both kinds of configuration have.

        Args:
            algorithm: First part of the default folder's name.
            stored: Configuration of the run to resume; None for a new run.
            given: See `merge`.

        Raises:
            ConfigurationError: A required option is missing, an option is not of the form key=value, or adapters
                are configured without --lora.
        """
        from ...eval.options import parse_options

        model = self.model or (None if stored is None else stored.model)
        if (not self.env and stored is None) or model is None:
            missing = "--model, such as sapling" if self.env or stored else "--env, such as TextSokoban-v0"
            raise ConfigurationError(f"pass {missing}; or continue a run with --resume and its folder.")
        if self.resume is not None and self.out not in (None, self.resume):
            raise ConfigurationError(f"--out {self.out} and --resume {self.resume} differ; pass only --resume.")
        envs, dialogue_args = self._environments(stored, given)
        names = "+".join(env.label for env in envs)
        settings: dict[str, Any] = {
            "envs": envs,
            "model": model,
            # Environments may change the working directory.
            "out": (self.resume or self.out or Path("runs") / f"{algorithm}-{names}-{self.seed}").absolute(),
            "seed": self.seed,
            "dialogue": DialogueConfig(
                self.dialogue, parse_options(dialogue_args, "--dialogue-arg"), self.template
            ),
            "hardware": self._hardware(stored, given),
            "checkpoint_every": self.checkpoint_every,
        }
        if stored is not None:
            defaults = type(self)()
            settings["dialogue"] = merge(stored.dialogue, settings["dialogue"], DialogueConfig())
            for name in ("seed", "checkpoint_every"):
                settings[name] = merge(getattr(stored, name), settings[name], getattr(defaults, name), given, name)
        return settings

    def _environments(
        self, stored: TrainingConfig | SFTConfig | None, given: AbstractSet[str]
    ) -> tuple[list[EnvConfig], list[str]]:
        """Return the environments of the run, and the options of the dialogue that are for all of them."""
        from ...envs.registry import resolve_id
        from ...eval.options import parse_options
        from .resolve import started_with_another

        known: Sequence[EnvConfig] = () if stored is None else getattr(stored, "envs", (stored.env,))
        specs = [parse_env(text) for text in self.env] or [EnvSpec(env.id, env.name) for env in known]
        if self.resume is not None and len(self.env) == len(known):
            for spec, env in zip(specs, known, strict=True):  # Before its options, which are of the stored one.
                if difference := first_difference({"id": resolve_id(env.id)}, {"id": resolve_id(spec.id)}):
                    raise started_with_another("env", difference, self.resume)
        labels = [spec.label for spec in specs]
        env_args, own_args = divide_options(self.env_arg, labels, "--env-arg")
        dialogue_args, own_dialogue = divide_options(self.dialogue_arg, labels, "--dialogue-arg")
        envs = []
        for spec in specs:
            kwargs = parse_options([*env_args, *own_args.get(spec.label, ())], "--env-arg")
            dialogue = parse_options(own_dialogue.get(spec.label, ()), "--dialogue-arg")
            before = [env for env in known if env.label == spec.label or len(known) == len(specs) == 1][:1]
            weight = spec.weight if spec.weight is not None else before[0].weight if before else 1.0
            env = EnvConfig(spec.id, kwargs, self.split, self.tasks, spec.name, weight, dialogue)
            for one in before:
                default = EnvConfig(one.id, split=Options().split, name=one.name, weight=one.weight)
                env = merge(one, env, default, given)
            envs.append(env)
        return envs, dialogue_args

    def _hardware(self, stored: TrainingConfig | SFTConfig | None, given: AbstractSet[str]) -> HardwareConfig:
        chosen = {name: value for name, value in vars(self.lora).items() if value is not None}
        before = None if stored is None else stored.hardware.lora
        has_lora = self.use_lora if stored is None or "lora" in given else before is not None
        if chosen and not has_lora:
            raise ConfigurationError(
                "options such as --lora.rank have no effect without --lora; add it, or remove them."
            )
        hardware = HardwareConfig(**vars(self.hardware))
        if stored is not None:
            hardware = merge(stored.hardware, hardware, HardwareConfig(), given)
            if hardware.engine != "vllm-server" and "base_url" not in given:
                hardware = replace(hardware, base_url=None)  # The run samples with another engine from now on.
        return replace(hardware, lora=replace(before or LoraConfig(), **chosen) if has_lora else None)


@dataclass(frozen=True)
class TrainOptions(Options):
    """Options of `arboretum train`, beside the recipe.

    Attributes:
        set: Setting of the recipe, as path=value, such as objective.clip_high=0.28, sampler.rollouts=8 or
            selector.name=uncertainty. Repeat the option for more.
        checkpoint_keep: Number of the last checkpoints to keep; the best one is always kept beside them.
        tracker: Tracker of Accelerate that receives the metrics as well, such as tensorboard or wandb. Repeat the
            option for more.
        stepping: Processes that step the environments, and the time of a step.
        validation: Validation on held-out tasks during training.
        monitor: Signs of collapse, and the response to them.
    """

    set: UseAppendAction[tuple[str, ...]] = ()
    checkpoint_keep: int = 1
    tracker: UseAppendAction[tuple[str, ...]] = ()
    stepping: Annotated[AvoidSubcommands[SteppingConfig], arg(name="")] = field(default_factory=SteppingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    monitor: Monitor = field(default_factory=Monitor)

    def config(
        self, recipe: str | None, stored: TrainingConfig | None = None, given: AbstractSet[str] = frozenset()
    ) -> TrainingConfig:
        """Return the configuration of the run.

        Args:
            recipe: Name of the recipe; None with --resume.
            stored: Configuration of the run to resume; None for a new run.
            given: See `merge`.

        Raises:
            ConfigurationError: An unknown recipe or setting, a required option is missing, or a value cannot work.
        """
        from ...envs.registry import resolve_id
        from ...eval.options import parse_options
        from ..algorithms.recipes import get_recipe, recipe_names
        from .run import TrainingConfig

        if recipe is None and stored is None:
            known = ", ".join(recipe_names())
            raise ConfigurationError(f"name a recipe ({known}), or continue a run with --resume and its folder.")
        named = None if recipe is None else get_recipe(recipe)
        # Beside --resume the same recipe, however it is spelled, keeps its stored settings.
        if stored is not None and (named is None or named.name == stored.recipe.name):
            named = stored.recipe
        assert named is not None
        validation, monitor, trackers = self.validation, self.monitor, self.tracker
        keep, stepping = self.checkpoint_keep, self.stepping
        if stored is not None:
            stepping = merge(stored.stepping, stepping, SteppingConfig(), given)
            validation = merge(stored.validation, validation, ValidationConfig(), given, "validation")
            monitor = merge(stored.monitor, monitor, Monitor(), given, "monitor")
            trackers = trackers or stored.trackers
            keep = merge(stored.checkpoint_keep, keep, type(self)().checkpoint_keep, given, "checkpoint_keep")
        shared = self._shared_settings(named.name, stored, given)
        env, *mixture = shared.pop("envs")
        for one in (env, *mixture):
            resolve_id(one.id)  # A mistyped id is reported before settings of the recipe that do not fit together.
        return TrainingConfig(
            named.with_settings(parse_options(self.set, "--set")),
            env,
            **shared,
            validation=validation,
            monitor=monitor,
            checkpoint_keep=keep,
            trackers=trackers,
            mixture=tuple(mixture),
            stepping=stepping,
        )


@dataclass(frozen=True)
class SFTOptions(Options):
    """Options of `arboretum sft`.

    Attributes:
        hardware: Device, precision and memory.
        sft: Data and optimizer.
        expert: Expert that demonstrates the episodes.
    """

    checkpoint_every: int = 100
    hardware: Annotated[AvoidSubcommands[SuppressFixed[SFTHardware]], arg(name="")] = field(
        default_factory=SFTHardware
    )
    sft: Annotated[SFTSettings, arg(name="")] = field(default_factory=SFTSettings)
    expert: ExpertConfig = field(default_factory=ExpertConfig)

    def config(self, stored: SFTConfig | None = None, given: AbstractSet[str] = frozenset()) -> SFTConfig:
        """Return the configuration of the run.

        Args:
            stored: Configuration of the run to resume; None for a new run.
            given: See `merge`.

        Raises:
            ConfigurationError: A required option is missing, or an option is not of the form key=value.
        """
        from .run import SFTConfig

        sft, expert = self.sft, self.expert
        if stored is not None:
            sft = merge(stored.sft, sft, SFTSettings(), given)
            expert = merge(stored.expert, expert, ExpertConfig(), given, "expert")
        shared = self._shared_settings("sft", stored, given)
        env, *further = shared.pop("envs")
        if further:
            raise ConfigurationError(
                "`arboretum sft` takes one --env; fine-tune on the environments one after another, each time from "
                "the model before."
            )
        return SFTConfig(env, **shared, sft=sft, expert=expert)


def merge(stored: T, given: T, default: T, names: AbstractSet[str] = frozenset(), path: str = "") -> T:
    """Return `stored` with the settings that were given.

    Args:
        stored: Settings of a run.
        given: Settings, most of which have their defaults.
        default: Defaults. A setting that differs from its default was given.
        names: Further settings that were given, by path; see `given_options`.
        path: Path of the settings.
    """
    if is_dataclass(stored) and type(stored) is type(given) is type(default):
        values = {
            part.name: merge(
                getattr(stored, part.name),
                getattr(given, part.name),
                getattr(default, part.name),
                names,
                f"{path}.{part.name}" if path else part.name,
            )
            for part in fields(stored)
        }
        return replace(stored, **values)  # type: ignore[type-var]
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        return {**stored, **given}  # type: ignore[return-value]
    return stored if given == default and path not in names else given


def given_options(arguments: Sequence[str]) -> set[str]:
    """Return the paths of the options on a command line, such as "validation.tasks"; flags lose their "no-"."""
    names = (argument[2:].partition("=")[0] for argument in arguments if argument.startswith("--"))
    parts = (name.replace("-", "_").rpartition(".") for name in names)
    return {f"{path}{dot}{last.removeprefix('no_')}" for path, dot, last in parts}
