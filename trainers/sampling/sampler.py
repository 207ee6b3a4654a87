"""Rolling out episodes with the policy as it is now, in training and in validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...agents.dialogue import Dialogue, make_dialogue
from ...agents.engines.base import Sampling
from ...agents.episode import Episode
from ...agents.language import LanguageAgent
from ...agents.play import Job, play
from ...envs.core import TextEnv
from ...envs.seeding import stable_seed
from ...envs.tasks import GeneratedTasks
from ...eval.statistics import Interval, rate
from ...eval.suite import Entry, Suite
from ..algorithms.recipe import Chains
from ..config.settings import Speech, Validation, World

SAMPLES = 6
"""Episodes of a validation that are kept for people to read."""

if TYPE_CHECKING:
    from .policy_engine import Live


def dialogue_of(speech: Speech, sampler: Chains) -> Dialogue:
    """The dialogue of a run: what its speech says, and beyond that what the recipe's sampler sets.

    Raises:
        ConfigurationError: unknown dialogue or setting, or a value that cannot work.
    """
    name = speech.dialogue or ("no_think" if sampler.think is False else "think")
    set_by_recipe = {
        option: getattr(sampler, option)
        for option in ("max_turns", "max_actions_per_turn", "max_actions", "format_penalty")
        if getattr(sampler, option) is not None
    }
    return make_dialogue(name, {**set_by_recipe, **speech.settings})


def entry_of(world: World, split: str | None, tasks: int | None = None, repeats: int = 1) -> Entry:
    """A world as evaluation knows it."""
    return Entry(world.id, world.id, world.kwargs, split, tasks, repeats=repeats)


def drawn_tasks(tasks: Sequence[str], first: int, count: int, seed: int, limit: int | None = None) -> list[str]:
    """The tasks at places `first` … `first + count - 1` of a run's endless stream.

    Endless worlds are walked through from a place that the seed decides, so that no task comes twice; finite ones
    are shuffled anew in every epoch, so that each comes once an epoch.

    Args:
        tasks: of the split.
        first: how many were drawn before.
        count: how many to draw.
        seed: of the run.
        limit: only the first so many tasks of the split.
    """
    size = min(len(tasks), limit or len(tasks))
    if isinstance(tasks, GeneratedTasks) and limit is None:
        start = stable_seed("tasks", seed) % size
        return [tasks[(start + place) % size] for place in range(first, first + count)]
    found = []
    orders: dict[int, Any] = {}
    for place in range(first, first + count):
        epoch, offset = divmod(place, size)
        if epoch not in orders:
            orders[epoch] = np.random.default_rng(stable_seed("epoch", seed, epoch)).permutation(size)
        found.append(tasks[int(orders[epoch][offset])])
    return found


@dataclass(frozen=True)
class Score:
    """What a validation found.

    Attributes:
        success: rate of solved tasks, with its 95 % interval.
        mean_return: mean undiscounted return.
        episodes: how many were played to the end.
        failed: how many broke off.
        samples: some of the episodes, of the same tasks every time.
    """

    success: Interval
    mean_return: float
    episodes: int
    failed: int
    samples: tuple[Episode, ...] = ()


class Sampler:
    """Plays with the policy as it is now; where several processes learn together, each plays its share.

    Args:
        live: samples with the policy.
        speech: how the world speaks to it.
        chains: the sampler of the recipe.
        in_flight: episodes at once, in each process.
        accelerator: of all processes.
    """

    def __init__(self, live: Live, speech: Speech, chains: Chains, *, in_flight: int, accelerator: Any) -> None:
        self.dialogue = dialogue_of(speech, chains)
        self.engine = live.engine
        self._live = live
        self._agent = LanguageAgent(
            "policy",
            self.engine,
            self.dialogue,
            Sampling(top_p=chains.top_p, max_tokens=chains.reply_tokens),
            template=speech.template,
        )
        self._in_flight = in_flight
        self._accelerator = accelerator
        self._worlds: dict[str, list[TextEnv[Any]]] = {}

    def play(
        self,
        entry: Entry,
        jobs: Sequence[Job],
        temperature: float,
        *,
        keep_states: bool = False,
        top_p: float | None = None,
    ) -> list[Episode]:
        """Play jobs. The weights may have changed since the last call.

        All processes must ask for the same jobs, and all get all episodes, in the order of the jobs.
        """
        self._live.refresh()
        world, rank = self._accelerator.num_processes, self._accelerator.process_index
        # Blocks, since jobs side by side often have a task in common, whose prompt an engine may keep.
        mine = jobs[len(jobs) * rank // world : len(jobs) * (rank + 1) // world]
        episodes = self._play(entry, mine, temperature, keep_states=keep_states, top_p=top_p)
        if world > 1:
            from accelerate.utils import gather_object

            episodes = gather_object(episodes)
        places = {job.seed: place for place, job in enumerate(jobs)}
        return sorted(episodes, key=lambda episode: places[episode.seed])

    def _play(
        self, entry: Entry, jobs: Sequence[Job], temperature: float, *, keep_states: bool, top_p: float | None
    ) -> list[Episode]:
        """Play jobs in this process, in the order in which they end."""
        agent = self._agent
        usual = agent.sampling
        agent.sampling = replace(usual, temperature=temperature, top_p=usual.top_p if top_p is None else top_p)
        envs = self._worlds.setdefault(repr(entry), [])
        while len(envs) < min(self._in_flight, len(jobs)):
            envs.append(entry.make())
        try:
            with self._live.precision():
                return list(
                    play(agent, envs[: len(jobs)], jobs, max_turns=entry.max_turns, keep_states=keep_states)
                )
        finally:
            agent.sampling = usual

    def validate(self, world: World, validation: Validation, temperature: float, seed: int) -> Score:
        """Play the held-out tasks; the same ones with the same luck every time.

        Raises:
            ConfigurationError: the split has too few tasks.
        """
        entry = entry_of(world, validation.split, validation.tasks, validation.repeats)
        names = entry.task_names(self._world(entry))
        suite = Suite("validation", "", (entry,), seed)
        jobs = [
            Job(name, suite.episode_seed(entry, name, repeat))
            for name in names
            for repeat in range(validation.repeats)
        ]
        shown = [job.seed for job in jobs[:: validation.repeats][:SAMPLES]]
        if validation.temperature is not None:
            temperature = validation.temperature
        episodes = self.play(entry, jobs, temperature, top_p=1.0)
        whole = [episode for episode in episodes if episode.error is None]
        outcomes = {name: [e.success for e in whole if e.task == name] for name in names}
        return Score(
            rate([tuple(found) for found in outcomes.values() if found]),
            float(np.mean([episode.total_reward for episode in whole])) if whole else float("nan"),
            len(whole),
            len(episodes) - len(whole),
            tuple(sorted((e for e in whole if e.seed in shown), key=lambda e: shown.index(e.seed))),
        )

    def _world(self, entry: Entry) -> TextEnv[Any]:
        envs = self._worlds.setdefault(repr(entry), [])
        if not envs:
            envs.append(entry.make())
        return envs[0]


def episode_limit(dialogue: Dialogue, chains: Chains, env: TextEnv[Any], context: int | None) -> int | None:
    """The most tokens that an episode can sample, as far as the run's own limits say; None where none does."""
    turns = min((n for n in (dialogue.max_turns, env.max_steps) if n is not None), default=None)
    bounds = [None if turns is None else turns * chains.reply_tokens, context]
    return min((bound for bound in bounds if bound is not None), default=None)


class Unplayable(RuntimeError):
    """Not one episode of a batch was played to its end."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        reasons = sorted({episode.error or "" for episode in episodes})
        super().__init__(f"no episode could be played to its end: {'; '.join(reasons[:3])}")


__all__ = ["Sampler", "Score", "Unplayable", "dialogue_of", "drawn_tasks", "entry_of", "episode_limit"]
