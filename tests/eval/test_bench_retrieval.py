"""The retrieval benchmark and its generated passages."""

import pytest

from arboretum.eval.bench.passages import passages, questions
from arboretum.eval.bench.retrieval import measure


@pytest.mark.heavy
def test_small_run_yields_labeled_rows():
    rows = {row.what: row for row in measure(count=2000, build_passages=500, rounds=1)}
    names = " ".join(rows)
    assert "2,000 paragraphs" in names and "overhead" in names and "peak memory" in names
    build = next(row for row in rows.values() if "peak memory" in row.what)
    assert 20 < build.value < 2048 and build.reached


def test_fewer_passages_are_a_prefix_of_more():
    few, more = list(passages(1500, seed=3)), list(passages(2500, seed=3))
    assert more[:1500] == few
    assert len({document.id for document in more}) == 2500
    assert questions(few, 5) == questions(few, 5)
    assert all(50 <= len(document.text.split()) <= 139 for document in few)
