"""Sampling episodes with the current policy, for training and for validation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...agents.base import Stop
from ...agents.contracts import check_completions
from ...agents.engines.base import Completion, Request, Sampling
from ...agents.episode import Episode
from ...agents.forks import Keep
from ...agents.play import Job, play
from ...envs.core import TextEnv
from ...eval.statistics import Interval, rate
from ...eval.suite import Entry, Suite
from ..algorithms.samplers import Sampler, Trees
from ..config.resolve import held_out_tasks, make_entry, resolve_dialogue
from ..config.settings import DialogueConfig, EnvConfig, ValidationConfig
from ..data.episodes import DrawKey
from ..data.rollouts import Redraw
from ..learning.distributed import gather_lists
from ..state import Activity
from .failures import Failures, SamplingFailed, engine_failures
from .policy_agent import PolicyAgent, ReplyCounts
from .redraw import Draws, redraw_all, redraw_targets
from .tree_growth import Prompt, TreeEpisode, TreeGrowth

if TYPE_CHECKING:
    from accelerate import Accelerator

    from .policy_engine import PolicyEngine

T = TypeVar("T")

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
        make_env: Makes an environment of an entry.
        step_timeout: Wall time of one step or one reset of an environment in seconds; None for no limit.

    Attributes:
        dialogue: Dialogue between environment and model.
        engine: Engine that samples replies.
        chat: Encoder of the chat template.
        reply_tokens: Maximum length of a reply in tokens.
    """

    def __init__(
        self,
        engine: PolicyEngine,
        dialogue: DialogueConfig,
        sampler: Sampler,
        *,
        in_flight: int,
        accelerator: Accelerator,
        make_env: Callable[[Entry], TextEnv[Any]] = Entry.make,
        step_timeout: float | None = None,
    ) -> None:
        self.engine = engine.engine
        self._policy_engine = engine
        self._config, self._recipe = dialogue, sampler
        self._activity = Activity()
        self._agents: dict[str, PolicyAgent] = {}
        agent = self._agent_for({})
        assert agent.chat is not None, "the engine of a policy has a tokenizer"
        self.dialogue, self.chat = agent.dialogue, agent.chat
        self.reply_tokens = sampler.reply_tokens
        self._in_flight = in_flight
        self._accelerator = accelerator
        self._make_env, self._step_timeout = make_env, step_timeout
        self._envs: dict[str, list[TextEnv[Any]]] = {}

    @property
    def activity(self) -> Activity:
        """Phase in progress, in which finished episodes and turns are counted."""
        return self._activity

    @activity.setter
    def activity(self, activity: Activity) -> None:
        self._activity = activity
        for agent in self._agents.values():
            agent.activity = activity

    def _agent_for(self, settings: Mapping[str, Any]) -> PolicyAgent:
        """Return the policy as an agent whose dialogue has settings of one environment."""
        key = repr(sorted(settings.items()))
        if key not in self._agents:
            config = replace(self._config, settings={**self._config.settings, **settings})
            self._agents[key] = PolicyAgent(
                "policy",
                self.engine,
                resolve_dialogue(config, self._recipe),
                Sampling(top_p=self._recipe.top_p, max_tokens=self._recipe.reply_tokens),
                template=config.template,
            )
            self._agents[key].activity = self._activity
        return self._agents[key]

    def take_reply_counts(self) -> ReplyCounts:
        """Return the number of replies of all processes since the last call; a collective operation."""
        counts = [agent.take_counts() for agent in self._agents.values()]
        return ReplyCounts.add_up(gather_lists(self._accelerator, counts))

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
        # Contiguous blocks, since adjacent jobs often share a prompt, which an engine can cache.
        own = self._own_part(jobs)
        self.activity.begin(phase, len(own), "episodes")
        agent = self._agent_for(entry.dialogue)

        def sample() -> list[Episode]:
            with self._sampling(agent, temperature, top_p):
                episodes = list(self._play(agent, entry, own, len(own), keep))
            for episode in episodes:
                if episode.seed not in samples:
                    episode.exchanges.clear()
            return episodes

        episodes = self._gather(sample)
        self.activity.end()
        places = {job.seed: place for place, job in enumerate(jobs)}
        return sorted(episodes, key=lambda episode: places[episode.seed])

    def grow_trees(
        self,
        entry: Entry,
        prompts: Sequence[Prompt],
        trees: Trees,
        temperature: float,
        *,
        seed: int,
        keep: Collection[Keep] = (),
    ) -> list[TreeEpisode]:
        """Roll out trees of episodes with the current weights; see `TreeGrowth`.

        All processes must request the same prompts, and all receive all episodes, by prompt, tree and number. The
        trees of a prompt are grown by one process.

        Args:
            entry: Environment.
            prompts: Prompts with different keys.
            trees: Shape of the trees.
            temperature: Sampling temperature.
            seed: Seed of the run.
            keep: Further data to record of every turn; see `play`.

        Raises:
            SamplingFailed: The engine failed.
        """
        agent = self._agent_for(entry.dialogue)
        growth = TreeGrowth(self._own_part(prompts), trees, seed=seed, release=agent.release_held)
        kept: set[Keep] = {*keep, "forks"}
        if trees.choice == "value":
            kept.add("states")
        self.activity.begin("rolling out", growth.total, "episodes")

        def sample() -> list[TreeEpisode]:
            with self._sampling(agent, temperature, None), agent.holding():
                for episode in self._play(agent, entry, growth.jobs, growth.at_once, kept):
                    episode.exchanges.clear()
                    growth.add(episode)
            return growth.episodes()

        episodes = self._gather(sample)
        self.activity.end()
        return sorted(episodes, key=lambda one: (one.key, one.tree, one.number))

    def redraw(
        self, entry: Entry, episodes: Sequence[Episode], groups: Sequence[Hashable], count: int
    ) -> tuple[dict[DrawKey, tuple[Redraw, ...]], Failures]:
        """Draw further outcomes of all turns, and drop their snapshots; see `Redrawer`.

        All processes must have the same episodes; they divide the work, and all receive all outcomes.

        Args:
            entry: Environment.
            episodes: Episodes played with `keep={"states", "snapshots"}`.
            groups: Group of each episode.
            count: Outcomes of each combination of state and actions in a group.

        Returns:
            The outcomes, and the number of those in whose place the environment failed.

        Raises:
            SamplingFailed: The workers of the environments failed.
        """
        targets = redraw_targets(episodes, groups)
        for episode in episodes:
            for turn in episode.turns:
                turn.snapshot = None
        self.activity.begin("redrawing random events", len(targets), "actions")
        own = self._own_part(targets)

        def draw() -> list[Draws]:
            with engine_failures(self._in_flight):
                envs = self._take_envs(entry, max(min(self._in_flight, len(own)), 1))
                return redraw_all(envs, own, count, self._step_timeout)

        drawn = self._gather(draw)
        self.activity.end()
        errors = [error for one in drawn for error in one.errors]
        failures = Failures(count * len(targets), len(errors), errors[-1] if errors else "")
        return {target.key: one.outcomes for target, one in zip(targets, drawn, strict=True)}, failures

    def _own_part(self, items: Sequence[T]) -> Sequence[T]:
        """Return this process's contiguous part of the items."""
        world_size, rank = self._accelerator.num_processes, self._accelerator.process_index
        return items[len(items) * rank // world_size : len(items) * (rank + 1) // world_size]

    def _gather(self, sample: Callable[[], list[T]]) -> list[T]:
        """Return what all processes sample, in order of rank; a collective operation.

        Raises:
            SamplingFailed: Sampling failed in one of them. All raise, so that none waits for the others.
        """
        own: list[T] = []
        failure: SamplingFailed | None = None
        try:
            own = sample()
        except SamplingFailed as error:
            failure = error
        parts = gather_lists(self._accelerator, [(own, None if failure is None else str(failure))])
        for _, reason in parts:
            if reason is not None:
                raise failure or SamplingFailed(reason)
        return [item for items, _ in parts for item in items]

    @contextmanager
    def _sampling(self, agent: PolicyAgent, temperature: float, top_p: float | None) -> Iterator[None]:
        """Context in which the agent samples with the current weights."""
        default = agent.sampling
        with engine_failures(self._in_flight), self._policy_engine.sampling():
            agent.sampling = replace(
                default, temperature=temperature, top_p=default.top_p if top_p is None else top_p
            )
            try:
                yield
            finally:
                agent.sampling = default

    def _play(
        self, agent: PolicyAgent, entry: Entry, jobs: Iterable[Job], at_once: int, keep: Collection[Keep]
    ) -> Iterator[Episode]:
        """Play jobs in this process; episodes come in the order in which they end.

        Args:
            agent: Policy, in the dialogue of the environment.
            entry: Environment.
            jobs: Episodes to play.
            at_once: Number of jobs of which no more can be played at the same time.
            keep: See `play`.
        """
        episodes = play(
            agent,
            self._take_envs(entry, min(self._in_flight, at_once)),
            jobs,
            max_turns=entry.max_turns,
            step_time_limit=self._step_timeout,
            keep=keep,
        )
        return self.activity.count(episodes)

    def complete(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], *, phase: str
    ) -> list[Completion]:
        """Sample a reply to each of several prompts, outside of episodes, with the current weights.

        All processes must request the same replies; they divide them, and all receive all, in order. Prompts with
        equal beginnings should be adjacent, since an engine can cache them.

        Args:
            prompts: Token ids up to the beginning of the reply.
            sampling: Sampling settings.
            seeds: Seed of each reply.
            phase: Description for displays.

        Raises:
            SamplingFailed: The engine failed.
        """
        world_size, rank = self._accelerator.num_processes, self._accelerator.process_index
        own = range(len(prompts) * rank // world_size, len(prompts) * (rank + 1) // world_size)
        self.activity.begin(phase, len(own), "replies")

        def sample() -> list[Completion]:
            completions: dict[str, Completion] = {}
            with engine_failures(self._in_flight), self._policy_engine.sampling():
                for number in own:
                    request = Request(f"reply-{number}", (), list(prompts[number]), sampling, seeds[number])
                    self.engine.submit(request)
                while len(completions) < len(own):
                    for name, completion in check_completions(self.engine, self.engine.collect()):
                        if completion.finish == "error":
                            raise Stop(f"{self.engine.name} failed: {completion.error}")
                        completions[name] = completion
                        self.engine.release(name)
                        self.activity.advance()
            return [completions[f"reply-{number}"] for number in own]

        found = self._gather(sample)
        self.activity.end()
        return found

    def validate(
        self, env: EnvConfig, validation: ValidationConfig, temperature: float, seed: int
    ) -> ValidationResult:
        """Roll out the held-out tasks, with the same seeds in every validation.

        Raises:
            ConfigurationError: The split has too few tasks.
        """
        entry = make_entry(env, validation.split, validation.tasks, validation.repeats)
        with engine_failures(self._in_flight):
            names = held_out_tasks(entry, self._take_envs(entry, 1)[0])
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

    def _take_envs(self, entry: Entry, count: int) -> list[TextEnv[Any]]:
        """Return environments of an entry, which are kept for later calls."""
        envs = self._envs.setdefault(repr(entry), [])
        while len(envs) < count:
            envs.append(self._make_env(entry))
        return envs[:count]
