"""Studies: recipes compared in several environments from one initial model. A study is a small YAML file.

    name: ragen-mini
    description: one line
    model: sapling
    dialogue: no_think
    envs:
      - name: FrozenLake
        id: TextFrozenLake-v0
        kwargs: {observation_format: grid}
    settings: {sampler.prompts: 32}          # of every recipe, by path
    recipes:
      grpo: {}                               # of this recipe only
      ppo: {critic.lr: 1.0e-3}
    seeds: 3
    tasks: 256
    samples: 32                            # for pass@k, on the first pass_tasks tasks
    levels:                                # on which the warm start was trained, to measure forgetting
      - {name: lake, id: TextFrozenLake-v0, kwargs: {observation_format: grid, success_rate: 1.0}}
    controls:
      temperatures: [0.3, 0.5, 0.7]
      supervised: {lr: 5.0e-4, batch: 64}

Every key is a field of `Study`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...envs.checks import at_least
from ...envs.errors import ConfigurationError, DataError
from ...eval.yaml_files import convert_mapping, parse_mapping, read_definition, shipped_names
from ..algorithms.recipe import Recipe
from ..algorithms.recipes import get_recipe
from ..config.resolve import make_entry
from ..config.run import SFTConfig, TrainingConfig
from ..config.settings import (
    DialogueConfig,
    EnvConfig,
    ExpertConfig,
    HardwareConfig,
    SFTSettings,
    ValidationConfig,
)
from .controls import Controls, parse_controls

SUPERVISED = "supervised"
"""Name of the control of further supervised fine-tuning, in the place of a recipe's."""
PASS_K = (1, 4, 16)
"""Numbers of attempts k of which pass@k is reported, as far as there are so many samples."""


@dataclass(frozen=True)
class Trial:
    """One training run of a study.

    Attributes:
        env: Name of the environment in the study.
        recipe: Name of the recipe in the study, or `SUPERVISED`.
        seed: Seed of the run.
    """

    env: str
    recipe: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the trial in messages."""
        return f"{self.recipe} on {self.env}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Folder of the trial below the study's folder."""
        return f"{env_folder(self.env)}/{self.recipe}-{self.seed}"


def env_folder(env: str) -> str:
    """Return the folder of an environment below the study's folder."""
    return env.lower().replace(" ", "-")


@dataclass(frozen=True)
class Study:
    """Comparison of recipes that start from one model.

    Attributes:
        name: Name of the study.
        description: One line that describes it.
        model: Initial model of every trial, the warm start.
        envs: Environments by name.
        recipes: Settings by path that are specific to a recipe, by the recipe's name.
        settings: Settings by path of every recipe; those of `recipes` override them.
        dialogue: Name of the dialogue between environments and model.
        seeds: Runs of each recipe in each environment, with the seeds 0, 1, …
        tasks: Held-out tasks (split "test") on which every policy and the warm start are evaluated.
        repeats: Episodes per held-out task when sampled; greedy decoding is evaluated once per task.
        validation_every: Updates between two validations (split "valid") for the curve; 0 for none.
        samples: Episodes per task for pass@k and for the fraction of tasks that are never solved; 0 for neither.
            pass@k is reported for k = 1, 4 and 16 as far as there are so many, by the unbiased estimator.
        pass_tasks: Held-out tasks for pass@k, the first so many of `tasks`.
        levels: Environments of the warm start's supervised stage by name; success on their held-out tasks before
            and after training shows what was forgotten. Empty for the environments of the study.
        level_tasks: Held-out tasks of each of these; 0 to leave forgetting out.
        controls: Policies to compare with the trained ones.
        export: Keep the final model of every run, as a folder `model` that `arboretum eval` takes.
    """

    name: str
    description: str
    model: str
    envs: Mapping[str, EnvConfig]
    recipes: Mapping[str, Mapping[str, object]]
    settings: Mapping[str, object] = field(default_factory=dict)
    dialogue: str = "no_think"
    seeds: int = 3
    tasks: int = 256
    repeats: int = 2
    validation_every: int = 10
    samples: int = 32
    pass_tasks: int = 128
    levels: Mapping[str, EnvConfig] = field(default_factory=dict)
    level_tasks: int = 128
    controls: Controls = field(default_factory=Controls)
    export: bool = True

    def __post_init__(self) -> None:
        for name, bound in (("seeds", 1), ("tasks", 2), ("repeats", 1), ("pass_tasks", 1)):
            at_least(name, getattr(self, name), bound)
        for name in ("validation_every", "samples", "level_tasks"):
            at_least(name, getattr(self, name), 0)

    @property
    def pass_k(self) -> tuple[int, ...]:
        """Numbers of attempts of which pass@k is reported, in ascending order."""
        return tuple(k for k in PASS_K if k <= self.samples)

    @property
    def warm_start_levels(self) -> Mapping[str, EnvConfig]:
        """Environments by name on which forgetting is measured; empty for none."""
        return (self.levels or self.envs) if self.level_tasks else {}

    @property
    def dialogue_config(self) -> DialogueConfig:
        """Dialogue between environments and model."""
        return DialogueConfig(self.dialogue)

    @property
    def first_recipe(self) -> Recipe:
        """Recipe listed first; its sampler sets the budgets of the warm start and the reference agents."""
        return self.recipe(next(iter(self.recipes)))

    def recipe(self, name: str) -> Recipe:
        """Return a recipe with the study's settings.

        Raises:
            ConfigurationError: Unknown recipe or setting, or a combination that cannot work.
        """
        return get_recipe(name).with_settings({**self.settings, **self.recipes[name]})

    def trials(self) -> Iterator[Trial]:
        """Yield all trials, seed by seed, so that a study stopped early has results of every kind."""
        for seed in range(self.seeds):
            for recipe in self.recipes:
                for env in self.envs:
                    yield Trial(env, recipe, seed)

    def supervised_trials(self, env: str) -> Iterator[Trial]:
        """Yield the runs of further supervised fine-tuning in an environment; none without this control."""
        if self.controls.supervised is not None:
            for seed in range(self.seeds):
                yield Trial(env, SUPERVISED, seed)

    def supervised_config(self, trial: Trial, out: Path, episodes: int, epochs: int = 1) -> SFTConfig:
        """Return the configuration of a run of further supervised fine-tuning.

        It imitates the expert on the levels of the warm start: the first of `levels` with the environment's id, or
            the
        environment itself where there is none.

        Args:
            trial: One of `supervised_trials`.
            out: Folder of the run.
            episodes: Expert episodes to train on.
            epochs: Passes over the episodes.
        """
        control, own = self.controls.supervised, self.envs[trial.env]
        assert control is not None, "the study has this control"
        sampler = self.first_recipe.sampler
        budgets = {
            name: getattr(sampler, name)
            for name in ("max_turns", "max_actions_per_turn", "max_actions")
            if getattr(sampler, name) is not None
        }
        return SFTConfig(
            next((level for level in self.levels.values() if level.id == own.id), own),
            self.model,
            out,
            trial.seed,
            DialogueConfig(self.dialogue, budgets),
            HardwareConfig(device="cpu", in_flight=128),
            ExpertConfig(control.noise, control.actions_per_turn, keep=control.keep),
            SFTSettings(episodes, epochs, control.batch, control.lr, control.warmup, control.weight_decay),
        )

    def config(self, trial: Trial, out: Path) -> TrainingConfig:
        """Return the training configuration of a trial.

        Args:
            trial: Trial of this study.
            out: Folder of the study.
        """
        return TrainingConfig(
            self.recipe(trial.recipe),
            self.envs[trial.env],
            self.model,
            out / trial.folder,
            trial.seed,
            self.dialogue_config,
            HardwareConfig(device="cpu", in_flight=128),
            ValidationConfig(every=self.validation_every, tasks=100),
            checkpoint_every=1000,
        )

    def check(self) -> None:
        """Raise if a trial cannot work, before anything is loaded.

        Raises:
            ConfigurationError: See `TrainingConfig.check`; or a control cannot work.
        """
        for trial in self.trials():
            if trial.seed == 0:
                self.config(trial, Path()).check()
        for level in self.levels.values():
            make_entry(level, "test").make()
        for env in self.envs:
            for trial in self.supervised_trials(env):
                if trial.seed == 0:
                    self._check_supervised(trial)

    def _check_supervised(self, trial: Trial) -> None:
        try:
            self.supervised_config(trial, Path(), episodes=1).check()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"controls.supervised: {error} Set controls.supervised to false to leave this control out."
            ) from None


