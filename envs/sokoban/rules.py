"""Transition rules of Sokoban on a board represented as text.

A board is the text of the observation: rows of symbols joined by newlines. A move depends on three cells in a
line (the player, the cell ahead and the cell beyond) and replaces them. The rules of one direction are therefore a
small dictionary from three symbols to three symbols, and a step is a slice, a dictionary access and a
concatenation.

The searches use the same indices: bit `i` of a bit board is character `i` of the text (a newline is never floor),
and a move up or down is a shift by the *stride*, the length of a row including its newline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from ..errors import ConfigurationError, unknown_name

ACTIONS = ("Up", "Down", "Left", "Right")

MOVE_REWARD = -0.1
"""Reward of every move, including a blocked one (gym-sokoban 0.0.5)."""
BOX_REWARD = 1.0
"""Reward of pushing a box onto a target; its negative is the reward of pushing one off (gym-sokoban 0.0.5)."""
SOLVED_REWARD = 10.0
"""Additional reward when every box is on a target (gym-sokoban 0.0.5)."""


class Vocabulary(NamedTuple):
    """Symbols of the kinds of cells: seven different single characters."""

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
"""RAGEN's symbols ("standard") and those of its NewVocab environment ("new")."""

STANDARD = VOCABULARIES["standard"]


def resolve_vocabulary(vocabulary: str | Vocabulary) -> Vocabulary:
    """Return the vocabulary of a name in `VOCABULARIES`, or a user's own after validating it.

    Raises:
        ConfigurationError: The name is unknown, or the symbols are not seven different printable characters.
    """
    if isinstance(vocabulary, str):
        if vocabulary not in VOCABULARIES:
            raise unknown_name("vocabulary", vocabulary, VOCABULARIES)
        return VOCABULARIES[vocabulary]
    symbols = tuple(vocabulary) if isinstance(vocabulary, Iterable) else (vocabulary,)
    are_characters = all(
        isinstance(symbol, str) and len(symbol) == 1 and symbol.isprintable() for symbol in symbols
    )
    if not are_characters or len(symbols) != len(Vocabulary._fields) or len(set(symbols)) != len(symbols):
        raise ConfigurationError(f"vocabulary must be seven different printable characters, not {symbols!r}.")
    return Vocabulary(*symbols)


class State(NamedTuple):
    """State of an episode.

    Attributes:
        board: Text of the board in the environment's vocabulary.
        player: Index of the player in `board`.
        missing: Number of boxes off target.
    """

    board: str
    player: int
    missing: int


class Effect(NamedTuple):
    """Effect of a move on three cells in a line.

    Attributes:
        cells: New symbols of the three cells, in the order of the text.
        reward: Reward of the move, without the bonus for solving.
        missing: Change in the number of boxes off target.
    """

    cells: str
    reward: float
    missing: int


class Move(NamedTuple):
    """Direction of movement on boards of one stride.

    Attributes:
        shift: Difference of the player's index after and before a step.
        first: Start of the line of three cells, relative to the player's index (lowest index first).
        last: End of the line, relative to the player's index, exclusive.
        step: Difference between the indices of neighboring cells of the line: 1 or the stride.
        effects: Mapping from the three symbols of the line to the effect. A line without an entry is blocked.
    """

    shift: int
    first: int
    last: int
    step: int
    effects: dict[str, Effect]


def translate(text: str, source: Vocabulary, target: Vocabulary) -> str:
    """Return a board in another vocabulary."""
    return text if source == target else text.translate(str.maketrans("".join(source), "".join(target)))


def start_state(board: str, vocabulary: Vocabulary) -> State:
    """Return the state of a board, which must contain exactly one player."""
    player = max(board.find(vocabulary.player), board.find(vocabulary.player_on_target))
    return State(board, player, board.count(vocabulary.box))


def _effects(vocabulary: Vocabulary) -> Iterator[tuple[str, Effect]]:
    """Yield every line (player, cell ahead, cell beyond) that is not blocked, and its effect."""
    wall, floor, target, box_on_target, box, player, player_on_target = vocabulary
    without_player = {player: floor, player_on_target: target}
    with_player = {floor: player, target: player_on_target}
    box_to_player = {box: player, box_on_target: player_on_target}
    with_box = {floor: box, target: box_on_target}
    for here, left in without_player.items():
        for ahead, entered in with_player.items():
            for beyond in (wall, floor, target, box_on_target, box):
                yield here + ahead + beyond, Effect(left + entered + beyond, MOVE_REWARD, 0)
        for ahead, entered in box_to_player.items():
            for beyond, pushed in with_box.items():
                missing = (pushed == box) - (ahead == box)
                effect = Effect(left + entered + pushed, MOVE_REWARD - BOX_REWARD * missing, missing)
                yield here + ahead + beyond, effect


@lru_cache(maxsize=256)
def moves(stride: int, vocabulary: Vocabulary) -> dict[str, Move]:
    """Return the four directions by action name, as in `ACTIONS` and in lower case."""
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
    """Board as a set of bit boards; bit `i` is the cell at index `i` of the text.

    Attributes:
        stride: Distance of vertically neighboring cells.
        floor: Cells that are not walls.
        targets: Target cells.
        boxes: Cells with boxes.
        player: Cell of the player, a single bit.
    """

    stride: int
    floor: int
    targets: int
    boxes: int
    player: int

    @classmethod
    def of(cls, board: str, vocabulary: Vocabulary) -> Masks:
        """Return the bit boards of a text whose outermost cells are walls."""
        reversed_board = board[::-1].replace("\n", vocabulary.wall)

        def mask_of(*symbols: str) -> int:
            return int(reversed_board.translate({ord(s): "01"[s in symbols] for s in vocabulary}), 2)

        wall, _, target, box_on_target, box, player, player_on_target = vocabulary
        return cls(
            stride=board.index("\n") + 1,
            floor=mask_of(*(s for s in vocabulary if s != wall)),
            targets=mask_of(target, box_on_target, player_on_target),
            boxes=mask_of(box, box_on_target),
            player=mask_of(player, player_on_target),
        )


def cells(mask: int) -> Iterator[int]:
    """Yield the set bits of a bit board, each as a one-bit board, lowest first."""
    while mask:
        low = mask & -mask
        yield low
        mask ^= low
