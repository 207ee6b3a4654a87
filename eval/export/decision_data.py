"""Data for training from the labels of decisions, as JSON lines: preferences, and labelled steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...agents.dialogue.base import Dialogue
from ...agents.dialogue.registry import make_dialogue
from ...agents.dialogue.think import SEPARATOR
from ...agents.engines.base import Message
from ...agents.episode import Episode
from ...agents.exchange import TURN
from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.user_code import describe_failure
from ..decisions import Decision, EpisodeDecisions, Labels, Unlabelled, label_episode, read_labels
from ..decisions.alternatives import find_optimal_actions
from ..episode_filter import EpisodeFilter
from ..store import Result
from .conversation import clean, conversation, plain, turn_messages
from .source import ExportedEpisode, Source, describe_left_out, identity
from .training_data import write_lines


def write_preference(source: Source, path: Path) -> int:
    """Write preferences of an optimal action over the one taken, and return their number.

    There is a row for each reply with an action that is not optimal: `prompt` has the messages that the agent had
    received, `rejected` its reply, and `chosen` the same reply up to that action, and then an optimal one. Actions
    that repeat an earlier one in the same state are left out.

    Args:
        source: The run.
        path: File to write.

    Raises:
        ConfigurationError: No episode can be labelled and judged; the source's problems have the reasons.
    """
    judged = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal judged
        reasons: Counter[str] = Counter()
        for one, labels, env in _labelled_episodes(source):
            if labels.unknown and not labels.judged:
                reasons["no action has a known optimum."] += 1
                continue
            chosen = _choose(one.episode, labels)
            alternatives = _find_alternatives(env, one.episode, chosen)
            if isinstance(alternatives, Unlabelled):
                reasons[alternatives.reason] += 1
            else:
                judged += 1
                yield from _pairs(one, labels, chosen, alternatives, _dialogue(source, one.result, env))
        source.problems += _describe(reasons)

    number = write_lines(path, rows())
    _check_judged(source, judged)
    return number


def write_stepwise(source: Source, path: Path) -> int:
    """Write episodes whose replies are labelled as optimal or not, and return their number.

    A row has `prompt`, the system message; `completions`, of each turn the message to the agent and its reply; and
    `labels`, of each turn True if it has actions and all of them are optimal. `decisions` has the labels of its
    actions. A row ends before the first turn that cannot be judged, such as those after a fatal action.

    Args:
        source: The run.
        path: File to write.

    Raises:
        ConfigurationError: No episode can be labelled and judged; the source's problems have the reasons.
    """

    def rows() -> Iterator[dict[str, Any]]:
        reasons: Counter[str] = Counter()
        for one, labels, _ in _labelled_episodes(source):
            row = _steps(one, labels)
            if row["labels"]:
                yield row
            elif not one.episode.turns:
                reasons["no turn was played."] += 1
            elif labels.unknown:
                reasons["an action of the first turn has no known optimum."] += 1
            else:
                reasons["nothing could be reached from the start."] += 1
        source.problems += _describe(reasons)

    number = write_lines(path, rows())
    _check_judged(source, number)
    return number


def _check_judged(source: Source, judged: int) -> None:
    if not judged and source.exported:
        raise ConfigurationError(
            f"{source.folder}: there is nothing to export (none of its {source.exported} episodes can be judged)."
        )


def _labelled_episodes(source: Source) -> Iterator[tuple[ExportedEpisode, EpisodeDecisions, TextEnv[Any]]]:
    """Yield the complete episodes with their labels, which are computed where the run has none stored."""
    results = source.results(EpisodeFilter(error=False))
    stored = read_labels(source.folder, results)
    envs = _open_envs(source, results)
    reasons: Counter[str] = Counter()
    for one in source.episodes(results):
        env = envs[one.result.key.entry]
        labels: Labels | None = stored.get(one.result.key)
        if isinstance(env, Unlabelled):
            labels = env
        elif not isinstance(labels, EpisodeDecisions):
            labels = _label(env, one.episode)
        if isinstance(labels, EpisodeDecisions) and isinstance(env, TextEnv):
            yield one, labels, env
        elif isinstance(labels, Unlabelled):
            reasons[labels.reason] += 1
    source.problems += _describe(reasons)


def _describe(reasons: Mapping[str, int]) -> list[str]:
    return [describe_left_out(number, reason) for reason, number in reasons.items()]


def _open_envs(source: Source, results: Sequence[Result]) -> dict[str, TextEnv[Any] | Unlabelled]:
    """Return the environment of each entry, or the reason why it cannot be made."""
    envs: dict[str, TextEnv[Any] | Unlabelled] = {}
    used = {result.key.entry for result in results}
    for entry in source.suite.entries:
        if entry.name in used:
            try:
                envs[entry.name] = entry.make()
            except Exception as error:
                envs[entry.name] = Unlabelled(f"The environment cannot be made: {error}")
    return envs


def _label(env: TextEnv[Any], episode: Episode) -> Labels:
    try:
        return label_episode(env, episode)
    except Exception as error:  # Of an environment whose service does not answer.
        return _failure(error)


def _failure(error: Exception) -> Unlabelled:
    return Unlabelled(describe_failure("The replay", error))


# ---------------------------------------------------------------------- preferences


_Chosen = Mapping[int, tuple[int, int]]
"""Turn and first action of the turn, by the index of an action that is not optimal."""


def _choose(episode: Episode, labels: EpisodeDecisions) -> _Chosen:
    """Return the first action of each turn that is not optimal, without those that repeat an earlier one."""
    chosen: dict[int, tuple[int, int]] = {}
    for number, (start, end) in enumerate(_spans(episode)):
        index = next((n for n in range(start, end) if labels.decisions[n].optimal is False), None)
        if index is not None and not labels.decisions[index].repeated:
            chosen[index] = number, start
    return chosen


def _find_alternatives(
    env: TextEnv[Any], episode: Episode, chosen: _Chosen
) -> Mapping[int, tuple[str, ...]] | Unlabelled:
    try:
        return find_optimal_actions(env, episode, chosen)
    except Exception as error:  # The task is unknown here, or a service does not answer.
        return _failure(error)


def _pairs(
    one: ExportedEpisode,
    labels: EpisodeDecisions,
    chosen: _Chosen,
    alternatives: Mapping[int, tuple[str, ...]],
    dialogue: Dialogue | None,
) -> Iterator[dict[str, Any]]:
    episode, decisions = one.episode, labels.decisions
    actions = [move.action for turn in episode.turns for move in turn.moves]
    for index, (number, start) in chosen.items():
        best = alternatives[index]
        turn = episode.turns[number]
        prompt, reply = _request(one, number)
        better = _replace_action(dialogue, reply, actions[start:index], actions[index], best)
        if better is not None:
            yield {
                "prompt": plain(prompt),
                "chosen": plain([Message("assistant", better)]),
                "rejected": plain([Message("assistant", reply)]),
                **identity(one),
                "turn": number,
                "state": clean(turn.observation),
                "before": [clean(action) for action in actions[start:index]],
                "taken": clean(actions[index]),
                "optimal": [clean(action) for action in best],
                **_regrets(decisions[index]),
                "exact": labels.exact,
            }


def _request(one: ExportedEpisode, number: int) -> tuple[list[Message], str]:
    """Return the messages before the reply that a turn's actions come from, and that reply."""
    for exchange in reversed(one.episode.exchanges):  # A notice may have asked for another reply.
        if exchange.turn == number and exchange.purpose == TURN and exchange.answer is not None:
            return list(exchange.messages), exchange.answer
    system = [Message("system", one.instructions)] if one.instructions else []
    turns = list(turn_messages(one.episode))
    return [*system, *turns[: 2 * number + 1]], one.episode.turns[number].reply


