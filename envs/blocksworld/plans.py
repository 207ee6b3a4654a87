"""Scoring of a complete plan in one reply, strictly and by PlanBench's lenient parser."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from .notation import Unreadable, Vocabulary
from .rules import Action, Arrangement, Goal, holds, reached, successor, unmet

_BEGIN = re.compile(r"\s*\[plan\]\s*", re.IGNORECASE)
_END = re.compile(r"\s*\[plan end\]\s*", re.IGNORECASE)


class Verdict(NamedTuple):
    """Result of a plan.

    Attributes:
        report: Description of the result, shown in the observation.
        arrangement: Arrangement after a legal plan; the initial one for a plan that fails.
        legal: True if every line could be parsed and executed.
        success: True if the plan is legal and the goal holds at its end.
        lenient_success: The same by PlanBench's parser, which skips lines that it cannot parse.
        failed_line: First line that failed, counted from 1 in the complete reply; 0 if none failed.
    """

    report: str
    arrangement: Arrangement
    legal: bool
    success: bool
    lenient_success: bool
    failed_line: int


def is_consistent(verdict: Verdict) -> bool:
    """Return True if the fields of a verdict, except its arrangement, have the right kinds and agree."""
    report, _, legal, success, lenient_success, failed_line = verdict
    kinds = [str, bool, bool, bool, int]
    if list(map(type, (report, legal, success, lenient_success, failed_line))) != kinds:
        return False
    return failed_line >= 0 and (legal or not success) and not (legal and failed_line)


def score_plan(reply: str, start: Arrangement, goal: Goal, vocabulary: Vocabulary, max_length: int) -> Verdict:
    """Score a reply with one action per line, optionally between the lines [PLAN] and [PLAN END].

    Args:
        reply: Reply with the plan. Blank lines, and lines outside the markers, are ignored.
        start: Initial arrangement.
        goal: Goal of the task.
        vocabulary: Vocabulary that parses the lines and words the report.
        max_length: Maximum length of a reply in characters; a longer one fails without being parsed.
    """
    if len(reply) > max_length:
        report = f"The plan fails: a reply has at most {max_length} characters, this has {len(reply)}."
        return Verdict(report, start, False, False, False, 0)
    lines = plan_lines(reply)
    parsed = (vocabulary.read_leniently(line) for _, line in lines)
    lenient = _reaches_goal(goal, start, (action for action in parsed if action is not None))

    def failure(number: int, problem: str) -> Verdict:
        where = f" in line {number}" if number else ""
        return Verdict(f"The plan fails{where}: {problem}", start, False, False, lenient, number)

    if not lines:
        return failure(0, "it has no line.")
    actions: list[tuple[int, Action]] = []
    for number, line in lines:
        read = vocabulary.read(line)
        if isinstance(read, Unreadable):
            return failure(number, read)
        actions.append((number, read))
    state = start
    for number, action in actions:
        missing = unmet(action, state)
        if missing is not None:
            return failure(number, vocabulary.refusal(action, missing))
        state = successor(action, state)
    if reached(goal, state):
        return Verdict("The plan reaches the goal.", state, True, True, lenient, 0)
    open_ = ", ".join(vocabulary.fact(fact) for fact in goal.facts() if not holds(fact, state))
    return Verdict(f"The plan is legal but leaves open: {open_}.", state, True, False, lenient, 0)


def plan_lines(reply: str) -> list[tuple[int, str]]:
    """Return the lines of the plan with their line numbers in the reply."""
    lines = list(enumerate(reply.split("\n"), start=1))
    begin = next((place for place, (_, line) in enumerate(lines) if _BEGIN.fullmatch(line)), None)
    if begin is not None:
        lines = lines[begin + 1 :]
    end = next((place for place, (_, line) in enumerate(lines) if _END.fullmatch(line)), len(lines))
    return [(number, line) for number, line in lines[:end] if line.strip()]


def _reaches_goal(goal: Goal, state: Arrangement, actions: Iterable[Action]) -> bool:
    """Return True if every action is legal in turn and the goal holds after the last."""
    for action in actions:
        if max(action.block, action.other) >= len(state) or unmet(action, state) is not None:
            return False
        state = successor(action, state)
    return reached(goal, state)
