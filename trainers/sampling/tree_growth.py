"""Growth of trees of episodes: initialise every tree with one episode, then expand nodes round by round.

All prompts grow at the same time from one queue of jobs. A prompt's next round is queued as soon as the last
episode of its round ends, whatever the other prompts do, so the engine never waits for a round. Nodes are chosen
from complete rounds only, and all randomness is derived from `stable_seed`: the episodes of a prompt do not depend
on the number of episodes in flight or on the order in which they end.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...agents.episode import Episode
from ...agents.forks import Origin
from ...agents.play import Job
from ...envs.errors import ConfigurationError
from ...envs.seeding import stable_seed
from ..algorithms.samplers import Trees
from ..data.episodes import Branch
from .node_choice import NODE_RULES
from .rollout_plan import GroupKey, rollout_seed
from .tree import ROOT, Node, Tree, keep_leaves, leaves_per_prompt


class Prompt(NamedTuple):
    """Start of a group of trees.

    Attributes:
        key: Key of the group.
        task: Task.
    """

    key: GroupKey
    task: str


class TreeEpisode(NamedTuple):
    """Episode of a tree.

    Attributes:
        key: Group of the prompt.
        tree: Number of the tree within the prompt.
        number: Number of the episode within the tree: first the initial one, then the expansions of each round.
        episode: The episode.
        shared: Number of its first turns that it took over from another episode.
        kept: True if it is trained on: it did not end with an error, and is one of the K leaves.
        branch: Branch off an earlier kept episode, as its index among the kept ones of the tree; None if it shares
            no turn with one, or is not kept.
    """

    key: GroupKey
    tree: int
    number: int
    episode: Episode
    shared: int = 0
    kept: bool = False
    branch: Branch | None = None


@dataclass
class _Plot:
    """Trees of one prompt while they grow.

    Attributes:
        prompt: The prompt.
        trees: Complete episodes of each tree.
        played: All episodes so far.
        round: Number of the round in progress; 0 samples the initial episodes.
        waiting: Episodes of this round that have not ended.
        ended: Episodes of this round that have ended.
    """

    prompt: Prompt
    trees: list[Tree]
    played: list[TreeEpisode] = field(default_factory=list)
    round: int = 0
    waiting: int = 0
    ended: list[_Ended] = field(default_factory=list)


class _Place(NamedTuple):
    """Position of a job: index of the prompt, tree, number within the tree, and the branch it begins with."""

    plot: int
    tree: int
    number: int
    branch: Branch | None


class _Ended(NamedTuple):
    place: _Place
    episode: Episode


class TreeGrowth:
    """Queue of jobs that grows the trees of some prompts.

        growth = TreeGrowth(prompts, Trees(), seed=0)
        for episode in play(agent, envs, growth.jobs, keep={"forks"}):
            growth.add(episode)
        episodes = growth.episodes()

    Args:
        prompts: Prompts with different keys.
        settings: Shape of the trees.
        seed: Seed of the run.
        release: Called with the seeds of a prompt's episodes when none of them will be branched from any more.

    Attributes:
        jobs: Jobs to play; `add` appends to it.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        settings: Trees,
        *,
        seed: int,
        release: Callable[[Iterable[int]], None] | None = None,
    ) -> None:
        self.jobs: deque[Job] = deque()
        self._settings, self._seed, self._release = settings, seed, release
        self._rule = NODE_RULES[settings.choice]
        self._places: dict[int, _Place] = {}
        self._plots = [_Plot(prompt, [Tree() for _ in range(settings.trees)]) for prompt in prompts]
        for index, plot in enumerate(self._plots):
            jobs = []
            for tree in range(settings.trees):
                job = Job(plot.prompt.task, rollout_seed(seed, plot.prompt.key, tree))
                jobs.append(self._place(job, _Place(index, tree, 0, None)))
            plot.waiting = len(jobs)
            self.jobs += jobs

    @property
    def total(self) -> int:
        """Number of episodes of all rounds."""
        settings = self._settings
        return len(self._plots) * leaves_per_prompt(settings.trees, settings.expansions, settings.rounds)

    @property
    def at_once(self) -> int:
        """Maximum number of jobs that can be played at the same time."""
        return len(self._plots) * self._settings.trees * self._settings.expansions

    def add(self, episode: Episode) -> None:
        """Add an episode that ended, and queue its prompt's next round if it was the last of its round.

        Raises:
            ConfigurationError: The episode does not belong to these trees, or was added before.
        """
        place = self._places.pop(episode.seed, None)
        if place is None or self._plots[place.plot].prompt.task not in (None, episode.task):
            raise ConfigurationError(
                f"the episode of task {episode.task!r} (seed {episode.seed}) does not belong to these trees."
            )
        plot = self._plots[place.plot]
        plot.ended.append(_Ended(place, episode))
        plot.waiting -= 1
        if plot.waiting == 0:
            self._end_round(place.plot)

    def episodes(self) -> list[TreeEpisode]:
        """Return all episodes, those that failed or are not kept included, by prompt, tree and number.

        Raises:
            ConfigurationError: A round is not complete.
        """
        if self._places:
            raise ConfigurationError(f"{len(self._places)} episodes of trees have not been played.")
        return [episode for plot in self._plots for episode in plot.played]

    # ------------------------------------------------------------------ rounds

    def _place(self, job: Job, place: _Place) -> Job:
        self._places[job.seed] = place
        return job

    def _stable_seed(self, purpose: str, plot: _Plot, *numbers: int) -> int:
        return stable_seed(purpose, self._seed, *plot.prompt.key, *numbers)

    def _end_round(self, index: int) -> None:
        plot = self._plots[index]
        for place, episode in sorted(plot.ended, key=lambda one: (one.place.tree, one.place.number)):
            shared = 0 if place.branch is None else place.branch.turns
            plot.played.append(TreeEpisode(plot.prompt.key, place.tree, place.number, episode, shared))
            if episode.error is None:
                plot.trees[place.tree].add(episode, place.branch)
        plot.ended = []
        if plot.round < self._settings.rounds:
            plot.round += 1
            jobs = [job for tree in range(len(plot.trees)) for job in self._expand(index, tree)]
            plot.waiting = len(jobs)
            # In front of the other prompts' jobs: the conversations to branch from are still cached.
            self.jobs.extendleft(reversed(jobs))
        else:
            self._finish(plot)

    def _expand(self, index: int, tree: int) -> list[Job]:
        """Return the jobs of one tree in the round that begins."""
        plot, count = self._plots[index], self._settings.expansions
        rng = random.Random(self._stable_seed("expand", plot, tree, plot.round))
        jobs = []
        for expansion, node in enumerate(self._rule(plot.trees, tree, count, rng)):
            seed = self._stable_seed("branch", plot, tree, plot.round, expansion) >> 11
            branch = None if node.number == ROOT else node.branch
            number = 1 + (plot.round - 1) * count + expansion
            job = Job(plot.prompt.task, seed, self._origin(plot.trees[tree], node))
            jobs.append(self._place(job, _Place(index, tree, number, branch)))
        return jobs

    def _origin(self, tree: Tree, node: Node) -> Origin | None:
        """Return the place from which a job continues; None for an independent episode of the task."""
        is_new = node.number == ROOT and (self._settings.redraw or not tree.episodes)
        episode, turns = node.branch
        return None if is_new else Origin(tree.episodes[episode], turns, redraw=self._settings.redraw)

    def _finish(self, plot: _Plot) -> None:
        """Choose the leaves to keep, and drop what only further branches would need."""
        plot.played.sort(key=lambda one: (one.tree, one.number))
        for number, tree in enumerate(plot.trees):
            kept = list(range(len(tree.episodes)))
            if self._settings.leaves is not None and len(kept) > self._settings.leaves:
                rng = random.Random(self._stable_seed("leaves", plot, number))
                kept = sorted(rng.sample(kept, self._settings.leaves))
            branches = dict(zip(kept, keep_leaves(tree.paths, kept), strict=True))
            complete = [
                place for place, one in enumerate(plot.played) if one.tree == number and one.episode.error is None
            ]
            for leaf, branch in branches.items():
                place = complete[leaf]
                plot.played[place] = plot.played[place]._replace(kept=True, branch=branch)
        for one in plot.played:
            for turn in one.episode.turns:
                turn.fork = None
        plot.trees = []
        if self._release is not None:
            self._release([one.episode.seed for one in plot.played])


