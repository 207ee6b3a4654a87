"""Trees of an evaluation's report: the episodes of each task, of every agent with several and of all agents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..envs.core import TextEnv
from .episode_trees import NamedEpisode, find_ends, merge_episodes
from .store import Result, StoredEpisode, read_episodes
from .suite import Entry
from .summary import EXPERT, RANDOM
from .trees import Place, Tree, interest

MAX_TASKS = 12
"""Tasks of an entry and agent whose trees a report shows, those with mixed outcomes first."""

MAX_EPISODES = 64
"""Episodes in a tree; further ones of the task are left out."""

ALL_AGENTS = "all agents"


class Source(NamedTuple):
    """Stored episodes of an entry.

    Attributes:
        folder: Folder of the run.
        results: Results of the entry in that run.
    """

    folder: Path
    results: Sequence[Result]


def collect_trees(entry: Entry, sources: Sequence[Source]) -> Iterator[tuple[Place, Tree]]:
    """Yield the trees of an entry with their places: of each agent, then of all agents together.

    An agent with one episode per task has no trees of its own, and equal episodes make none. The trees of all
    agents leave the random agent out.

    Args:
        entry: Entry of the suite.
        sources: Its episodes; agents of different sources have different names.
    """
    cells: dict[str, dict[str, list[tuple[Path, Result]]]] = defaultdict(lambda: defaultdict(list))
    agents = list(dict.fromkeys(result.key.agent for source in sources for result in source.results))
    # References are last, as in the tables.
    agents.sort(key=lambda agent: (agent == RANDOM, agent == EXPERT))
    for source in sources:
        for result in source.results:
            if result.error is None:
                cells[result.key.agent][result.key.task].append((source.folder, result))
                if result.key.agent != RANDOM:
                    cells[ALL_AGENTS][result.key.task].append((source.folder, result))
    if len({*agents} - {RANDOM}) < 2:
        cells.pop(ALL_AGENTS, None)
    env: list[TextEnv[Any] | None] = []  # It is made once, and only if there is a tree.
    for agent in (*agents, ALL_AGENTS):
        trees = []
        for task, stored in _choose_tasks(cells.get(agent, {})):
            episodes = _read(stored, with_agent=agent == ALL_AGENTS)
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
            yield Place(entry.name, agent, label), tree


def _choose_tasks(
    tasks: Mapping[str, list[tuple[Path, Result]]],
) -> list[tuple[str, list[tuple[Path, Result]]]]:
    """Return the tasks with several episodes that show most: those whose outcomes are most mixed first."""

    def rank(task: str) -> int:
        successes = sum(result.success for _, result in tasks[task])
        return -min(successes, len(tasks[task]) - successes)

    # An agent that retries has further episodes in its record.
    several = [task for task, stored in tasks.items() if len(stored) > 1 or "trial" in stored[0][1].details]
    return [(task, tasks[task][:MAX_EPISODES]) for task in sorted(several, key=rank)[:MAX_TASKS]]


def _read(stored: Sequence[tuple[Path, Result]], *, with_agent: bool) -> list[NamedEpisode]:
    """Return the episodes of results, with earlier attempts; damaged ones are left out."""
    episodes: list[NamedEpisode] = []
    for folder, result in sorted(stored, key=lambda one: (one[1].key.agent, one[1].key.repeat)):
        (read,) = read_episodes(folder, [result])
        if not isinstance(read, StoredEpisode):
            continue  # The viewer of episodes reports it.
        name = f"{result.key.agent} {result.key.repeat + 1}" if with_agent else f"episode {result.key.repeat + 1}"
        for number, trial in enumerate(read.episode.trials, 1):
            episodes.append(NamedEpisode(f"{name}, attempt {number}", trial))
        episodes.append(NamedEpisode(name, read.episode))
    return episodes


def _make(entry: Entry) -> TextEnv[Any] | None:
    """Return the environment of an entry; None where it is not available."""
    try:
        return entry.make()
    except Exception:  # Its data or its package is missing, or it is of another version.
        return None
