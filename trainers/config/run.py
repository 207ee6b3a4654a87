"""A training run as a person asks for it, checked before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...envs.checks import at_least, positive
from ...envs.errors import ConfigurationError, DataError
from ...envs.files import write_atomic
from ...envs.tasks import GeneratedTasks
from ..algorithms.recipe import Chains, Recipe
from ..algorithms.schedules import Linear
from ..checkpoints.store import Checkpoints
from ..monitor import Monitor
from ..sampling.sampler import dialogue_of, entry_of, episode_limit
from .settings import Expert, Hardware, Speech, Validation, World

FILE = "run.json"
MODEL = "model"
"""What a run's result is called in its folder."""


@dataclass(frozen=True)
class Run:
    """Everything that decides a training run.

    Attributes:
        recipe: the algorithm.
        world: where the policy learns.
        model: a folder or a name on the Hugging Face hub.
        out: the run's folder.
        seed: of tasks, luck and the order of learning.
        speech: how the world speaks to the model.
        hardware: how the model is held.
        validation: how the policy is looked at.
        monitor: what counts as a collapse.
        checkpoint_every: updates between two checkpoints; the last update has one in any case.
        trackers: of Accelerate, such as "tensorboard" or "wandb", beside the run's own metrics.jsonl.
    """

    recipe: Recipe
    world: World
    model: str
    out: Path
    seed: int = 0
    speech: Speech = field(default_factory=Speech)
    hardware: Hardware = field(default_factory=Hardware)
    validation: Validation = field(default_factory=Validation)
    monitor: Monitor = field(default_factory=Monitor)
    checkpoint_every: int = 10
    trackers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        at_least("checkpoint_every", self.checkpoint_every, 1)

    def check(self) -> None:
        """Raise if the run cannot work, as far as that can be told without the model.

        Raises:
            ConfigurationError: unknown world, dialogue or setting; too few tasks; settings at odds.
        """
        recipe = self.recipe
        dialogue = dialogue_of(self.speech, recipe.sampler)
        env = entry_of(self.world, self.world.split).make()
        if len(env.tasks) == 0:
            raise ConfigurationError(f"{self.world.id} has no tasks in split {self.world.split!r}.")
        if self.validation.every:
            held_out = entry_of(self.world, self.validation.split, self.validation.tasks)
            other = held_out.make()
            held_out.task_names(other)
            # Of an endless split training walks through tasks of its own, unless it was given the first few.
            endless = isinstance(env.tasks, GeneratedTasks) and self.world.tasks is None
            if self.world.split is None or (self.validation.split in (None, self.world.split) and not endless):
                raise ConfigurationError(
                    f"the policy would be judged on what it learnt from: splits {self.world.split!r} and "
                    f"{self.validation.split!r} share tasks; name others (split, validation.split), or set "
                    "validation.every = 0."
                )
        if self.hardware.engine == "vllm" and find_spec("vllm") is None:
            raise ConfigurationError(
                'engine = vllm needs the extra "vllm": pip install "arboretum[vllm]"; or take transformers.'
            )
        limit = episode_limit(dialogue, recipe.sampler, env, None)
        if recipe.overlong.coef and recipe.overlong.max_tokens is None and limit is None:
            raise ConfigurationError(
                f"{recipe.name}: the overlong penalty needs a limit, but neither {self.world.id} nor the dialogue "
                "has one; set overlong.max_tokens, sampler.max_turns or overlong.coef = 0."
            )

    def claim(self, *, resume: bool) -> None:
        """Make the folder this run's own.

        Raises:
            ConfigurationError: it holds another run, or this one and `resume` was not asked for.
            DataError: what it holds cannot be read.
        """
        deciding = ("recipe", "world", "model", "seed", "speech", "validation", "hardware")
        _claim(self.out, plain(self), deciding, resume=resume)


