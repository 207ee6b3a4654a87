"""Random damage to files: flipped bits, lost ends and foreign ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def files_below(folder: Path) -> list[Path]:
    """Return all files below a folder that have content, in a fixed order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


@contextmanager
def damage(path: Path, rng: random.Random) -> Iterator[str]:
    """Context in which a file is damaged; yields the kind of damage, and restores the file at the end."""
    original = path.read_bytes()
    content = bytearray(original)
    kind = rng.choice(("flip", "flip", "truncate", "extend"))
    if kind == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        del content[rng.randrange(len(content)) :]
    else:
        content += rng.randbytes(rng.randint(1, 40))
    path.write_bytes(content)
    try:
        yield f"{kind} of {path.name}"
    finally:
        path.write_bytes(original)
