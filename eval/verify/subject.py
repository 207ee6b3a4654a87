"""The environment under verification, and the episodes of it that the checks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.registry import make_env
from ...envs.seeding import stable_seed
from .episodes import Choose, Recording, record
from .other_process import Elsewhere, replay_elsewhere

CHANCE_EPISODES = 1000
"""Number of episodes of each agent in environments with chance, where only a mean can be compared."""


class NoExpert(Exception):
    """The environment has no expert, or that has no plan."""


class Outcome(NamedTuple):
    """Outcome of an agent's episode.

    Attributes:
        task: Name of the task.
        success: True if the task was solved.
        value: What was reached, in the unit of `optimum_measure`.
        best: The most that can be reached from the start, in expectation.
    """

    task: str
    success: bool
    value: float
    best: float


class Subject:
    """An environment with its arguments, and a sample of its tasks.

    Args:
        env: Id of the environment, or path `module:Class`.
        kwargs: Its arguments.
        tasks: Number of tasks to sample, and of episodes to record.
        seed: Seed of the sample and of all episodes.

    Attributes:
        indices: Indices of the sampled tasks; all tasks if there are fewer.
        env: The environment, made once to look up what the class declares.

    Raises:
        ConfigurationError: The environment or an argument is unknown, or it cannot be made, or has no tasks.
    """

    def __init__(self, env: str, kwargs: Mapping[str, Any], tasks: int, seed: int) -> None:
        self.id = env
        self.kwargs = dict(kwargs)
        self.count = tasks
        self.seed = seed
        self.env = self.make()
        total = len(self.env.tasks)
        if total == 0:
            raise ConfigurationError(f"{env} has no tasks")
        draw = Random(stable_seed("verified tasks", seed))
        self.indices = sorted(draw.sample(range(total), min(tasks, total)))

    def make(self) -> TextEnv[Any]:
        """Return a new instance of the environment."""
        return make_env(self.id, **self.kwargs)

    def seed_of(self, number: int) -> int:
        """Return the seed of an episode."""
        return stable_seed("verified episode", number, self.seed) >> 33

    def task_of(self, number: int) -> str:
        """Return the task of an episode; the sampled tasks take turns."""
        return self.env.tasks[self.indices[number % len(self.indices)]]

    def rng(self, number: int) -> Random:
        """Return a random generator for the actions of an episode."""
        return Random(stable_seed("verified actions", number, self.seed))

    @cached_property
    def recordings(self) -> list[Recording]:
        """Episodes in new instances, which follow the expert's first plan for a while and are random afterwards.

        So they reach states that random actions alone do not, and those that the expert avoids.
        """
        return [
            record(self.make(), self.task_of(number), self.seed_of(number), self._mixed(number))
            for number in range(self.count)
        ]

    @cached_property
    def has_chance(self) -> bool:
        """True if the environment draws random numbers within an episode."""
        return any(recording.has_chance for recording in self.recordings)

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """The recorded episodes and the sampled tasks in another process."""
        return replay_elsewhere(self.id, self.kwargs, self.recordings, self.indices)

    @cached_property
    def expert(self) -> list[Outcome]:
        """Outcomes of the expert, which replans after every step."""
        return self._outcomes(_follow_expert)

    @cached_property
    def random(self) -> list[Outcome]:
        """Outcomes of uniformly random actions."""
        return self._outcomes(lambda rng: lambda env: env.random_action(rng))

    @cached_property
    def idle(self) -> list[Outcome]:
        """Outcomes of an agent that does nothing: its actions are empty."""
        return self._outcomes(lambda rng: lambda env: "")

    def _mixed(self, number: int) -> Choose:
        rng = self.rng(number)
        plan: list[str] | None = None

        def choose(env: TextEnv[Any]) -> str:
            nonlocal plan
            if plan is None:
                plan = env.expert_actions() or []
                del plan[rng.randint(0, len(plan)) :]
            return plan.pop(0) if plan else env.random_action(rng)

        return choose

    def _outcomes(self, agent: Callable[[Random], Choose]) -> list[Outcome]:
        episodes = max(self.count, CHANCE_EPISODES) if self.has_chance else self.count
        env = self.make()
        outcomes = []
        for number in range(episodes):
            task, seed = self.task_of(number), self.seed_of(number)
            choose = agent(self.rng(number))
            best = self._maximum(env, task, seed)
            success = bool(dict(record(env, task, seed, choose).steps[-1].info)["success"])
            end = env.optimum()
            outcomes.append(Outcome(task, success, float(success) if end is None else end.value, best))
        return outcomes

    def _maximum(self, env: TextEnv[Any], task: str, seed: int) -> float:
        """Return the most that a task allows in expectation: success, unless chance or a score limits it."""
        if not self.has_chance and env.optimum_measure == "probability of success":
            return 1.0
        env.reset(seed=seed, options={"task": task})
        optimum = env.optimum()
        return 1.0 if optimum is None else optimum.value


def _follow_expert(rng: Random) -> Choose:
    def choose(env: TextEnv[Any]) -> str:
        plan = env.expert_actions()
        if plan is None and env.steps == 0:
            raise NoExpert(f"expert_actions() has no plan at the beginning of task {env.task}")
        return plan[0] if plan else env.random_action(rng)

    return choose
