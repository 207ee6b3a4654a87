"""Anti-aliased shapes on an array of pixels.

A shape is given by its signed distance: negative inside, positive outside, in pixels. The coverage of a pixel is
the distance of its center, clipped to half a pixel on either side of the edge, which is exact for straight edges
that are parallel to the axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .typeface import GLYPH_HEIGHT, GLYPH_WIDTH, glyph

Picture = NDArray[np.uint8]
"""Pixels in red, green and blue, [height, width, 3]."""

Color = tuple[int, int, int]
_Plane = NDArray[np.float32]


def hex_color(code: str) -> Color:
    """Return the color of a code such as "#1f6b45"."""
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)


def mix(first: Color, second: Color, share: float) -> Color:
    """Return a color between two, of which the second has the given share."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def ink_on(color: Color) -> Color:
    """Return nearly black or white, whichever has the higher contrast on a color (WCAG 2.2, contrast ratio)."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in color)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (24, 28, 26) if luminance > 0.204 else (255, 255, 255)


class Canvas:
    """Picture in progress. Coordinates are in pixels from the top left corner, x to the right and y down.

    Args:
        height: Number of rows.
        width: Number of columns.
        color: Color of the background.
    """

    def __init__(self, height: int, width: int, color: Color) -> None:
        self._pixels = np.empty((height, width, 3), np.float32)
        self._pixels[:] = color
        self._y, self._x = np.mgrid[0.5:height, 0.5:width].astype(np.float32)

    @property
    def picture(self) -> Picture:
        """The picture so far, as a copy."""
        return np.asarray(np.rint(self._pixels), np.uint8)

    def box(self, x: float, y: float, width: float, height: float, color: Color, radius: float = 0.0) -> None:
        """Fill a rectangle with rounded corners, given by its top left corner and its size."""
        area = self._area(x, y, x + width, y + height)
        dx = np.abs(self._x[area] - (x + width / 2)) - (width / 2 - radius)
        dy = np.abs(self._y[area] - (y + height / 2)) - (height / 2 - radius)
        outside = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0))
        self._fill(area, outside + np.minimum(np.maximum(dx, dy), 0) - radius, color)

    def ellipse(self, x: float, y: float, across: float, down: float, color: Color) -> None:
        """Fill an ellipse, given by its center and its two radii."""
        area = self._area(x - across, y - down, x + across, y + down)
        scaled = np.hypot((self._x[area] - x) / across, (self._y[area] - y) / down)
        self._fill(area, (scaled - 1) * min(across, down), color)

    def ring(self, x: float, y: float, radius: float, thickness: float, color: Color) -> None:
        """Draw a circle, given by its center and its radius."""
        reach = radius + thickness / 2
        area = self._area(x - reach, y - reach, x + reach, y + reach)
        from_center = np.hypot(self._x[area] - x, self._y[area] - y)
        self._fill(area, np.abs(from_center - radius) - thickness / 2, color)

    def line(self, points: Sequence[tuple[float, float]], thickness: float, color: Color) -> None:
        """Draw a line through points, with round ends."""
        half = thickness / 2
        for (x0, y0), (x1, y1) in pairwise(points):
            area = self._area(min(x0, x1) - half, min(y0, y1) - half, max(x0, x1) + half, max(y0, y1) + half)
            x, y = self._x[area] - x0, self._y[area] - y0
            dx, dy = x1 - x0, y1 - y0
            along = np.clip((x * dx + y * dy) / (dx * dx + dy * dy), 0, 1)
            self._fill(area, np.hypot(x - along * dx, y - along * dy) - half, color)

    def triangle(self, corners: Sequence[tuple[float, float]], color: Color) -> None:
        """Fill a triangle whose corners are in clockwise order on the screen."""
        columns, rows = zip(*corners, strict=True)
        area = self._area(min(columns), min(rows), max(columns), max(rows))
        sides = []
        for (x0, y0), (x1, y1) in pairwise([*corners, corners[0]]):
            dx, dy = x1 - x0, y1 - y0
            across = (self._x[area] - x0) * dy - (self._y[area] - y0) * dx
            sides.append(across / np.float32(np.hypot(dx, dy)))
        self._fill(area, np.max(sides, axis=0), color)

    def text(self, x: float, y: float, text: str, color: Color, scale: int = 2) -> None:
        """Write capital letters and digits, centered on a point.

        Args:
            x, y: Center of the text.
            text: The text; other characters than letters, digits and hyphens are drawn as boxes.
            color: Color of the letters.
            scale: Pixels per dot of a letter, which has 5 x 7 dots.
        """
        left = round(x - text_width(text, scale) / 2)
        top = round(y - GLYPH_HEIGHT * scale / 2)
        for letter in text:
            dots = np.kron(glyph(letter), np.ones((scale, scale), bool))
            self._pixels[top : top + dots.shape[0], left : left + dots.shape[1]][dots] = color
            left += (GLYPH_WIDTH + 1) * scale

    def _area(self, left: float, top: float, right: float, bottom: float) -> tuple[slice, slice]:
        """Return the rows and columns that contain a rectangle and one pixel around it."""
        rows = slice(max(0, math.floor(top) - 1), max(0, math.ceil(bottom) + 1))
        return rows, slice(max(0, math.floor(left) - 1), max(0, math.ceil(right) + 1))

    def _fill(self, area: tuple[slice, slice], distance: _Plane, color: Color) -> None:
        coverage = np.clip(0.5 - distance, 0, 1)[..., None]
        self._pixels[area] += coverage * (np.asarray(color, np.float32) - self._pixels[area])


def text_width(text: str, scale: int) -> int:
    """Return the width of a text in pixels."""
    return max(0, (len(text) * (GLYPH_WIDTH + 1) - 1) * scale)


def paste(target: Picture, source: Picture, row: int, column: int) -> None:
    """Copy a picture into another one, with its top left corner at the given pixel."""
    target[row : row + source.shape[0], column : column + source.shape[1]] = source
