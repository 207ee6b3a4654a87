"""Blocksworld in two notations, English and PDDL: writing facts and actions, and parsing actions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from operator import getitem
from typing import Any

from .rules import HAND, PICK_UP, PUT_DOWN, STACK, TABLE, UNSTACK, Action, Arrangement, Fact, Goal

NOTATIONS = ("english", "pddl")

COLORS = (
    "red", "blue", "orange", "yellow", "white", "magenta", "black", "cyan", "green", "violet", "silver", "gold"
)  # fmt: skip
"""PlanBench's names of the blocks a to l; later letters are used unchanged."""

_MAX_LENGTH = 200
_BLOCK = r"(?!a block)(?:the )?(?:block )?([a-z][a-z0-9_-]*)(?: block)?"
_FORMS = tuple(
    (verb, re.compile(pattern, re.ASCII))
    for verb, pattern in (
        (PICK_UP, rf"pick[-_ ]?up {_BLOCK}(?: from the table)?"),
        (PUT_DOWN, rf"put[-_ ]?down {_BLOCK}(?: on(?:to)? the table)?"),
        (STACK, rf"stack {_BLOCK} (?:on top of|onto|on to|on) {_BLOCK}"),
        (STACK, r"stack ([a-z][a-z0-9_-]*) ([a-z][a-z0-9_-]*)"),
        (UNSTACK, rf"unstack {_BLOCK} (?:from on top of|from the top of|from|off of|off) {_BLOCK}"),
        (UNSTACK, r"unstack ([a-z][a-z0-9_-]*) ([a-z][a-z0-9_-]*)"),
    )
)
_OPERATOR_PARTS = ("up", "down", "stack")
"""Every operator has one of these in all its spellings."""
_LIST_MARKER = re.compile(r"(?:\d{1,4}[.)]|[-*]) ")


class Unreadable(str):
    """Reason why a line is not an action."""


