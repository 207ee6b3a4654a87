"""The checks: promises of OpenEnv's quality policy that can be measured on an environment in this process.

Their names are those of `severity-v2.json` in the package `openenv` (RFC 008 of OpenEnv gives their intent), and
`set_state` is a capability of its manifest. Each check's docstring is its meaning here. As in the RFC, what
compares episodes presupposes that they are deterministic: without that, it is skipped.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import getdoc
from itertools import zip_longest
from statistics import fmean
from typing import Any, Literal

from ...agents.forks import CannotFork, take_snapshot
from ...envs.core import TextEnv
from ...envs.snapshots import Snapshot
from ...envs.user_code import describe_failure
from ..provenance import count_words
from ..statistics import paired
from .episodes import Step, difference, digests, replay, take
from .other_process import pin_tasks
from .subject import NoExpert, Outcome, Subject

FLOOR_MARGIN = 0.1
"""Smallest gap between expert and floor; `min_floor_margin` of the policy."""

CONFIDENCE = 0.95
"""Confidence level of the gap, whose lower bound must reach the margin."""

ORACLE_CONFIDENCE = 0.99
"""Confidence level of the expert's mean, in environments with chance."""

COINCIDENCE = 0.01
"""Largest probability at which the same task for all seeds counts as a fault."""

_ROUNDING = 1e-9

Status = Literal["pass", "fail", "skip", "inconclusive"]


