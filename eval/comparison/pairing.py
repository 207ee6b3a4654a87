"""Pairs of agents, the tasks that they share, and sentences about what they do not share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from ..decisions import Unlabelled, summarize_decisions
from ..decisions.coverage import describe_unknown, describe_unlabelled, has_labels_file
from .participants import Participant, Source, entries_of


def agent_pairs(participants: Sequence[Participant]) -> list[tuple[Participant, Participant]]:
    """Return all pairs, the later agent first, so that a difference is the change from the earlier one."""
    return [(later, earlier) for earlier, later in combinations(participants, 2)]


def shared_tasks(a: Participant, b: Participant, entry: str) -> list[str]:
    """Return the tasks of an entry of which both agents have complete episodes."""
    return sorted(a.results.get(entry, {}).keys() & b.results.get(entry, {}).keys())


def describe_left_out(participants: Sequence[Participant], sources: Sequence[Source]) -> list[str]:
    """Return a sentence for each group of tasks and of episodes that a table leaves out.

    These are tasks that another agent has completed, episodes that are not complete, episodes without labels, and
    actions of unknown optimum.
    """
    return [*_missing_tasks(participants, sources), *_unlabelled(participants), *_unknown(participants)]


def _missing_tasks(participants: Sequence[Participant], sources: Sequence[Source]) -> list[str]:
    """Return a sentence for each agent and entry with tasks that another agent has and it has not."""
    sentences = []
    for entry in entries_of(sources):
        tasks = {one.letter: set(one.results.get(entry, {})) for one in participants}
        everything = set().union(*tasks.values())
        missing: dict[int, list[str]] = {}
        for letter, found in tasks.items():
            if len(found) < len(everything):
                missing.setdefault(len(found), []).append(letter)
        for count, letters in missing.items():
            verb = "has" if len(letters) == 1 else "have"
            who = ", ".join(letters)
            if count == 0:
                sentences.append(f"{entry}: {who} {verb} no complete episode, and is left out of its pairs.")
            else:
                sentences.append(
                    f"{entry}: {who} {verb} {count} of {len(everything)} tasks; the others are left out of pairs."
                )
    for one in participants:
        if one.episodes < one.expected:
            broken = f", and {one.broken} broke off" if one.broken else ""
            sentences.append(f"{one.letter} is incomplete: {one.episodes} of {one.expected} episodes{broken}.")
    return sentences


def _unlabelled(participants: Sequence[Participant]) -> list[str]:
    """Return sentences for each agent with episodes without labels, if an agent's decisions are labelled."""
    if not any(source.labels or has_labels_file(source.folder) for one in participants for source in one.sources):
        return []
    sentences = []
    for one in participants:
        for source in one.sources:
            results = source.run.results.items()
            complete = [key for key, result in results if key.agent == one.agent and result.error is None]
            labelled = [key for key in complete if key in source.labels]
            counts = (Counter((key.agent, key.entry) for key in keys) for keys in (complete, labelled))
            found = describe_unlabelled(source.folder, *counts)
            failed = sum(isinstance(source.labels.get(key), Unlabelled) for key in complete)
            if failed:
                found.append(f"{failed} of {len(complete)} episodes cannot be labelled.")
            sentences += [f"{one.letter}: {sentence}" for sentence in found]
    return sentences


def _unknown(participants: Sequence[Participant]) -> list[str]:
    """Return a sentence for each agent and entry with actions of unknown optimum."""
    sentences = []
    for one in participants:
        for source in one.sources:
            labels = {key: found for key, found in source.labels.items() if key.agent == one.agent}
            episodes = Counter((key.entry, key.agent) for key in labels)
            found = describe_unknown(summarize_decisions(episodes, labels))
            sentences += [f"{one.letter}: {sentence}" for sentence in found]
    return sentences


def describe_randomness(participants: Sequence[Participant]) -> list[str]:
    """Return a sentence for the pairs whose shared tasks have the same seeds, other seeds, or some of each."""
    groups: dict[str, list[str]] = {}
    for a, b in agent_pairs(participants):
        shared = other = 0
        for entry in a.results:
            for task in shared_tasks(a, b, entry):
                ours, theirs = ({result.seed for result in one.results[entry][task]} for one in (a, b))
                shared += len(ours & theirs)
                other += len(ours ^ theirs)
        if shared or other:
            kind = "same" if not other else "other" if not shared else "some"
            groups.setdefault(kind, []).append(f"{b.letter} and {a.letter}")
    sentences = {
        "same": "Common randomness: the episodes of shared tasks have the same seeds ({}).",
        "other": "No common randomness: the tasks are the same, but the seeds of their episodes are not ({}).",
        "some": "Common randomness in part: some episodes of shared tasks have the same seeds ({}).",
    }
    return [sentences[kind].format("; ".join(pairs)) for kind, pairs in groups.items()]
