"""Sentences about episodes without labels, the command that labels them, and actions of unknown optimum."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from .file import FILE
from .statistics import DecisionLine

MAX_NAMES = 5
"""Number of agents and entries without any label that a sentence names at most."""


def label_command(folder: Path) -> str:
    """Return the command that labels the episodes of a run, quoted for a shell."""
    return f"arboretum decisions {shlex.quote(str(folder))}"


def has_labels_file(folder: Path) -> bool:
    """Return True if a run has been labelled, in part or by another version."""
    return (folder / FILE).exists()


def missing_labels(missing: int, episodes: int, remark: str, folder: Path) -> str:
    """Return the sentence about episodes without labels, with the command that labels them.

    Args:
        missing: Number of episodes without labels.
        episodes: Number of complete episodes.
        remark: Words after their number, such as the reason; may be empty.
        folder: Folder of the run.
    """
    have, them = ("has", "it") if missing == 1 else ("have", "them")
    return f"{missing} of {episodes} episodes {have} no labels{remark}; `{label_command(folder)}` labels {them}."


def describe_unlabelled(
    folder: Path, episodes: Mapping[tuple[str, str], int], labelled: Mapping[tuple[str, str], int]
) -> list[str]:
    """Return a sentence about the episodes without labels, and how to label them, if there are any.

    It names the agents, or of some entries the agents, of whose episodes none has labels: tables do not show them.

    Args:
        folder: Folder of the run.
        episodes: Numbers of complete episodes by agent and entry.
        labelled: Numbers of episodes with labels, or with a reason why they have none.
    """
    total = sum(episodes.values())
    number = sum(max(0, count - labelled.get(cell, 0)) for cell, count in episodes.items())
    if not number:
        return []
    names = _without_any(episodes, labelled)
    among = f", among them all of {', '.join(names)}" if names and number < total else ""
    return [missing_labels(number, total, among, folder)]


def describe_unknown(lines: Iterable[DecisionLine]) -> list[str]:
    """Return a sentence for each entry and agent with actions of unknown optimum, and on what its figures rest."""
    sentences = []
    for line in lines:
        if not line.unknown:
            continue
        has = "has" if line.unknown == 1 else "have"
        known = f"over the {line.known} of {line.labelled} episodes without such actions"
        sentences.append(
            f"{line.entry}, {line.agent}: {line.unknown} of {line.decisions} actions {has} no known optimum; lost,"
            f" extra steps and the share of fatal decisions are {known if line.known else 'unknown'}."
        )
    return sentences


def _without_any(episodes: Mapping[tuple[str, str], int], labelled: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the names of the agents and entries without any label."""
    cells = [cell for cell, count in episodes.items() if count]
    empty = [cell for cell in cells if not labelled.get(cell)]
    by_agent = Counter(agent for agent, _ in cells)
    names = []
    for agent in dict.fromkeys(agent for agent, _ in empty):
        entries = [entry for name, entry in empty if name == agent]
        names += [agent] if len(entries) == by_agent[agent] else [f"{agent} on {entry}" for entry in entries]
    return names if len(names) <= MAX_NAMES else [*names[:MAX_NAMES], f"{len(names) - MAX_NAMES} others"]
