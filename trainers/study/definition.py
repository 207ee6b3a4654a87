"""What a study compares. A study is a small YAML file.

    name: ragen-mini
    description: one line
    model: seed
    dialogue: no_think
    worlds:
      - name: FrozenLake
        id: TextFrozenLake-v0
        kwargs: {observation_format: grid}
    settings: {sampler.prompts: 32}          # of every recipe, by path
    recipes:
      grpo: {}                               # and of one
      ppo: {critic.lr: 1.0e-3}
    seeds: 3
    tasks: 256

Every key is a field of `Study`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

from ...assets import asset
from ...envs.checks import at_least
from ...envs.errors import ConfigurationError, DataError, unknown_name
from ..algorithms.recipe import Recipe
from ..algorithms.recipes import recipe_named
from ..config.run import Run
from ..config.settings import Hardware, Speech, Validation, World


@dataclass(frozen=True)
class Trial:
    """One training run of a study.

    Attributes:
        world, recipe: names in the study.
        seed: of the run.
    """

    world: str
    recipe: str
    seed: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.recipe} on {self.world}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Where it lies, below the study's folder."""
        return f"{self.world.lower().replace(' ', '-')}/{self.recipe}-{self.seed}"


@dataclass(frozen=True)
class Study:
    """A comparison of recipes that start from one model.

    Attributes:
        name, description: for people.
        model: the warm start.
        worlds: by name.
        recipes: by name in `recipes.RECIPES`, with its settings by path.
        settings: of every recipe; those of a recipe go over them.
        dialogue: how the worlds speak.
        seeds: runs of each recipe in each world, with the seeds 0, 1, …
        tasks: held-out tasks (split "test") that every policy is measured on, and the warm start too.
        repeats: plays of each task when sampled from. Greedy play is measured once a task.
        watch: updates between two looks at held-out tasks of the split "valid", for the curve; 0 for none.
    """

    name: str
    description: str
    model: str
    worlds: Mapping[str, World]
    recipes: Mapping[str, Mapping[str, object]]
    settings: Mapping[str, object] = field(default_factory=dict)
    dialogue: str = "no_think"
    seeds: int = 3
    tasks: int = 256
    repeats: int = 2
    watch: int = 10

    def __post_init__(self) -> None:
        for name, bound in (("seeds", 1), ("tasks", 2), ("repeats", 1), ("watch", 0)):
            at_least(name, getattr(self, name), bound)

    @property
    def speech(self) -> Speech:
        """How the worlds speak."""
        return Speech(self.dialogue)

    def recipe(self, name: str) -> Recipe:
        """A recipe with the study's settings.

        Raises:
            ConfigurationError: it cannot work.
        """
        return recipe_named(name).changed({**self.settings, **self.recipes[name]})

    def trials(self) -> Iterator[Trial]:
        """All runs, seed by seed, so that a study that is stopped early has something of everything."""
        for seed in range(self.seeds):
            for recipe in self.recipes:
                for world in self.worlds:
                    yield Trial(world, recipe, seed)

    def run(self, trial: Trial, out: Path) -> Run:
        """A trial as a training run.

        Args:
            trial: which.
            out: the study's folder.
        """
        return Run(
            self.recipe(trial.recipe),
            self.worlds[trial.world],
            self.model,
            out / trial.folder,
            trial.seed,
            self.speech,
            Hardware(device="cpu", in_flight=128),
            Validation(every=self.watch, tasks=100),
            checkpoint_every=1000,
        )

    def check(self) -> None:
        """Raise if a trial cannot work, before anything is loaded.

        Raises:
            ConfigurationError: which, and why.
        """
        for trial in self.trials():
            if trial.seed == 0:
                self.run(trial, Path()).check()


def study_names() -> list[str]:
    """The shipped studies."""
    return sorted(path.stem for path in asset("studies").glob("*.yaml"))


def load_study(name: str) -> Study:
    """A shipped study by name, or any study by the path of its file.

    Raises:
        ConfigurationError: no such study.
        DataError: a file that does not describe one.
    """
    if name in study_names():
        return parse_study(asset(f"studies/{name}.yaml").read_text(encoding="utf-8"), f"{name}.yaml")
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise unknown_name("study", name, [*study_names(), "or the path of a .yaml file"])
    try:
        return parse_study(path.read_text(encoding="utf-8"), name)
    except UnicodeDecodeError:
        raise DataError(path, "is not UTF-8 text.") from None
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}.") from None


def parse_study(text: str, where: str) -> Study:
    """Read a study from YAML.

    Raises:
        DataError: with what was expected.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DataError(where, f"is not YAML ({getattr(error, 'problem', error)}).") from None
    if not isinstance(data, dict):
        raise DataError(where, "expected a mapping with name, model, worlds and recipes.")
    known = {setting.name for setting in fields(Study)}
    for key in data:
        if key not in known:
            raise DataError(where, str(unknown_name("key", key, sorted(known))))
    for key in ("name", "model", "worlds", "recipes"):
        if not data.get(key):
            raise DataError(where, f"`{key}` is missing.")
    try:
        worlds = {item["name"]: World(item["id"], item.get("kwargs") or {}) for item in data.pop("worlds")}
        recipes = {name: dict(settings or {}) for name, settings in data.pop("recipes").items()}
        study = Study(worlds=worlds, recipes=recipes, **{"description": "", **data})
        for name in recipes:
            study.recipe(name)
    except (KeyError, TypeError, AttributeError, ConfigurationError) as error:
        raise DataError(where, f"does not describe a study ({error}).") from None
    return study


__all__ = ["Study", "Trial", "load_study", "parse_study", "study_names"]