class Forest(NamedTuple):
    """Arguments of `from_episodes`, for the episodes that are trained on."""

    episodes: list[Episode]
    groups: list[Hashable]
    trees: list[Hashable]
    branches: list[Branch | None]


def arrange_forest(played: Sequence[TreeEpisode]) -> Forest:
    """Return the kept episodes by prompt, tree and number."""
    forest = Forest([], [], [], [])
    first: dict[Any, int] = {}
    for one in sorted(played, key=lambda one: (one.key, one.tree, one.number)):
        if not one.kept:
            continue
        offset = first.setdefault((one.key, one.tree), len(forest.episodes))
        branch = one.branch
        forest.episodes.append(one.episode)
        forest.groups.append(one.key)
        forest.trees.append(one.tree)
        forest.branches.append(None if branch is None else Branch(branch.episode + offset, branch.turns))
    return forest


def tree_metrics(played: Sequence[TreeEpisode]) -> dict[str, float]:
    """Return statistics of trees: `trees`, `leaves` kept per tree, `expansions`, and turns before an expansion."""
    trees = {(one.key, one.tree) for one in played}
    expansions = [one.shared for one in played if one.number > 0]
    return {
        "trees": float(len(trees)),
        "leaves": sum(one.kept for one in played) / max(len(trees), 1),
        "expansions": float(len(expansions)),
        "expansion_depth": sum(expansions) / max(len(expansions), 1),
    }