def _dialogue(source: Source, result: Result, env: TextEnv[Any]) -> Dialogue | None:
    """Return an agent's dialogue in an environment; None for an agent without one, whose reply is its actions."""
    settings: Mapping[str, Any] = source.manifest.get("settings", {}).get(result.key.agent, {})
    options = dict(settings.get(result.key.entry, {}).get("dialogue", {}))
    if "name" not in options:
        return None
    name = options.pop("name")
    path = options.pop("class", name)
    try:
        return make_dialogue(path, options).bind(env)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{source.folder}: the dialogue {path} of {result.key.agent} cannot be made here: {error}"
        ) from error


def _replace_action(
    dialogue: Dialogue | None, reply: str, before: Sequence[str], taken: str, best: Sequence[str]
) -> str | None:
    """Return a well-formed reply with the best action in the place of the taken one and all after it.

    None if that is impossible.
    """
    if not best:
        return None
    wanted = (*before, best[0])
    if dialogue is None:
        return "\n".join(wanted)
    place = reply.rfind(taken)
    replaced = reply[:place] + best[0] + reply[place + len(taken) :]
    span = dialogue.thought_span(reply)
    thought = dialogue.parse(reply).thought if span is None else reply[slice(*span)]
    written = dialogue.demonstrate(thought or "", f" {SEPARATOR} ".join(wanted))
    candidates = [replaced, written] if place >= 0 else [written]
    parsed = ((text, dialogue.parse(text)) for text in candidates)
    return next((text for text, one in parsed if one.well_formed and one.actions == wanted), None)


# ---------------------------------------------------------------------- labelled steps


def _steps(one: ExportedEpisode, labels: EpisodeDecisions) -> dict[str, Any]:
    episode = one.episode
    messages = conversation(episode, one.instructions)
    texts = [message.content for message in messages if message.role != "system"]
    if len(texts) != 2 * len(episode.turns):  # A request was rejected.
        texts = [text for turn in episode.turns for text in (turn.observation, turn.reply)]
    completions: list[str] = []
    judgments: list[bool] = []
    decisions: list[dict[str, Any]] = []
    for number, (start, end) in enumerate(_spans(episode)):
        judged = [decision.optimal for decision in labels.decisions[start:end]]
        if False not in judged and None in judged:
            break
        completions.append(clean("\n".join(texts[2 * number : 2 * number + 2])))
        judgments.append(bool(judged) and all(judged))
        moves = zip(episode.turns[number].moves, labels.decisions[start:end], strict=True)
        decisions += [
            {"turn": number, "action": clean(move.action), "optimal": decision.optimal, **_regrets(decision)}
            for move, decision in moves
        ]
    return {
        "prompt": clean("\n".join(message.content for message in messages if message.role == "system")),
        "completions": completions,
        "labels": judgments,
        **identity(one),
        "outcome": labels.outcome,
        "exact": labels.exact,
        "measure": labels.measure,
        "decisions": decisions,
    }


def _spans(episode: Episode) -> Iterator[tuple[int, int]]:
    """Yield the index of the first action of each turn, and of the first after it."""
    ends = [0]
    for turn in episode.turns:
        ends.append(ends[-1] + len(turn.moves))
    yield from pairwise(ends)


def _regrets(decision: Decision) -> dict[str, Any]:
    return {name: getattr(decision, name) for name in ("value_regret", "step_regret", "fatal")}
