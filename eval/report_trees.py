"""Trees of an evaluation's report: the episodes of each task, of every agent with several and of all agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge, nsmallest
from itertools import groupby
from pathlib import Path
from typing import Any

from ..envs.core import TextEnv
from .episode_trees import NamedEpisode, find_ends, merge_episodes
from .index_reader import TaskOutcomes
from .reported_run import ReportedRun
from .store import Result, StoredEpisode, read_episodes
from .suite import Entry
from .summary import EXPERT, RANDOM
from .trees import Place, Tree, interest

MAX_TASKS = 12
"""Tasks of an entry and agent whose trees a report shows, those with mixed outcomes first."""

MAX_EPISODES = 64
"""Episodes in a tree; further ones of the task are left out."""

ALL_AGENTS = "all agents"


def collect_trees(entry: Entry, runs: Sequence[ReportedRun]) -> Iterator[tuple[Place, Tree]]:
    """Yield the trees of an entry with their places: of each agent, then of all agents together.

    An agent with one episode per task has no trees of its own, and equal episodes make none. The trees of all
    agents leave the random agent out.

    Args:
        entry: Entry of the suite.
        runs: The runs; agents of different runs have different names.
    """
    agents = list(dict.fromkeys(cell.agent for run in runs for cell in run.cells if cell.entry == entry.name))
    # References are last, as in the tables.
    agents.sort(key=lambda agent: (agent == RANDOM, agent == EXPERT))
    places = {agent: [agent] for agent in agents}
    compared = [agent for agent in agents if agent != RANDOM]
    if len(compared) > 1:
        places[ALL_AGENTS] = compared
    env: list[TextEnv[Any] | None] = []  # It is made once, and only if there is a tree.
    for place, members in places.items():
        trees = []
        for task in _choose_tasks(entry, runs, members):
            stored: list[tuple[Path, Result]] = []
            for run in runs:
                results = run.complete_of_task(members, entry.name, task, MAX_EPISODES - len(stored))
                stored += [(run.folder, result) for result in results]
            episodes = _read(stored, with_agent=place == ALL_AGENTS)
            if len(episodes) < 2:
                continue
            env = env or [_make(entry)]
            ends, notes = find_ends(env[0], episodes)
            tree = merge_episodes(task, episodes, ends, notes)
            if len(tree.edges) > len({edge.parent for edge in tree.edges}):  # There is a branch to see.
                trees.append(tree)
        for tree in sorted(trees, key=interest):
            solved = sum(episode.success for episode in tree.episodes)
            label = f"{tree.task or '(no name)'}: {solved} of {len(tree.episodes)} solved"
            yield Place(entry.name, place, label), tree


def _choose_tasks(entry: Entry, runs: Sequence[ReportedRun], agents: Sequence[str]) -> list[str]:
    """Return the tasks with several episodes that show most: those whose outcomes are most mixed first."""

    def number(place: int, run: ReportedRun, agent: str) -> Iterator[tuple[int, TaskOutcomes]]:
        return ((place, one) for one in run.task_outcomes(agent, entry.name))

    streams = [number(place, run, agent) for place, run in enumerate(runs) for agent in agents]

    def task_of(one: tuple[int, TaskOutcomes]) -> str:
        return one[1].task

    def candidates() -> Iterator[tuple[int, tuple[int, int], str]]:
        for task, group in groupby(merge(*streams, key=task_of), key=task_of):
            outcomes = list(group)
            episodes = sum(one.episodes for _, one in outcomes)
            solved = sum(one.solved for _, one in outcomes)
            # An agent that retries has further episodes in its record.
            if episodes > 1 or any(one.retried for _, one in outcomes):
                yield -min(solved, episodes - solved), min((place, one.first) for place, one in outcomes), task

    return [task for _, _, task in nsmallest(MAX_TASKS, candidates())]


def _read(stored: Sequence[tuple[Path, Result]], *, with_agent: bool) -> list[NamedEpisode]:
    """Return the episodes of results, with earlier attempts; damaged ones are left out."""
    episodes: list[NamedEpisode] = []
    for folder, result in sorted(stored, key=lambda one: (one[1].key.agent, one[1].key.repeat)):
        (read,) = read_episodes(folder, [result])
        if not isinstance(read, StoredEpisode):
            continue  # The viewer of episodes reports it.
        name = f"{result.key.agent} {result.key.repeat + 1}" if with_agent else f"episode {result.key.repeat + 1}"
        trials = read.episode.trials
        episodes += [NamedEpisode(f"{name}, attempt {n + 1}", trial, n) for n, trial in enumerate(trials)]
        episodes.append(NamedEpisode(name, read.episode, len(trials)))
    return episodes


def _make(entry: Entry) -> TextEnv[Any] | None:
    """Return the environment of an entry; None where it is not available."""
    try:
        return entry.make()
    except Exception:  # Its data or its package is missing, or it is of another version.
        return None