class Vocabulary:
    """Names of the blocks, with a writer of facts and actions and a parser of actions.

    Args:
        names: PDDL names of the blocks. If all are single letters, the first twelve of the alphabet have
            PlanBench's color names in English.
        notation: "english" or "pddl", the notation of the writer. The parser accepts both.
    """

    def __init__(self, names: Sequence[str], notation: str) -> None:
        self.notation = notation
        self.names = tuple(names)
        uses_colors = all(len(name) == 1 for name in names)
        self.words = tuple(_color(name) if uses_colors else name for name in names)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._numbers |= {name: number for number, name in enumerate(self.names)}
        others = [color for color in COLORS if uses_colors and color not in self.words]
        self._known_blocks = (*self.words, *others)
        self._mentions = re.compile(rf"(?<![a-z0-9])({'|'.join(map(re.escape, self._known_blocks))}) block")
        self._count = len(self.names)
        blocks = range(self._count)
        self._separator = ", " if notation == "english" else " "
        self._clear = [self._slot("clear", block) for block in blocks]
        self._hand_empty = self._slot("handempty")
        self._held = [self._slot("holding", block) for block in blocks]
        # The last two columns, which index `HAND` and `TABLE` select, are of blocks that are not on others.
        self._on = [[*(self._slot("on", block, other) for other in blocks), "", ""] for block in blocks]
        self._table = [[*("" for _ in blocks), "", self._slot("ontable", block)] for block in blocks]
        actions = [Action(PUT_DOWN, block) for block in blocks]
        self._put_down = [self._write_action(action) for action in actions]
        # The last column, which index `TABLE` selects, takes a block from the table.
        taking = [
            [Action(UNSTACK, block, other) for other in blocks] + [Action(PICK_UP, block)] for block in blocks
        ]
        self._take = [[self._write_action(action) for action in row] for row in taking]
        stacking = [[Action(STACK, block, other) for other in blocks] for block in blocks]
        self._stack = [[self._write_action(action) for action in row] for row in stacking]
        for row in (*taking, *stacking):
            actions += row
        self.canonical: dict[str, Action] = {self._write_action(action): action for action in actions}
        """Mapping from the canonical wordings to their actions."""

    # ------------------------------------------------------------------ writing

    def fact(self, fact: Fact) -> str:
        """Return an atom in words, such as "the red block is on the table" or "(ontable a)"."""
        return self._english(fact, "") if self.notation == "english" else self._pddl(fact)

    def _slot(self, *fact: Any) -> str:
        return self.fact(Fact(*fact)) + self._separator

    def slots(self, state: Arrangement, clear: Sequence[int]) -> list[str]:
        """Return the atoms that hold in an arrangement, each in its place among all that could.

        The places are: which blocks are clear (one place a block), the hand (one), what each block is on, which
        blocks are on the table. Empty places have an empty text.

        Args:
            state: The arrangement.
            clear: Its blocks that are clear.
        """
        slots = [""] * self._count
        for block in clear:
            slots[block] = self._clear[block]
        slots.append(self._held[state.index(HAND)] if HAND in state else self._hand_empty)
        slots += map(getitem, self._on, state)
        slots += map(getitem, self._table, state)
        return slots

    def slots_after(self, action: Action, slots: list[str]) -> list[str]:
        """Return the slots after a legal action, which changes four of them at most."""
        verb, block, other = action
        hand = self._count
        slots = slots.copy()
        if verb == PICK_UP:
            slots[block] = slots[2 * hand + 1 + block] = ""
            slots[hand] = self._held[block]
        elif verb == PUT_DOWN:
            slots[block] = self._clear[block]
            slots[hand] = self._hand_empty
            slots[2 * hand + 1 + block] = self._table[block][TABLE]
        elif verb == STACK:
            slots[other] = ""
            slots[block] = self._clear[block]
            slots[hand] = self._hand_empty
            slots[hand + 1 + block] = self._on[block][other]
        else:
            slots[block] = slots[hand + 1 + block] = ""
            slots[other] = self._clear[other]
            slots[hand] = self._held[block]
        return slots

    def situation(self, slots: Sequence[str]) -> str:
        """Return the atoms of an arrangement, given as `slots`, in words."""
        texts = self._join(slots)
        return f"(:init {texts})" if self.notation == "pddl" else f"Now {texts}."

    def goal(self, goal: Goal) -> str:
        """Return the atoms of a goal, in words."""
        slots = [self._clear[block] for block in goal.clear]
        if goal.hand_empty:
            slots.append(self._hand_empty)
        slots += [self._on[block][support] for block, support in goal.on]
        slots += [self._table[block][TABLE] for block in goal.table]
        texts = self._join(slots)
        return f"(:goal (and {texts}))" if self.notation == "pddl" else f"Goal: {texts}."

    def _join(self, slots: Sequence[str]) -> str:
        texts = "".join(slots)
        if self.notation == "pddl":
            return texts[:-1]
        first, _, last = texts[:-2].rpartition(", ")  # No atom has a comma.
        return f"{first} and {last}" if first else last

    def action(self, action: Action) -> str:
        """Return an action in the canonical wording of the notation."""
        verb, block, other = action
        if verb == PUT_DOWN:
            return self._put_down[block]
        if verb == STACK:
            return self._stack[block][other]
        return self._take[block][TABLE if verb == PICK_UP else other]

    def legal_actions(self, state: Arrangement, clear: Sequence[int]) -> tuple[str, ...]:
        """Return the legal actions in canonical wording, ordered as those of the rules; see `situation`."""
        if HAND in state:
            held = state.index(HAND)
            row = self._stack[held]
            return (self._put_down[held], *[row[block] for block in clear])
        take = self._take
        return tuple([take[block][state[block]] for block in clear])

    def _write_action(self, action: Action) -> str:
        verb, block, other = action
        if self.notation == "pddl":
            return f"({' '.join([verb, *(self.names[number] for number in (block, other) if number >= 0)])})"
        if verb == PICK_UP:
            return f"pick up {self._the(block)}"
        if verb == PUT_DOWN:
            return f"put down {self._the(block)}"
        if verb == STACK:
            return f"stack {self._the(block)} on top of {self._the(other)}"
        return f"unstack {self._the(block)} from on top of {self._the(other)}"

    def refusal(self, action: Action, unmet: Fact) -> str:
        """Return the refusal of an action, which names the unmet precondition."""
        if self.notation == "pddl":
            return f"{self.action(action)} is not possible: {self._pddl(unmet)} does not hold."
        return f"You cannot {self.action(action)}: {self._english(unmet, 'not ')}."

    def _the(self, block: int) -> str:
        return f"the {self.words[block]} block"

    def _english(self, fact: Fact, negation: str) -> str:
        predicate, block, other = fact
        if predicate == "handempty":
            return f"the hand is {negation}empty"
        if predicate == "holding":
            return f"the hand is {negation}holding {self._the(block)}"
        if predicate == "clear":
            return f"{self._the(block)} is {negation}clear"
        place = "the table" if predicate == "ontable" else f"top of {self._the(other)}"
        return f"{self._the(block)} is {negation}on {place}"

    def _pddl(self, fact: Fact) -> str:
        return f"({' '.join([fact.predicate, *(self.names[block] for block in fact[1:] if block >= 0)])})"

    # ------------------------------------------------------------------ parsing

    def read(self, line: str) -> Action | Unreadable:
        """Parse an action in either notation.

        The parser ignores case, white space, articles, a list marker ("2." or "-"), emphasis and a final period.
        It is strict about everything else.

        Returns:
            The action, or the reason why the line is not one.
        """
        action = self.canonical.get(line)
        if action is not None:
            return action
        if len(line) > _MAX_LENGTH:
            return Unreadable(f"an action has at most {_MAX_LENGTH} characters, this has {len(line)}.")
        text = line.strip().replace("\t", " ").lower()
        if not text:
            return Unreadable(f"an empty line is no action. {self._examples}")
        if not (text.isascii() and text.isprintable()):
            return Unreadable(f"an action is written in plain printable letters. {self._examples}")
        text = " ".join(text.replace("**", "").replace("`", "").split())
        marker = _LIST_MARKER.match(text)
        text = (text[marker.end() :] if marker else text).removesuffix(".").rstrip()
        if text.startswith("(") and text.endswith(")"):
            text = text[1:-1].strip()
        for verb, form in _FORMS:
            match = form.fullmatch(text)
            if match is None:
                continue
            blocks = []
            for name in match.groups():
                number = self._numbers.get(name)
                if number is None:
                    return Unreadable(
                        f"there is no block {name!r}; the blocks are {', '.join(self._block_names())}."
                    )
                blocks.append(number)
            return Action(verb, *blocks)
        return Unreadable(f"{line.strip()[:80]!r} is not an action. {self._examples}")

    def read_leniently(self, line: str) -> Action | None:
        """Parse an action by PlanBench's lenient rules, or return None for a line that they skip.

        A line is an action if an operator is one of its words, and if it names as many different blocks, such as
        "red block", as the operator takes; they count in the order of their first mentions. Of several operators
        the first of `PICK_UP`, `PUT_DOWN`, `STACK` and `UNSTACK` counts. An action in PDDL, which PlanBench does
        not parse, is read strictly.

        Returns:
            The action; a block of PlanBench's that the task does not have is numbered beyond the task's.
        """
        text = line.lower()
        if not any(part in text for part in _OPERATOR_PARTS):
            return None
        if text.strip().startswith("("):
            read = self.read(line)
            return None if isinstance(read, Unreadable) else read
        for verb in (PICK_UP, PUT_DOWN):
            text = text.replace(verb.replace("-", " "), verb)
        words = text.split()
        verb = next((one for one in (PICK_UP, PUT_DOWN, STACK, UNSTACK) if one in words), "")
        first: dict[str, None] = dict.fromkeys(self._mentions.findall(text))
        if not verb or len(first) != (2 if verb in (STACK, UNSTACK) else 1):
            return None
        return Action(verb, *(self._known_blocks.index(word) for word in first))

    def _block_names(self) -> tuple[str, ...]:
        return self.words if self.notation == "english" else self.names

    @cached_property
    def _examples(self) -> str:
        first, second = (0, 1) if len(self.names) > 1 else (0, 0)
        examples = (
            Action(PICK_UP, first),
            Action(PUT_DOWN, first),
            Action(STACK, first, second),
            Action(UNSTACK, first, second),
        )
        return f"Write for example: {'; '.join(self.action(example) for example in examples)}."


@lru_cache(maxsize=64)
def vocabulary(names: tuple[str, ...], notation: str) -> Vocabulary:
    """Return the vocabulary of these names and notation, shared by all tasks that use them."""
    return Vocabulary(names, notation)


def _color(letter: str) -> str:
    index = ord(letter) - ord("a")
    return COLORS[index] if index < len(COLORS) else letter
