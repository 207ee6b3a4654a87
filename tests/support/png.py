"""Reader of the PNG files that this package writes."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np


def decode_png(data: bytes) -> Any:
    """Return the pixels of a PNG file with 8 bits per sample and filter 0, after checking its checksums."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    place = 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        (crc,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert crc == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + length
    width, height, depth, color_type, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    samples = {2: 3, 3: 1}[color_type]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + width * samples)
    assert depth == 8 and not rows[:, 0].any() and chunks[b"IEND"] == b""
    if color_type == 2:
        return rows[:, 1:].reshape(height, width, 3)
    return np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)[rows[:, 1:]]
