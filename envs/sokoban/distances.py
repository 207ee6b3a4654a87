"""Fewest moves to the solution from every position of a small level, by one exhaustive backward search."""

from __future__ import annotations

import math
from functools import lru_cache

from .generator import layers
from .rules import Masks, Vocabulary

TABLE_LIMIT = 2_000
"""Maximum number of arrangements of boxes for which all distances are computed. The search of a level with one
box takes about 20 µs, that of one with two boxes on 23 cells (253 arrangements) about 0.4 ms. A* takes 40 to
600 µs for a single position of such levels."""


class Distances:
    """Distances of all positions of one level, computed with the first query.

    Args:
        stride: Distance of vertical neighbors in the bit boards.
        floor: Bit board of the cells that are not walls.
        targets: Bit board of the targets.
        boxes: Number of boxes.

    Attributes:
        states: Number of arrangements of the boxes; infinite if there is not one box per target, as on some boards
            of users, which the backward search does not cover.
    """

    def __init__(self, stride: int, floor: int, targets: int, boxes: int) -> None:
        is_paired = boxes == targets.bit_count()
        self.states: float = math.comb(floor.bit_count(), boxes) if is_paired else math.inf
        self._room = stride, floor, targets
        self._layers: list[dict[int, int]] | None = None

    def find(self, board: str, player: int, vocabulary: Vocabulary) -> int | None:
        """Return the fewest moves from a position to the solution, or None if it cannot be solved.

        Args:
            board: Text of the board.
            player: Index of the player in it.
            vocabulary: Symbols of the board.
        """
        if self._layers is None:
            self._layers = list(layers(*self._room))
        boxes = int(board.translate(_box_digits(vocabulary))[::-1], 2)
        cell = 1 << player
        for distance, layer in enumerate(self._layers):
            if layer.get(boxes, 0) & cell:
                return distance
        return None


def level_distances(masks: Masks) -> Distances:
    """Return the distances of a level; levels with equal walls and targets share them.

    Args:
        masks: Any position of the level.
    """
    return _shared_distances(masks.stride, masks.floor, masks.targets, masks.boxes.bit_count())


@lru_cache(maxsize=64)
def _shared_distances(stride: int, floor: int, targets: int, boxes: int) -> Distances:
    return Distances(stride, floor, targets, boxes)


@lru_cache(maxsize=16)
def _box_digits(vocabulary: Vocabulary) -> dict[int, str]:
    """Return the table for `str.translate` that maps boxes to "1" and all other characters to "0"."""
    digits = {ord(symbol): "0" for symbol in vocabulary} | {ord("\n"): "0"}
    return digits | {ord(vocabulary.box): "1", ord(vocabulary.box_on_target): "1"}