@dataclass(frozen=True)
class Lesson:
    """Everything that decides a warm start on expert episodes.

    Attributes:
        world, model, out, seed, speech, hardware: see `Run`.
        expert: how well the expert plays.
        episodes: how many to learn from.
        epochs: how often each is learnt from.
        batch: episodes a step.
        lr: the highest learning rate; it rises over `warmup` steps and falls to 0 along a cosine.
        weight_decay: of AdamW.
        checkpoint_every: steps between two checkpoints; they are deleted when the model is written.
    """

    world: World
    model: str
    out: Path
    seed: int = 0
    speech: Speech = field(default_factory=Speech)
    hardware: Hardware = field(default_factory=Hardware)
    expert: Expert = field(default_factory=Expert)
    episodes: int = 1024
    epochs: int = 2
    batch: int = 32
    lr: float = 1e-5
    warmup: int = 10
    weight_decay: float = 0.0
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        for name in ("episodes", "epochs", "batch", "checkpoint_every"):
            at_least(name, getattr(self, name), 1)
        for name in ("warmup", "weight_decay"):
            at_least(name, getattr(self, name), 0)
        positive("lr", self.lr)

    @property
    def chains(self) -> Chains:
        """Sampling settings that leave the dialogue's own alone."""
        return Chains()

    def check(self) -> None:
        """Raise if it cannot work, as far as that can be told without the model.

        Raises:
            ConfigurationError: unknown world, dialogue or setting, or nothing to imitate.
        """
        dialogue_of(self.speech, self.chains)
        env = entry_of(self.world, self.world.split).make()
        env.reset(seed=0)
        if env.expert_actions() is None:
            raise ConfigurationError(
                f"{self.world.id} has no expert for {env.task}, so there is nothing to imitate."
            )

    def claim(self, *, resume: bool) -> None:
        """Make the folder this warm start's own; see `Run.claim`."""
        mine = plain(self)
        deciding = tuple(name for name in mine if name not in ("out", "checkpoint_every"))
        _claim(self.out, mine, deciding, resume=resume)


def _claim(folder: Path, mine: dict[str, Any], deciding: Sequence[str], *, resume: bool) -> None:
    """Write a run's settings into its folder, unless another run lies there."""
    there = settings_in(folder)
    begun = Checkpoints(folder / "checkpoints").last is not None
    if begun or (folder / MODEL).exists():
        if there is None and not begun:
            raise ConfigurationError(f"{folder}: holds a model that is no run's; choose another --out.")
        if there is not None and ("recipe" in there) != ("recipe" in mine):
            raise ConfigurationError(f"{folder}: holds another kind of run; choose another --out.")
        if not resume:
            raise ConfigurationError(
                f"{folder}: holds a training run; say --resume to continue it, or choose another --out."
            )
        for name in deciding:
            # Lost settings can be told again, see `settings_in`.
            before, now = _deciding(name, (there or mine).get(name)), _deciding(name, mine[name])
            if before != now:
                raise ConfigurationError(
                    f"{folder}: was begun with another {name} ({_difference(before, now)}); resume it with "
                    "the same one, or choose another --out."
                )
    if there == mine:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / FILE, json.dumps(mine, indent=2) + "\n")
    except OSError as error:
        raise ConfigurationError(f"{folder}: cannot be written to ({error.strerror}).") from None


def settings_in(folder: Path) -> dict[str, Any] | None:
    """The settings of the run in a folder, as `plain` made them; None where none has begun.

    Raises:
        DataError: they cannot be read.
    """
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        found = str(error)
    if not isinstance(found, dict):
        raise DataError(
            path,
            f"holds no settings of a run ({found}). Choose another --out; or delete it and say --resume with the "
            "settings that the run was begun with, which goes on from its last checkpoint.",
        )
    return found


def _deciding(name: str, value: Any) -> Any:
    """The part of a setting that must not change; a run may be prolonged, and moved to other hardware."""
    if name == "hardware" and isinstance(value, dict):
        return {"lora": value.get("lora")}
    if name == "recipe" and isinstance(value, dict):
        optimisation = value.get("optimisation")
        if isinstance(optimisation, dict):
            return {**value, "optimisation": {k: v for k, v in optimisation.items() if k != "updates"}}
    return value


def _difference(before: Any, now: Any, path: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                return _difference(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    return f"{path or 'it'} was {before!r} and is {now!r}"


def plain(value: Any) -> Any:
    """Settings as plain data for JSON; a part that has a name says which part it is."""
    if is_dataclass(value) and not isinstance(value, type):
        data = {f.name: plain(getattr(value, f.name)) for f in fields(value)}
        kind = getattr(value, "name", None)
        return data if kind is None or isinstance(value, Linear) else {"name": kind, **data}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Plain settings by their path, such as {"recipe.sampler.rollouts": 16}; lists stay whole."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{path}.{key}" if path else str(key))
    return found
