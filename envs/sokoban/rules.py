"""Sokoban's rules on a board kept as text.

A board is what the player reads: rows of symbols joined by newlines. One move looks at three cells in a line
(the player, the cell ahead, the cell beyond) and replaces them, so the rules are one small dictionary per
direction from three symbols to three symbols, and a step is a slice, a look-up and a concatenation.

The same indices serve the searches: bit `i` of a bit board is character `i` of the text (newlines are never
floor), and a step up or down is a shift by the *stride*, the row length with its newline.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

ACTIONS = ("Up", "Down", "Left", "Right")

MOVE_REWARD = -0.1
"""Paid for every move, a bump into a wall included (gym-sokoban 0.0.5)."""
BOX_REWARD = 1.0
"""Paid for a box pushed onto a target; taken for one pushed off it (gym-sokoban 0.0.5)."""
SOLVED_REWARD = 10.0
"""Paid on top when every box stands on a target (gym-sokoban 0.0.5)."""


class Vocabulary(NamedTuple):
    """One symbol for each kind of cell; all different, single characters."""

    wall: str
    floor: str
    target: str
    box_on_target: str
    box: str
    player: str
    player_on_target: str


VOCABULARIES = {
    "standard": Vocabulary("#", "_", "O", "√", "X", "P", "S"),
    "new": Vocabulary("W", ".", "G", "C", "B", "A", "@"),
}
"""RAGEN's symbols, and those of its NewVocab world."""

STANDARD = VOCABULARIES["standard"]


class State(NamedTuple):
    """Where an episode stands; immutable.

    Attributes:
        board: the board's text in the world's vocabulary.
        player: the player's index in `board`.
        missing: how many boxes stand off target.
    """

    board: str
    player: int
    missing: int


class Effect(NamedTuple):
    """What a move does to three cells in a line, given in the order in which they stand in the text.

    Attributes:
        cells: the three new symbols.
        reward: the move's reward, without the bonus for solving.
        missing: the change in the number of boxes off target.
    """

    cells: str
    reward: float
    missing: int


class Move(NamedTuple):
    """One direction on boards of one stride.

    Attributes:
        shift: what to add to the player's index.
        first: where the line of three cells starts, relative to the player (lowest index first).
        last: where it ends, relative to the player, exclusive.
        step: the distance of neighbouring cells of the line: 1 or the stride.
        effects: from the three symbols to what happens; a line that is not in it does not move.
    """

    shift: int
    first: int
    last: int
    step: int
    effects: dict[str, Effect]


def translate(text: str, source: Vocabulary, target: Vocabulary) -> str:
    """The same board in another vocabulary."""
    return text if source == target else text.translate(str.maketrans("".join(source), "".join(target)))


def start_state(board: str, vocabulary: Vocabulary) -> State:
    """The state that a board shows. It must hold exactly one player."""
    player = max(board.find(vocabulary.player), board.find(vocabulary.player_on_target))
    return State(board, player, board.count(vocabulary.box))


def _effects(vocabulary: Vocabulary) -> Iterator[tuple[str, Effect]]:
    """Every line (player, ahead, beyond) that moves, and its effect."""
    wall, floor, target, box_on_target, box, player, player_on_target = vocabulary
    left_behind = {player: floor, player_on_target: target}
    walked_onto = {floor: player, target: player_on_target}
    pushed_from = {box: player, box_on_target: player_on_target}
    pushed_onto = {floor: box, target: box_on_target}
    for mover, behind in left_behind.items():
        for ahead, stepped in walked_onto.items():
            for beyond in (wall, floor, target, box_on_target, box):
                yield mover + ahead + beyond, Effect(behind + stepped + beyond, MOVE_REWARD, 0)
        for ahead, stepped in pushed_from.items():
            for beyond, pushed in pushed_onto.items():
                missing = (pushed == box) - (ahead == box)
                effect = Effect(behind + stepped + pushed, MOVE_REWARD - BOX_REWARD * missing, missing)
                yield mover + ahead + beyond, effect


@lru_cache(maxsize=256)
def moves(stride: int, vocabulary: Vocabulary) -> dict[str, Move]:
    """The four directions by action name (as in `ACTIONS`, and in lower case)."""
    forward = dict(_effects(vocabulary))
    backward = {line[::-1]: effect._replace(cells=effect.cells[::-1]) for line, effect in forward.items()}
    table = {
        "Up": Move(-stride, -2 * stride, 1, stride, backward),
        "Down": Move(stride, 0, 2 * stride + 1, stride, forward),
        "Left": Move(-1, -2, 1, 1, backward),
        "Right": Move(1, 0, 3, 1, forward),
    }
    return table | {name.lower(): move for name, move in table.items()}


class Masks(NamedTuple):
    """A board as bit boards: bit `i` stands for the cell at index `i` of the text.

    Attributes:
        stride: the distance of vertically neighbouring cells.
        floor: every cell that is not a wall.
        targets: the target cells.
        boxes: the cells with boxes.
        player: the player's cell, one bit.
    """

    stride: int
    floor: int
    targets: int
    boxes: int
    player: int

    @classmethod
    def of(cls, board: str, vocabulary: Vocabulary) -> Masks:
        """The bit boards of a text whose outermost cells are walls."""
        backwards = board[::-1].replace("\n", vocabulary.wall)

        def where(*symbols: str) -> int:
            return int(backwards.translate({ord(s): "01"[s in symbols] for s in vocabulary}), 2)

        wall, _, target, box_on_target, box, player, player_on_target = vocabulary
        return cls(
            stride=board.index("\n") + 1,
            floor=where(*(s for s in vocabulary if s != wall)),
            targets=where(target, box_on_target, player_on_target),
            boxes=where(box, box_on_target),
            player=where(player, player_on_target),
        )


def cells(mask: int) -> Iterator[int]:
    """The set bits of a bit board, each as a one-bit board, lowest first."""
    while mask:
        low = mask & -mask
        yield low
        mask ^= low
