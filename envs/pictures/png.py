"""PNG files (ISO/IEC 15948) of pictures, with NumPy and zlib only."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from .canvas import Picture

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode_png(picture: Picture) -> bytes:
    """Return the PNG file of a picture.

    Pictures of at most 256 colors are stored with a palette, which is several times smaller.

    Args:
        picture: Pixels in red, green and blue, [height, width, 3], not empty.
    """
    height, width, _ = picture.shape
    packed = picture.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colors, places = np.unique(packed, return_inverse=True)
    if len(colors) <= 256:
        rows = places.reshape(height, width).astype(np.uint8)
        palette = colors.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:]
        chunks = [_header(width, height, color_type=3), _chunk(b"PLTE", palette.tobytes())]
    else:
        rows = np.ascontiguousarray(picture).reshape(height, 3 * width)
        chunks = [_header(width, height, color_type=2)]
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # filter 0 before every row
    data = zlib.compress(filtered.tobytes(), 6)
    return _SIGNATURE + b"".join([*chunks, _chunk(b"IDAT", data), _chunk(b"IEND", b"")])


def _header(width: int, height: int, color_type: int) -> bytes:
    """Return the chunk with the size and the kind of pixels: 8 bits per sample, not interlaced."""
    return _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
