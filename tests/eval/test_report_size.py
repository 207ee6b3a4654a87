"""The size of `report.html`, whatever a run holds."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.eval.evaluate import print_remarks
from arboretum.eval.results import report
from arboretum.eval.store import EpisodeKey, Store, encode_episode
from arboretum.eval.suite import read_suite

LIMIT = 5_000_000


def write_run(folder: Path, sizes: Sequence[int], *, entries: int = 1, errors: Sequence[str | None] = ()) -> None:
    """Write a run with an episode of incompressible text for each size, in bytes, on each entry."""
    items = [{"name": f"E{n}", "env": "TextFrozenLake-v0", "repeats": len(sizes)} for n in range(entries)]
    suite = read_suite({"name": "s", "entries": items}, "s.yaml")
    store = Store(folder, {"suite": suite.to_dict(), "agents": ["a"]})
    rng = random.Random(0)
    for entry in suite.entries:
        for repeat, size in enumerate(sizes):
            key = EpisodeKey("a", entry.name, "test/0", repeat)
            seed = suite.episode_seed(entry, key.task, repeat)
            text = base64.b64encode(rng.randbytes(3 * size // 4)).decode()
            episode = Episode("TextFrozenLake-v0", key.task, seed, "a")
            episode.turns = [Turn(text, "Up", moves=[Move("Up", 0.0, True, True)])]
            episode.error = errors[repeat] if errors else None
            store.append(encode_episode(key, episode))
    store.close()


def shown(page: str) -> list[list[Any]]:
    """Return the episodes in the index of each cell of a page."""
    found = re.findall(r'<script type="text/plain" class="cell"[^>]*>([^<]*)</script>', page)
    return [json.loads(gzip.decompress(base64.b64decode(one))) for one in found]


@pytest.mark.parametrize(
    ("sizes", "entries", "left_out"),
    [
        ([100_000] * 100, 1, range(60, 90)),
        ([20_000] * 30, 20, range(20, 30)),
        ([8_000_000, 2_000, 2_000], 1, range(1, 2)),
        ([8_000_000], 1, range(1, 2)),
        ([100] * 6_000, 1, range(1_000, 1_001)),
        ([2_000] * 20, 1, range(1)),
    ],
    ids=["many", "many entries", "one is large", "only a large one", "short ones", "all fit"],
)
def test_page_is_small_and_says_what_it_leaves_out(
    sizes: list[int], entries: int, left_out: range, tmp_path: Path
) -> None:
    write_run(tmp_path, sizes, entries=entries)
    report([tmp_path])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < LIMIT
    numbers = {int(text.replace(",", "")) for text in re.findall(r"a on E\d+: ([\d,]+) left out", page)}
    assert all(number in left_out for number in numbers) and bool(numbers) == (left_out != range(1))
    assert ("shows a sample of the episodes" in page) == bool(numbers)
    if len(numbers) == 1:
        assert all(len(cell) == len(sizes) - max(numbers) for cell in shown(page))


def test_sample_is_evenly_spaced(tmp_path: Path) -> None:
    write_run(tmp_path, [100_000] * 100)
    report([tmp_path])
    ((*rows,),) = shown((tmp_path / "report.html").read_text(encoding="utf-8"))
    repeats = [row[2] for row in rows]
    assert len({second - first for first, second in pairwise(repeats)}) == 1 and len(repeats) > 20


def test_reasons_of_broken_episodes_are_listed_up_to_a_number(tmp_path: Path) -> None:
    write_run(tmp_path, [10] * 3_000, errors=[f"lost at 0x{n:08x} {'x' * 3_000}" for n in range(3_000)])
    summary = report([tmp_path])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < LIMIT and "2900 further reasons are in summary.json" in page
    text = StringIO()
    print_remarks(summary, Console(file=text, width=200))
    assert "2980 broke off for 2980 further reasons; see summary.json." in text.getvalue()
    assert len(json.loads((tmp_path / "summary.json").read_text())["errors"]) == 3_000
