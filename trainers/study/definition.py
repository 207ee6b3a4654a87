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

Every key is a field of `Study`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...envs.checks import at_least
from ...envs.errors import ConfigurationError, DataError
from ...eval.yaml_files import convert_mapping, parse_mapping, read_definition, shipped_names
from ..algorithms.recipe import Recipe
from ..algorithms.recipes import get_recipe
from ..config.run import TrainingConfig
from ..config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig


@dataclass(frozen=True)
class Trial:
    """One training run of a study.

    Attributes:
        env, recipe: Names of environment and recipe in the study.
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
        return f"{self.env.lower().replace(' ', '-')}/{self.recipe}-{self.seed}"


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

    def __post_init__(self) -> None:
        for name, bound in (("seeds", 1), ("tasks", 2), ("repeats", 1), ("validation_every", 0)):
            at_least(name, getattr(self, name), bound)

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
            ConfigurationError: See `TrainingConfig.check`.
        """
        for trial in self.trials():
            if trial.seed == 0:
                self.config(trial, Path()).check()


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
    items = [
        convert_mapping(item, _EnvItem, {}, f"{source}, environment {number}")
        for number, item in enumerate(file.envs, 1)
    ]
    settings = {key.name: getattr(file, key.name) for key in fields(StudyFile)}
    settings["envs"] = {item.name: EnvConfig(item.id, item.kwargs) for item in items}
    settings["recipes"] = {name: dict(own or {}) for name, own in file.recipes.items()}
    try:
        study = Study(**settings)
        for name in study.recipes:
            study.recipe(name)
    except ConfigurationError as error:
        raise DataError(source, f"does not describe a study ({error}).") from None
    return study
