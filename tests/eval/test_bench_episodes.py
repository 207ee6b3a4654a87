"""Benchmarks of episodes: conversations beside `play`, and environments that wait for a server."""

from __future__ import annotations

import pytest

from arboretum.eval.bench import conversation, waiting


def test_conversation_and_play_are_measured_on_the_same_turns() -> None:
    (row,) = conversation.measure(episodes=4, rounds=3)
    assert row.unit == "%" and not row.higher_is_better and -90 < row.value < 200


def test_waiting_for_searches_concurrently_beats_one_after_another() -> None:
    pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'arboretum-rl[openai]'")
    (row,) = waiting.measure(rounds=1)
    sequential = float(row.details.split()[-2])
    # No episode can be faster than its own four searches of 50 ms.
    assert 0.2 <= row.value < sequential / 2 and sequential >= 3.2