@dataclass(frozen=True)
class _EnvItem:
    """Item of `envs` in a study's file."""

    name: str
    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyFile:
    """Shape of a study's file; the keys are those of `Study`."""

    name: str
    model: str
    envs: list[dict[str, Any]]
    recipes: dict[str, dict[str, Any] | None]
    description: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    dialogue: str = "no_think"
    seeds: int = 3
    tasks: int = 256
    repeats: int = 2
    validation_every: int = 10
    samples: int = 32
    pass_tasks: int = 128
    levels: list[dict[str, Any]] = field(default_factory=list)
    level_tasks: int = 128
    controls: dict[str, Any] = field(default_factory=dict)
    export: bool = True


def study_names() -> list[str]:
    """Return the names of the shipped studies."""
    return shipped_names("studies")


def load_study(name: str) -> Study:
    """Return a shipped study by name, or any study by the path of its file.

    Raises:
        ConfigurationError: No such study.
        DataError: The file cannot be read, or does not describe a study.
    """
    return parse_study(*read_definition("study", "studies", name))


def parse_study(text: str, source: str) -> Study:
    """Return the study that YAML text describes.

    Args:
        text: YAML.
        source: Name of the file, for messages.

    Raises:
        DataError: The text does not describe a study.
    """
    data = parse_mapping(text, source, "name, model, envs and recipes")
    file = convert_mapping(data, StudyFile, {}, source)
    for key in ("envs", "recipes"):
        if not getattr(file, key):
            raise DataError(source, f"`{key}` is empty.")
    settings = {key.name: getattr(file, key.name) for key in fields(StudyFile)}
    settings["envs"] = _parse_envs(file.envs, f"{source}, environment")
    settings["levels"] = _parse_envs(file.levels, f"{source}, level")
    settings["recipes"] = {name: dict(own or {}) for name, own in file.recipes.items()}
    try:
        settings["controls"] = parse_controls(file.controls, source)
        study = Study(**settings)
        for name in study.recipes:
            study.recipe(name)
    except ConfigurationError as error:
        raise DataError(source, f"does not describe a study ({error}).") from None
    return study


def _parse_envs(items: Sequence[Mapping[str, Any]], where: str) -> dict[str, EnvConfig]:
    """Return the environments of a list by name.

    Args:
        items: Mappings with the keys of `_EnvItem`.
        where: Place of an item, for messages, without its number.
    """
    parsed = [convert_mapping(item, _EnvItem, {}, f"{where} {number}") for number, item in enumerate(items, 1)]
    for item in parsed:
        if sum(item.name == other.name for other in parsed) > 1:
            raise DataError(
                where.partition(",")[0], f"two environments have the name {item.name!r}; names must differ."
            )
    return {item.name: EnvConfig(item.id, item.kwargs) for item in parsed}
