"""Sampling episodes with the current policy, for training and for validation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...agents.engines.base import Sampling
from ...agents.episode import Episode
from ...agents.forks import Keep
from ...agents.play import Job, play
from ...envs.core import TextEnv
from ...eval.statistics import Interval, rate
from ...eval.suite import Entry, Suite
from ..algorithms.samplers import Sampler
from ..config.resolve import held_out_tasks, make_entry, resolve_dialogue
from ..config.settings import DialogueConfig, EnvConfig, ValidationConfig
from ..learning.distributed import gather_lists
from ..state import Activity
from .failures import Failures, engine_failures
from .policy_agent import PolicyAgent, ReplyCounts

if TYPE_CHECKING:
    from accelerate import Accelerator

    from .policy_engine import PolicyEngine

SAMPLE_EPISODES = 6
"""Episodes of a validation that are kept for people to read."""


@dataclass(frozen=True)
class ValidationResult:
    """Result of one validation.

    Attributes:
        success: Rate of solved tasks, with its 95 % interval. An episode that ended with an error is unsolved.
        mean_return: Mean undiscounted return; of an episode that ended with an error, up to it.
        failures: Episodes that ended with an error.
        samples: Some of the episodes, of the same tasks in every validation.
    """

    success: Interval
    mean_return: float
    failures: Failures
    samples: tuple[Episode, ...] = ()


class RolloutSampler:
    """Rolls out episodes with the current policy; several processes divide them among themselves.

    Args:
        engine: Engine that samples with the current weights.
        dialogue: Dialogue between environment and model.
        sampler: Sampler of the recipe.
        in_flight: Episodes to roll out at the same time, in each process.
        accelerator: Accelerate's view of the processes.

    Attributes:
        dialogue: Dialogue between environment and model.
        engine: Engine that samples replies.
    """

    def __init__(
        self,
        engine: PolicyEngine,
        dialogue: DialogueConfig,
        sampler: Sampler,
        *,
        in_flight: int,
        accelerator: Accelerator,
    ) -> None:
        self.dialogue = resolve_dialogue(dialogue, sampler)
        self.engine = engine.engine
        self._policy_engine = engine
        self._agent = PolicyAgent(
            "policy",
            self.engine,
            self.dialogue,
            Sampling(top_p=sampler.top_p, max_tokens=sampler.reply_tokens),
            template=dialogue.template,
        )
        self._in_flight = in_flight
        self._accelerator = accelerator
        self._envs: dict[str, list[TextEnv[Any]]] = {}

    @property
    def activity(self) -> Activity:
        """Phase in progress, in which finished episodes and turns are counted."""
        return self._agent.activity

    @activity.setter
    def activity(self, activity: Activity) -> None:
        self._agent.activity = activity

    def take_reply_counts(self) -> ReplyCounts:
        """Return the number of replies of all processes since the last call; a collective operation."""
        return ReplyCounts.add_up(gather_lists(self._accelerator, [self._agent.take_counts()]))

    def roll_out(
        self,
        entry: Entry,
        jobs: Sequence[Job],
        temperature: float,
        *,
        keep: Collection[Keep] = (),
        top_p: float | None = None,
        phase: str = "rolling out",
        samples: Collection[int] = (),
    ) -> list[Episode]:
        """Roll out jobs with the current weights.

        All processes must request the same jobs, and all receive all episodes, in the order of the jobs.

        Args:
            entry: Environment.
            jobs: Episodes to roll out.
            temperature: Sampling temperature; 0 is greedy.
            keep: Further data to record of every turn; see `play`.
            top_p: Probability mass of nucleus sampling; None uses the recipe's.
            phase: Description for displays.
            samples: Seeds of the episodes that keep their exchanges, for people to read; the tokens of the turns
                hold the same texts.

        Raises:
            SamplingFailed: The engine failed.
        """
        world_size, rank = self._accelerator.num_processes, self._accelerator.process_index
        # Contiguous blocks, since adjacent jobs often share a prompt, which an engine can cache.
        own = jobs[len(jobs) * rank // world_size : len(jobs) * (rank + 1) // world_size]
        self.activity.begin(phase, len(own), "episodes")
        with engine_failures(self._in_flight):
            self._policy_engine.refresh()
            episodes = self._roll_out_here(entry, own, temperature, keep=keep, top_p=top_p)
        for episode in episodes:
            if episode.seed not in samples:
                episode.exchanges.clear()
        episodes = gather_lists(self._accelerator, episodes)
        self.activity.end()
        places = {job.seed: place for place, job in enumerate(jobs)}
        return sorted(episodes, key=lambda episode: places[episode.seed])

    def _roll_out_here(
        self, entry: Entry, jobs: Sequence[Job], temperature: float, *, keep: Collection[Keep], top_p: float | None
    ) -> list[Episode]:
        """Roll out jobs in this process; episodes come in the order in which they end."""
        agent = self._agent
        default = agent.sampling
        agent.sampling = replace(default, temperature=temperature, top_p=default.top_p if top_p is None else top_p)
        envs = self._envs.setdefault(repr(entry), [])
        while len(envs) < min(self._in_flight, len(jobs)):
            envs.append(entry.make())
        try:
            with self._policy_engine.precision():
                episodes = play(agent, envs[: len(jobs)], jobs, max_turns=entry.max_turns, keep=keep)
                return list(self.activity.count(episodes))
        finally:
            agent.sampling = default

    def validate(
        self, env: EnvConfig, validation: ValidationConfig, temperature: float, seed: int
    ) -> ValidationResult:
        """Roll out the held-out tasks, with the same seeds in every validation.

        Raises:
            ConfigurationError: The split has too few tasks.
        """
        entry = make_entry(env, validation.split, validation.tasks, validation.repeats)
        names = held_out_tasks(entry, self._first_env(entry))
        suite = Suite("validation", "", (entry,), seed)
        jobs = [
            Job(name, suite.episode_seed(entry, name, repeat))
            for name in names
            for repeat in range(validation.repeats)
        ]
        sample_seeds = [job.seed for job in jobs[:: validation.repeats][:SAMPLE_EPISODES]]
        if validation.temperature is not None:
            temperature = validation.temperature
        episodes = self.roll_out(entry, jobs, temperature, top_p=1.0, phase="validating", samples=sample_seeds)
        outcomes: dict[str, list[bool]] = {name: [] for name in names}
        for job, episode in zip(jobs, episodes, strict=True):
            outcomes[str(job.task)].append(episode.success and episode.error is None)
        samples = [episode for episode in episodes if episode.error is None and episode.seed in sample_seeds]
        return ValidationResult(
            rate([tuple(successes) for successes in outcomes.values()]),
            float(np.mean([episode.total_reward for episode in episodes])),
            Failures.among(episodes),
            tuple(sorted(samples, key=lambda episode: sample_seeds.index(episode.seed))),
        )

    def _first_env(self, entry: Entry) -> TextEnv[Any]:
        envs = self._envs.setdefault(repr(entry), [])
        if not envs:
            envs.append(entry.make())
        return envs[0]