class TooFewTasks(Exception):
    """No result on so few tasks could show what a check requires."""


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        check_id: Name of the check in the policy.
        status: "pass", "fail", "skip" if the check does not apply, or "inconclusive" if so few tasks cannot show
            what it requires.
        evidence: The reason, in one sentence.
        measured: Figures of the check.
    """

    check_id: str
    status: Status
    evidence: str
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Result:
    """Result of a check before it is named; `passed` is None if the check does not apply."""

    passed: bool | None
    evidence: str
    measured: dict[str, Any]


def check_seed_control(subject: Subject) -> _Result:
    """The seed of a reset determines the task, the first observation and the random events, and it matters.

    Resets with the same seed, in a new instance and in one that has played before, open the same start. Different
    seeds open more than one start, and more than one task if there are several. If only few seeds are tried, they
    may draw the same task by chance, which is inconclusive.
    """
    used = subject.make()
    starts, tasks = set(), set()
    for number in range(subject.count):
        seed = subject.seed_of(number)
        pair = []
        for env in (subject.make(), used):
            observation, _ = env.reset(seed=seed)
            pair.append((env.task, observation, env.rng_state))
        if pair[0] != pair[1]:
            return _Result(False, f"two resets with the seed {seed} give different starts", {"seeds": number + 1})
        used.step(used.random_action(subject.rng(number)))
        starts.add(pair[0])
        tasks.add(pair[0][0])
    measured = {"seeds": subject.count, "starts": len(starts), "tasks": len(tasks)}
    seeds = count_words(subject.count, "seeds")
    total = len(subject.env.tasks)
    if subject.count > 1 and len(starts) == 1:
        return _Result(False, f"{seeds} give the same start; the seed is ignored", measured)
    if min(subject.count, total) > 1 and len(tasks) == 1:
        if total ** (1.0 - subject.count) > COINCIDENCE:
            raise TooFewTasks(f"{seeds} drew the same of {total} tasks, as chance may; set a larger --tasks")
        return _Result(False, f"{seeds} open the same task; the seed does not draw it", measured)
    return _Result(True, f"{seeds}, {count_words(len(starts), 'starts')}: the same in a used instance", measured)


def check_episode_determinism(subject: Subject) -> _Result:
    """The same task, seed and actions give the same episode in two new instances.

    Compared are all observations, rewards, flags, entries of `info` and state keys.
    """
    for recording in subject.recordings:
        steps = list(replay(subject.make(), recording.task, recording.seed, recording.actions))
        found = difference(recording, steps)
        if found is not None:
            return _Result(False, found, _extent(subject))
    return _Result(True, f"{_describe(subject)}: identical in a second instance", _extent(subject))


def check_episode_isolation(subject: Subject) -> _Result:
    """Episodes do not affect each other: neither those before in the same instance, nor those of another one.

    All recorded episodes are played one after another in one instance, and then in pairs in lock step.
    """
    env = subject.make()
    for recording in subject.recordings:
        found = difference(recording, list(replay(env, recording.task, recording.seed, recording.actions)))
        if found is not None:
            return _Result(False, f"{found} after other episodes in the same instance", _extent(subject))
    recordings = subject.recordings
    pairs = list(zip(recordings, recordings[1:] or recordings, strict=False))
    for pair in pairs:
        runs = [replay(subject.make(), one.task, one.seed, one.actions) for one in pair]
        played: tuple[list[Step], list[Step]] = [], []
        for both in zip_longest(*runs):
            for steps, step in zip(played, both, strict=True):
                if step is not None:
                    steps.append(step)
        for recording, steps in zip(pair, played, strict=True):
            found = difference(recording, steps)
            if found is not None:
                return _Result(False, f"{found} beside another session", _extent(subject))
    together = count_words(len(pairs), "pairs")
    evidence = f"{_describe(subject)}: identical in a used instance, and {together} in lock step"
    return _Result(True, evidence, _extent(subject) | {"pairs": len(pairs)})


def check_oracle_max(subject: Subject) -> _Result:
    """The environment's expert reaches the maximum.

    Without chance it does in every task: it succeeds, or reaches the score of `optimum()` where that is a score.
    With chance the mean of what it reached agrees with the mean of `optimum()`: the interval of their difference
    contains 0. The interval is Hoeffding's, at 99 %: valid for rare failures, too, unlike a normal one.
    """
    outcomes = subject.expert
    measure = subject.env.optimum_measure
    reached = fmean(outcome.value for outcome in outcomes)
    optimum = fmean(outcome.best for outcome in outcomes)
    measured = {
        "measure": measure,
        "episodes": len(outcomes),
        "reached": reached,
        "maximum": optimum,
        "maximum_is_proven": bool(subject.env.optimum_is_exact),
    }
    if not subject.has_chance:
        missed = [outcome.task for outcome in outcomes if outcome.value < outcome.best - _ROUNDING]
        measured["missed"] = len(missed)
        evidence = f"the maximum in {len(outcomes) - len(missed)} of {len(outcomes)} tasks"
        return _Result(not missed, f"{evidence}, not in {missed[0]}" if missed else evidence, measured)
    values = [0.0, 1.0, *(value for outcome in outcomes for value in (outcome.value, outcome.best))]
    half = (max(values) - min(values)) * math.sqrt(math.log(2 / (1 - ORACLE_CONFIDENCE)) / (2 * len(outcomes)))
    found = reached - optimum
    measured |= {"difference": found, "low": found - half, "high": found + half}
    evidence = (
        f"mean {measure} {reached:.3f} over {len(outcomes)} episodes, optimum {optimum:.3f}: difference"
        f" {found:+.3f} ± {half:.3f}"
    )
    return _Result(abs(found) <= half + _ROUNDING, evidence, measured)


def check_floor_gap(subject: Subject) -> _Result:
    """Random actions, and no action at all, succeed clearly less often than the expert.

    The lower bound of the 95 % interval of the paired difference in the rate of success is at least the policy's
    margin of 0.1. The rate of success takes the place of the reward, whose range differs between environments.
    """
    expert = _by_task(subject.expert)
    best, least = ([[success] * len(task) for task in expert] for success in (True, False))
    if paired(best, least, CONFIDENCE).difference.low < FLOOR_MARGIN:
        tasks = count_words(len(expert), "tasks")
        raise TooFewTasks(
            f"{tasks} cannot show a gap of {100 * FLOOR_MARGIN:.0f} points with 95 % confidence, even if the"
            " expert solves all and random actions none; set a larger --tasks"
        )
    measured: dict[str, Any] = {"episodes": len(subject.expert), "margin": FLOOR_MARGIN, "expert": _rate(expert)}
    gaps = []
    for name, outcomes in (("random", subject.random), ("idle", subject.idle)):
        floor = _by_task(outcomes)
        gaps.append(paired(expert, floor, CONFIDENCE).difference)
        measured[name] = _rate(floor)
    gap = min(gaps, key=lambda one: one.low)
    measured |= {"gap": gap.value, "low": gap.low, "high": gap.high}
    evidence = (
        f"success of the expert {100 * measured['expert']:.1f} %, of random actions"
        f" {100 * measured['random']:.1f} %, of no action {100 * measured['idle']:.1f} %; gap at least"
        f" {100 * gap.low:.1f} points with 95 % confidence, of {100 * FLOOR_MARGIN:.0f} required"
    )
    if gap.low < FLOOR_MARGIN <= gap.value:
        evidence += f"; measured are {100 * gap.value:.0f}: a larger --tasks may show them"
    return _Result(gap.low >= FLOOR_MARGIN, evidence, measured)


def check_replayability(subject: Subject) -> _Result:
    """A recorded episode, as JSON with task, seed and actions, gives the same episode in another process.

    That process has another salt of string hashes.
    """
    for recording, theirs in zip(subject.recordings, subject.elsewhere.episodes, strict=True):
        ours = digests(recording.steps)
        if ours != theirs:
            number = next(n for n, pair in enumerate(zip_longest(ours, theirs)) if pair[0] != pair[1])
            where = f"task {recording.task}, seed {recording.seed}"
            return _Result(False, f"{where}: another process differs after {number} actions", _extent(subject))
    return _Result(True, f"{_describe(subject)}: identical in another process", _extent(subject))


def check_task_distribution_pinning(subject: Subject) -> _Result:
    """The number of tasks, and what is behind an index, are the same in another process.

    Behind an index are the task's name, the configuration, the level and the first observation.

    The pin is a digest of all that for the sampled tasks. Equal pins mean equal tasks, data included.
    """
    ours = pin_tasks(subject.make(), subject.indices)
    theirs, total = subject.elsewhere.pins, len(subject.env.tasks)
    measured: dict[str, Any] = {"tasks": total, "sampled": len(ours)}
    if subject.elsewhere.tasks != total:
        evidence = f"{total} tasks here, and {subject.elsewhere.tasks} in another process"
        return _Result(False, evidence, measured)
    for index, one, other in zip(subject.indices, ours, theirs, strict=True):
        if one != other:
            found = f"task {index} is {one[0]} here, and another one in another process"
            if one[0] == other[0]:
                found = f"task {one[0]} has another configuration, level or first observation in another process"
            return _Result(False, found, measured)
    text = json.dumps([total, subject.indices, ours], ensure_ascii=True)
    pin = hashlib.sha256(text.encode()).hexdigest()
    return _Result(True, f"{total} tasks, {len(ours)} sampled: pin {pin[:12]}", measured | {"pin": pin})


def check_set_state(subject: Subject) -> _Result:
    """An episode continues identically from a state in its middle, random events included.

    The state is a snapshot, with which the episode goes on in another instance after it was pickled, and in its
    own after it has ended there; or else the actions so far.
    """
    for recording in subject.recordings:
        middle = len(recording.actions) // 2
        env, other = subject.make(), subject.make()
        first = list(replay(env, recording.task, recording.seed, recording.actions[:middle]))
        try:
            snapshot = take_snapshot(env)
        except CannotFork as error:
            return _Result(None, str(error), {})
        rest = recording.actions[middle:]
        if snapshot is None:
            steps = list(replay(other, recording.task, recording.seed, recording.actions))[middle:]
        else:
            steps = _resume(other, pickle.loads(pickle.dumps(snapshot)), first[-1], rest)
        found = difference(recording, steps, middle)
        if found is not None:
            return _Result(False, f"{found}, continued from the middle in another instance", _extent(subject))
        if snapshot is not None:
            for action in rest:
                take(env, action)
            found = difference(recording, _resume(env, snapshot, first[-1], rest), middle)
            if found is not None:
                text = f"{found}, restored in the same instance; is the state mutable?"
                return _Result(False, text, _extent(subject))
    return _Result(True, f"{_describe(subject)}: continued from the middle in another instance", _extent(subject))


def _resume(env: TextEnv[Any], snapshot: Snapshot, last: Step, actions: Sequence[str]) -> list[Step]:
    """Return the last step before a snapshot, with the state key after it is restored, and the steps after it."""
    env.restore(snapshot)
    return [last._replace(key=env.state_key()), *(take(env, action) for action in actions)]


Check = Callable[[Subject], _Result]

CHECKS: dict[str, Check] = {
    "static.task_distribution_pinning": check_task_distribution_pinning,
    "runtime.seed_control": check_seed_control,
    "runtime.episode_determinism": check_episode_determinism,
    "runtime.episode_isolation": check_episode_isolation,
    "semantic.oracle_max": check_oracle_max,
    "semantic.floor_gap": check_floor_gap,
    "semantic.replayability": check_replayability,
    "set_state": check_set_state,
}
"""All checks, by their names in the policy; the last one is a capability of the manifest."""

DETERMINISM = "runtime.episode_determinism"
PRESUPPOSE_DETERMINISM = {
    "runtime.episode_isolation",
    "semantic.oracle_max",
    "semantic.floor_gap",
    "semantic.replayability",
    "set_state",
}
"""Checks that are skipped for an environment that is not deterministic."""


def run_checks(subject: Subject) -> list[Finding]:
    """Return the findings of all checks.

    An exception of the environment fails the check in which it was raised.
    """
    findings: dict[str, Finding] = {}
    for name, check in CHECKS.items():
        determinism = findings.get(DETERMINISM)
        if name in PRESUPPOSE_DETERMINISM and determinism is not None and determinism.status == "fail":
            findings[name] = Finding(name, "skip", f"presupposes {DETERMINISM}")
            continue
        try:
            result = check(subject)
        except NoExpert as error:
            result = _Result(None if check is check_floor_gap else False, str(error), {})
        except TooFewTasks as error:
            findings[name] = Finding(name, "inconclusive", str(error))
            continue
        except Exception as error:  # of the environment
            result = _Result(False, describe_failure("the environment", error), {})
        status: Status = "skip" if result.passed is None else "pass" if result.passed else "fail"
        findings[name] = Finding(name, status, result.evidence, result.measured)
    return list(findings.values())


def meaning(name: str) -> str:
    """Return the meaning of a check: its docstring."""
    return getdoc(CHECKS[name]) or ""


def _extent(subject: Subject) -> dict[str, Any]:
    recordings = subject.recordings
    return {"episodes": len(recordings), "actions": sum(len(one.actions) for one in recordings)}


def _describe(subject: Subject) -> str:
    extent = _extent(subject)
    return f"{count_words(extent['episodes'], 'episodes')} of {count_words(extent['actions'], 'actions')}"


def _by_task(outcomes: Sequence[Outcome]) -> list[list[bool]]:
    """Return the successes of every task's episodes."""
    tasks: dict[str, list[bool]] = {}
    for outcome in outcomes:
        tasks.setdefault(outcome.task, []).append(outcome.success)
    return list(tasks.values())


def _rate(groups: Sequence[Sequence[bool]]) -> float:
    return sum(map(sum, groups)) / sum(map(len, groups))
