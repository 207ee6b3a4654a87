"""Studies: recipes compared in several environments from one initial model. A study is a small YAML file.

    name: mine
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
      ppo-large: {recipe: ppo, sampler.prompts: 64}      # a variant of a recipe, under a name of its own
    seeds: 3
    tasks: 256
    samples: 32                            # for pass@k, on the first pass_tasks tasks
    levels:                                # on which the warm start was trained, to measure forgetting
      - {name: lake, id: TextFrozenLake-v0, kwargs: {observation_format: grid, success_rate: 1.0}}
    controls:
      temperatures: [0.3, 0.5, 0.7]
      supervised: {lr: 5.0e-4, batch: 64}
    baseline: grpo                         # recipe that the others are compared with
    pairs: [[ppo-large, ppo]]              # further comparisons, of the first with the second
    tuning:                                # of each recipe in each environment, on other seeds
      values: [1.0e-4, 3.0e-4, 1.0e-3]

Every key is a field of `Study`; `parsing` reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...agents.engines.model_check import check_model
from ...agents.reference import has_searching_expert
from ...envs.checks import at_least, one_of
from ...envs.errors import ConfigurationError
from ..algorithms.recipe import Recipe
from ..algorithms.recipes import get_recipe
from ..config.resolve import held_out_tasks, make_entry
from ..config.run import SFTConfig, TrainingConfig
from ..config.settings import (
    DialogueConfig,
    EnvConfig,
    ExpertConfig,
    HardwareConfig,
    SFTSettings,
    ValidationConfig,
)
from .controls import Controls
from .limits import check_limits
from .tuning import FIRST_TUNING_SEED, Tuning

SUPERVISED = "supervised"
"""Name of the control of further supervised fine-tuning, in the place of a recipe's."""
TEMPERATURE = 1.0
"""Sampling temperature of validation and evaluation, at which all recipes train by default."""
RECIPE = "recipe"
"""Key that names the recipe of a variant, beside its settings."""
HARDWARE = HardwareConfig(device="cpu", in_flight=128)
"""Hardware of a study that does not say otherwise: runs side by side, each on one thread."""
PASS_K = (1, 4, 16)
"""Numbers of attempts k of which pass@k is reported, as far as there are so many samples."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ENV_NAME = re.compile(r'[^.\\/:*?"<>|][^\\/:*?"<>|]*')


@dataclass(frozen=True)
class Trial:
    """One training run of a study.

    Attributes:
        env: Name of the environment in the study.
        recipe: Name of the recipe in the study, or `SUPERVISED`.
        seed: Seed of the run.
        candidate: Value of the tuned setting, in a run that tunes it; None in a run whose policy is evaluated.
    """

    env: str
    recipe: str
    seed: int
    candidate: float | None = None

    @property
    def name(self) -> str:
        """Name of the trial in messages."""
        tuned = "" if self.candidate is None else f" with {self.candidate:g}"
        return f"{self.recipe}{tuned} on {self.env}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Folder of the trial below the study's folder."""
        if self.candidate is not None:
            return f"{env_folder(self.env)}/tuning/{self.recipe}-{self.candidate:g}-{self.seed}"
        return f"{env_folder(self.env)}/{self.recipe}-{self.seed}"


def env_folder(env: str) -> str:
    """Return the folder of an environment below the study's folder."""
    return env.lower().replace(" ", "-")


@dataclass(frozen=True)
class StudyLevel:
    """Environment on which a warm start was trained.

    Attributes:
        config: Environment and its options.
        model: Warm start; None for the study's.
        test_split: Split of the held-out tasks.
    """

    config: EnvConfig
    model: str | None = None
    test_split: str = "test"


