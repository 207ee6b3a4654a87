"""Scoring a whole plan given in one reply: strictly, and by PlanBench's lenient reading beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from .notation import Unreadable, Vocabulary
from .rules import Action, Arrangement, Goal, holds, reached, successor, unmet

_BEGIN = re.compile(r"\s*\[plan\]\s*", re.IGNORECASE)
_END = re.compile(r"\s*\[plan end\]\s*", re.IGNORECASE)


class Verdict(NamedTuple):
    """What became of a plan.

    Attributes:
        report: what happened, in words.
        arrangement: where a legal plan leads; where a failed one started.
        legal: every line was read and could be done.
        success: legal, and the goal holds at the end.
        lenient_success: the same where lines that cannot be read are skipped, as PlanBench does.
        failed_line: the first line that failed, counted from 1 in the whole reply; 0 where there is none.
    """

    report: str
    arrangement: Arrangement
    legal: bool
    success: bool
    lenient_success: bool
    failed_line: int


def judge(reply: str, start: Arrangement, goal: Goal, vocabulary: Vocabulary, longest: int) -> Verdict:
    """Score a reply that holds one action a line, optionally between [PLAN] and [PLAN END].

    Args:
        reply: the plan. Blank lines, and lines outside the markers, do not count.
        longest: a longer reply (in characters) fails unread.
    """
    if len(reply) > longest:
        report = f"The plan fails: a reply has at most {longest} characters, this has {len(reply)}."
        return Verdict(report, start, False, False, False, 0)
    lines = plan_lines(reply)
    before_cost = takewhile(lambda line: "[cost]" not in line.lower(), (line for _, line in lines))
    skimmed = (action for line in before_cost if (action := vocabulary.skim(line)) is not None)
    lenient = _leads_to(goal, start, skimmed)

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
    """The lines of the plan with their numbers in the reply."""
    lines = list(enumerate(reply.split("\n"), start=1))
    begin = next((place for place, (_, line) in enumerate(lines) if _BEGIN.fullmatch(line)), None)
    if begin is not None:
        lines = lines[begin + 1 :]
    end = next((place for place, (_, line) in enumerate(lines) if _END.fullmatch(line)), len(lines))
    return [(number, line) for number, line in lines[:end] if line.strip()]


def _leads_to(goal: Goal, state: Arrangement, actions: Iterable[Action]) -> bool:
    for action in actions:
        if unmet(action, state) is not None:
            return False
        state = successor(action, state)
    return reached(goal, state)
