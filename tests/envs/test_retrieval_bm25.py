"""Tests of BM25's top-k search against the index's exhaustive scoring, and of rank fusion."""

import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arboretum.envs import ConfigurationError
from arboretum.envs.retrieval import Document, Hit, Retriever
from arboretum.envs.retrieval.bm25 import BM25
from arboretum.envs.retrieval.fusion import Hybrid, reciprocal_rank_fusion
from arboretum.envs.retrieval.lucene_bm25 import BM25Index

# A skewed distribution of few words gives long and short posting lists, ties and repeats.
WORDS = [f"w{i}" for i in range(12) for _ in range(2 ** (12 - i) // 64 + 1)]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), min_size=1, max_size=80)


@settings(max_examples=60, deadline=None)
@given(texts, st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), st.integers(0, 12))
def test_top_k_search_equals_exhaustive_scoring(contents, query, k):
    documents = [Document(str(i), text) for i, text in enumerate(contents)]
    expected = BM25Index.build(documents).search(query, k)
    found = BM25.of(documents).search([query], k)[0]
    assert [(hit.document.id, hit.score) for hit in found] == expected


@pytest.mark.parametrize("length", range(300, 3000, 122))
def test_equal_scores_in_long_documents_are_ranked_by_id(length):
    """Terms of long documents have scores near the rounding errors of their weights, and so do their bounds."""

    def text(*words: str) -> str:
        return " ".join((*words, *(f"{words[0]}{i}" for i in range(length - len(words)))))

    documents = [
        Document("z", text("alphaone", "alphatwo")),
        Document("a", text("betaone")),
        Document("m", text("gammaone")),
        *(Document(f"s{i}", "common dog") for i in range(200)),
    ]
    index, retriever = BM25Index.build(documents), BM25.of(documents)
    for query in ("alphaone alphatwo gammaone betaone betaone", "gammaone betaone", "betaone alphaone"):
        for k in (1, 2):
            found = retriever.search([query], k)[0]
            assert [(hit.document.id, hit.score) for hit in found] == index.search(query, k)


def test_score_matches_hand_computed_value():
    retriever = BM25.of([Document("0", "oak oak elm"), Document("1", "elm ash"), Document("2", "fir")])
    (hit,) = retriever.search(["oaks"], 5)[0]
    # Robertson's formula with k1 0.9, b 0.4: N = 3, df = 1, tf = 2, length 3 of 2 on average.
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = idf * 2 / (2 + 0.9 * (1 - 0.4 + 0.4 * 3 / 2))
    assert hit.document.id == "0"
    assert hit.score == pytest.approx(expected, rel=1e-6)


def test_unusual_queries_are_answered():
    retriever = BM25.of([Document("0", "🌳 oak"), Document("1", "שלום עולם")])
    empty, stop, emoji, hebrew, lone = retriever.search(["", "the of", "🌳", "שלום", "\ud800"], 3)
    assert (empty, stop, lone) == ([], [], [])
    assert [emoji[0].document.id, hebrew[0].document.id] == ["0", "1"]
    assert retriever.search([], 3) == []
    assert len(retriever.search(["oak " * 25_000], 3)[0]) == 1


def test_concurrent_threads_get_equal_results():
    documents = [Document(str(i), f"w{i % 7} w{i % 11} w{i % 13} common") for i in range(500)]
    retriever = BM25.of(documents)
    queries = [f"w{i % 7} w{i % 11} common" for i in range(60)]
    expected = retriever.search(queries, 5)
    results = []
    threads = [threading.Thread(target=lambda: results.append(retriever.search(queries, 5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


class Fixed(Retriever):
    """Retriever with a fixed ranking."""

    def __init__(self, *order: str) -> None:
        self.order = order

    @property
    def identity(self) -> str:
        return f"fixed{self.order}"

    def search(self, queries, k):
        return [[Hit(Document(i, i), 1.0) for i in self.order[:k]] for _ in queries]


def test_reciprocal_rank_fusion_matches_hand_computed_values():
    # a: 1/61 + 1/63, b: 1/62 + 1/61, c: 1/63 + 1/62; d: 1/64
    fused = Hybrid([Fixed("a", "b", "c", "d"), Fixed("b", "c", "a")]).search(["x"], 3)[0]
    assert [hit.document.id for hit in fused] == ["b", "a", "c"]
    assert fused[0].score == pytest.approx(1 / 62 + 1 / 61)
    assert reciprocal_rank_fusion([], 3) == []


def test_hybrid_rejects_a_single_retriever_and_names_both():
    with pytest.raises(ConfigurationError, match="at least two"):
        Hybrid([Fixed("a")])
    assert "fixed('a',) + fixed('b',)" in Hybrid([Fixed("a"), Fixed("b")]).identity