@dataclass(frozen=True)
class StudyEnv(StudyLevel):
    """Environment of a study, and what differs there from the rest of the study.

    Attributes:
        config: Environment and its options.
        model: Warm start; None for the study's.
        test_split: Split of the held-out tasks.
        validation_split: Split of the validation tasks.
        dialogue: Name of the dialogue; None for the study's.
        dialogue_settings: Settings of the dialogue; they override those of the recipe's sampler. The value None
            lifts a limit.
        settings: Settings by path of every recipe, which override the study's; those of the recipe override them.
    """

    validation_split: str = "valid"
    dialogue: str | None = None
    dialogue_settings: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """Comparison of recipes that start from one model.

    Attributes:
        name: Name of the study.
        description: One line that describes it.
        model: Initial model of every trial, the warm start, where an environment has none of its own.
        model_command: Command that makes the warm start, for the error message where it is missing;
            "{precision}" stands for the precision of `hardware`.
        envs: Environments by name.
        recipes: Settings by path that are specific to a recipe, by the recipe's name. With the key `recipe`, which
            names the recipe to run, the name is free: for variants of one recipe.
        settings: Settings by path of every recipe; those of `recipes` override them.
        dialogue: Name of the dialogue between environments and model.
        seeds: Runs of each recipe in each environment, with the seeds 0, 1, …
        tasks: Held-out tasks on which every policy and the warm start are evaluated.
        repeats: Episodes per held-out task when sampled; greedy decoding is evaluated once per task.
        validation_every: Updates between two validations (split "valid") for the curve; 0 for none.
        validation_tasks: Tasks of a validation.
        samples: Episodes per task for pass@k and for the fraction of tasks that are never solved; 0 for neither.
            pass@k is reported for k = 1, 4 and 16 as far as there are so many, by the unbiased estimator.
        pass_tasks: Held-out tasks for pass@k, the first so many of `tasks`.
        levels: Environments of the warm start's supervised stage by name; success on their held-out tasks before
            and after training shows what was forgotten. Empty for the environments of the study.
        level_tasks: Held-out tasks of each of these, or all where there are fewer; 0 to leave forgetting out.
        controls: Policies to compare with the trained ones.
        baseline: Recipe that the others are compared with, run by run; empty for no such comparison.
        pairs: Pairs of recipes, of which the first is compared with the second, run by run, in a table of its own.
        tuning: Choice of a setting for each recipe in each environment before its runs; None for none.
        collapse: Report whether and when runs collapsed, the alarms of the monitor, and what changed on the way.
        hardware: Device, precision and memory of all training runs, by the names of `HardwareConfig`. Evaluations
            have its device and precision.
        export: Keep the final model of every run, as a folder `model` that `arboretum eval` takes.
    """

    name: str
    description: str
    model: str
    envs: Mapping[str, StudyEnv]
    recipes: Mapping[str, Mapping[str, object]]
    settings: Mapping[str, object] = field(default_factory=dict)
    dialogue: str = "no_think"
    model_command: str = ""
    seeds: int = 3
    tasks: int = 256
    repeats: int = 2
    validation_every: int = 10
    validation_tasks: int = 100
    samples: int = 32
    pass_tasks: int = 128
    levels: Mapping[str, StudyLevel] = field(default_factory=dict)
    level_tasks: int = 128
    controls: Controls = field(default_factory=Controls)
    baseline: str = ""
    pairs: Sequence[tuple[str, str]] = ()
    tuning: Tuning | None = None
    collapse: bool = False
    hardware: HardwareConfig = HARDWARE
    export: bool = True

    def __post_init__(self) -> None:
        at_least("tasks", self.tasks, 2)
        for name in ("seeds", "repeats", "pass_tasks", "validation_tasks"):
            at_least(name, getattr(self, name), 1)
        for name in ("validation_every", "samples", "level_tasks"):
            at_least(name, getattr(self, name), 0)
        for name in self.recipes:  # They name folders.
            if not _NAME.fullmatch(name) or name == SUPERVISED:
                raise ConfigurationError(
                    f"{name!r} cannot be the name of a recipe in a study; take letters, digits, '-' and '_', and "
                    f"another name than {SUPERVISED!r}."
                )
        self._check_env_names()
        self.hardware.check()
        if self.baseline:
            one_of("baseline", self.baseline, tuple(self.recipes))
        for pair in self.pairs:
            for name in pair:
                one_of("pairs", name, tuple(self.recipes))
        for first, second in self.pairs:
            if first == second:
                raise ConfigurationError(f"pairs compares {first!r} with itself; name two recipes.")
            if sum({first, second} == set(pair) for pair in self.pairs) > 1:
                raise ConfigurationError(f"pairs compares {first!r} and {second!r} twice; leave one pair out.")
        if self.tuning is not None:
            self.tuning.check()
        if self.tuning is not None and not self.validation_every:
            raise ConfigurationError(
                "tuning chooses values by success on validation tasks, but validation_every is 0; set it to 1 or "
                "more."
            )

    def _check_env_names(self) -> None:
        """Raise unless the names of the environments make folders, each a folder of its own."""
        folders: dict[str, str] = {}
        for name in self.envs:
            if not _ENV_NAME.fullmatch(name):
                raise ConfigurationError(
                    f"{name!r} cannot be the name of an environment in a study, which names a folder; take "
                    "letters and digits."
                )
            other = folders.setdefault(env_folder(name), name)
            if other != name:
                raise ConfigurationError(
                    f"the environments {other!r} and {name!r} would have the same folder, {env_folder(name)}; "
                    "rename one of them."
                )

    @property
    def pass_k(self) -> tuple[int, ...]:
        """Numbers of attempts of which pass@k is reported, in ascending order."""
        return tuple(k for k in PASS_K if k <= self.samples)

    def check_models(self, envs: Iterable[str]) -> None:
        """Raise if the warm start of an environment, or the model to compare with, cannot be found.

        Args:
            envs: Names of environments.
        """
        for model in dict.fromkeys(map(self.model_of, envs)):
            try:
                check_model(model)
            except ConfigurationError as error:
                if not self.model_command:
                    raise
                command = self.model_command.replace("{precision}", self.hardware.precision)
                raise ConfigurationError(f"{error} Make the study's warm start with: {command}") from None
        if self.controls.model is not None:
            check_model(self.controls.model)

    def model_of(self, env: str) -> str:
        """Return the warm start in an environment."""
        return self.envs[env].model or self.model

    def dialogue_of(self, env: str) -> DialogueConfig:
        """Return the dialogue between an environment and the model."""
        own = self.envs[env]
        return DialogueConfig(own.dialogue or self.dialogue, own.dialogue_settings)

    def levels_of(self, env: str) -> Mapping[str, StudyLevel]:
        """Return the levels by name on which forgetting of the warm start is measured; empty for none."""
        if not self.level_tasks:
            return {}
        model = self.model_of(env)

        def of_model(levels: Mapping[str, StudyLevel]) -> dict[str, StudyLevel]:
            return {name: level for name, level in levels.items() if (level.model or self.model) == model}

        return of_model(self.levels) or of_model(self.envs)

    def first_recipe(self, env: str) -> Recipe:
        """Return the recipe listed first; its sampler sets the budgets of warm start and reference agents."""
        return self.recipe(next(iter(self.recipes)), env)

    def recipe(self, name: str, env: str) -> Recipe:
        """Return a recipe with the study's settings in an environment.

        Raises:
            ConfigurationError: Unknown recipe or setting, or a combination that cannot work.
        """
        own = dict(self.recipes[name])
        base = get_recipe(str(own.pop(RECIPE, name)))
        return base.with_settings({**self.settings, **self.envs[env].settings, **own})

    def trials(self) -> Iterator[Trial]:
        """Yield all trials, seed by seed, so that a study stopped early has results of every kind."""
        for seed in range(self.seeds):
            for recipe in self.recipes:
                for env in self.envs:
                    yield Trial(env, recipe, seed)

    def tuning_trials(self) -> Iterator[Trial]:
        """Yield the runs that tune a setting, with seeds that no other run has; none without tuning."""
        if self.tuning is None:
            return
        for seed in range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.tuning.seeds):
            for recipe in self.recipes:
                for env in self.envs:
                    for value in self.tuning.values:
                        yield Trial(env, recipe, seed, value)

    def supervised_trials(self, env: str) -> Iterator[Trial]:
        """Yield the runs of further supervised fine-tuning in an environment; none without this control."""
        if self.controls.supervised is not None:
            for seed in range(self.seeds):
                yield Trial(env, SUPERVISED, seed)

    def all_runs(self) -> Iterator[Trial]:
        """Yield all runs: those that tune a setting, those of recipes, and those of the supervised control."""
        yield from self.tuning_trials()
        yield from self.trials()
        for env in self.envs:
            yield from self.supervised_trials(env)

    def supervised_config(self, trial: Trial, out: Path, episodes: int, epochs: int = 1) -> SFTConfig:
        """Return the configuration of a run of further supervised fine-tuning.

        It imitates the expert in the environment itself, or with `controls.supervised.source` "levels" on the
        levels of the warm start: the first of `levels` with the environment's id. Where the environment hides
        something, the expert is the one that searches, since knowledge of what is hidden cannot be imitated.

        Args:
            trial: One of `supervised_trials`.
            out: Folder of the run.
            episodes: Expert episodes to train on.
            epochs: Passes over the episodes.
        """
        control, own = self.controls.supervised, self.envs[trial.env].config
        assert control is not None, "the study has this control"
        sampler, dialogue = self.first_recipe(trial.env).sampler, self.dialogue_of(trial.env)
        if control.source == "levels":
            levels = [level.config for level in self.levels_of(trial.env).values()]
            own = next((level for level in levels if level.id == own.id), own)
        budgets = {
            name: getattr(sampler, name)
            for name in ("max_turns", "max_actions_per_turn", "max_actions")
            if getattr(sampler, name) is not None
        }
        return SFTConfig(
            own,
            self.model_of(trial.env),
            out,
            trial.seed,
            replace(dialogue, settings={**budgets, **dialogue.settings}),
            self.hardware,
            ExpertConfig(
                control.noise,
                control.actions_per_turn,
                keep=control.keep,
                searching=has_searching_expert(make_entry(own, own.split).make()),
            ),
            SFTSettings(episodes, epochs, control.batch, control.lr, control.warmup, control.weight_decay),
        )

    def config(self, trial: Trial, out: Path, value: float | None = None) -> TrainingConfig:
        """Return the training configuration of a trial.

        Args:
            trial: Trial of this study.
            out: Folder of the study.
            value: Chosen value of the tuned setting; None leaves the setting as it is.
        """
        recipe = self.recipe(trial.recipe, trial.env)
        if self.tuning is not None:
            tokens = recipe.optimization.max_tokens
            recipe = recipe.with_settings(self.tuning.settings_of(tokens, trial.candidate, value))
        # Curves of recipes at different temperatures would show their decoding, not their learning.
        is_at_own = recipe.sampler.final_temperature == TEMPERATURE
        return TrainingConfig(
            recipe,
            self.envs[trial.env].config,
            self.model_of(trial.env),
            out / trial.folder,
            trial.seed,
            self.dialogue_of(trial.env),
            self.hardware,
            ValidationConfig(
                every=self.validation_every,
                tasks=self.validation_tasks,
                split=self.envs[trial.env].validation_split,
                temperature=None if is_at_own else TEMPERATURE,
            ),
            checkpoint_every=1000,
        )

    def check(self) -> None:
        """Raise if a trial cannot work, before anything is loaded.

        Raises:
            ConfigurationError: See `TrainingConfig.check`; or a control cannot work.
        """
        for name, level in self.levels.items():
            with _named(f"level {name!r}"):
                make_entry(level.config, level.test_split).make()
        for name, one in self.envs.items():
            with _named(f"environment {name!r}"):
                entry = make_entry(one.config, one.test_split, self.tasks)
                entry.task_names(entry.make())
                check_limits(self, name)
                if self.controls.temperatures:
                    self._check_tuning_tasks(one)
        for trial in self.trials():
            if trial.seed == 0:
                self.config(trial, Path()).check()
        for trial in self.tuning_trials():
            if trial.seed == FIRST_TUNING_SEED:
                self.config(trial, Path()).check()
        for env in self.envs:
            for trial in self.supervised_trials(env):
                if trial.seed == 0:
                    self._check_supervised(trial)

    def _check_tuning_tasks(self, env: StudyEnv) -> None:
        entry = make_entry(env.config, env.validation_split, self.controls.tuning_tasks)
        try:
            held_out_tasks(entry, entry.make())
        except ConfigurationError as error:
            raise ConfigurationError(
                f"controls.tuning_tasks: {error} Set controls.temperatures to [] to leave this control out."
            ) from None

    def _check_supervised(self, trial: Trial) -> None:
        try:
            self.supervised_config(trial, Path(), episodes=1).check()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"controls.supervised: {error} Set controls.supervised to false to leave this control out."
            ) from None


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Put the name of a part of the study before the error of its check."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from None
