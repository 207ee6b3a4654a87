"""Tests of Lucene's analysis and BM25: worked cases, properties, and recorded terms of the original."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.envs.errors import DataError
from arboretum.envs.retrieval.lucene_bm25 import BM25Index, analyze, porter_stem, tokenize
from arboretum.envs.retrieval.lucene_bm25 import index as index_module

WORDS = ["red", "blue", "shirt", "shoe", "lamp", "desk", "the", "of", "running", "runner", "ran", "quickly"]


# Porter's examples (1980), step by step, and the two later changes.
@pytest.mark.parametrize(
    ("word", "stem"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("cats", "cat"), ("feed", "feed"),
        ("agreed", "agre"), ("plastered", "plaster"), ("bled", "bled"), ("motoring", "motor"), ("sing", "sing"),
        ("conflated", "conflat"), ("hopping", "hop"), ("falling", "fall"), ("filing", "file"), ("happy", "happi"),
        ("sky", "sky"), ("relational", "relat"), ("conditional", "condit"), ("vietnamization", "vietnam"),
        ("triplicate", "triplic"), ("hopeful", "hope"), ("goodness", "good"), ("revival", "reviv"),
        ("adoption", "adopt"), ("probate", "probat"), ("rate", "rate"), ("cease", "ceas"), ("controll", "control"),
        ("roll", "roll"), ("technology", "technolog"), ("possibly", "possibl"), ("is", "is"),
    ],
)  # fmt: skip
def test_porter_stems_match_published_examples(word: str, stem: str) -> None:
    assert porter_stem(word) == stem


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("wash.hand 3.5 a.1 1,000 a,b", ["wash.hand", "3.5", "a", "1", "1,000", "a", "b"]),
        ("size:m snake_case 30\" don't", ["size:m", "snake_case", "30", "don't"]),
        ("brand™ ❤️ 👨‍💼 👍🏽 🇫🇷", ["brand", "™", "❤️", "👨‍💼", "👍🏽", "🇫🇷"]),
        ("开心 カメラ ひら สวัสดี", ["开", "心", "カメラ", "ひ", "ら", "สวัสดี"]),
        ("naïve café ½ ²", ["naïve", "café"]),
        ("x" * 300, ["x" * 255, "x" * 45]),
    ],
)
def test_tokenizer_splits_at_word_breaks(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


def test_analysis_removes_stop_words_and_possessives() -> None:
    assert analyze("The Women's running shoes, and a dog’s TECHNOLOGY") == [
        "women", "run", "shoe", "dog", "technolog",
    ]  # fmt: skip


@given(st.text())
def test_ascii_and_general_tokenizers_agree(text: str) -> None:
    """A non-ASCII token, which disables the fast path for ASCII text, does not change the other tokens."""
    plain = text.encode("ascii", "ignore").decode()
    assert tokenize(plain + " é") == [*tokenize(plain), "é"]


def test_score_matches_the_formula_by_hand() -> None:
    """The formula of the module's docstring is evaluated with `math` for one of two documents."""
    index = BM25Index.build([("a", "lamp lamp desk"), ("b", "shirt")])
    idf = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    expected = idf - idf / (1 + 2 / (0.9 * (1 - 0.4 + 0.4 * 3 / 2)))
    ((name, score),) = index.search("lamps")
    assert name == "a"
    assert score == pytest.approx(expected, rel=1e-6)


def test_ties_are_broken_by_document_id() -> None:
    index = BM25Index.build([("c", "lamp"), ("a", "lamp"), ("b", "lamp"), ("d", "desk")])
    assert [name for name, _ in index.search("lamp", 2)] == ["a", "b"]
    assert index.search("nothing here") == []
    assert index.search("", 5) == []


@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), max_size=12), st.sampled_from(WORDS))
def test_top_k_is_the_head_of_the_full_ranking(texts: list[str], query: str) -> None:
    index = BM25Index.build((f"d{i}", text) for i, text in enumerate(texts))
    ranking = index.search(query, len(texts) + 1)
    assert ranking == sorted(ranking, key=lambda hit: (-hit[1], hit[0]))
    assert index.search(query, 3) == ranking[:3]
    assert len(ranking) == sum(not set(analyze(query)).isdisjoint(analyze(text)) for text in texts)


def test_index_in_memory_equals_index_built_from_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    documents = [(f"{i:03}", " ".join(rng.choice(WORDS, size=rng.integers(0, 30)))) for i in range(200)]
    in_memory = BM25Index.build(documents)
    monkeypatch.setattr(index_module, "BLOCK_TOKENS", 100)
    seen: list[int] = []
    built = BM25Index.build(documents, folder=tmp_path / "index", progress=seen.append)
    loaded = BM25Index.load(tmp_path / "index")
    for query in WORDS:
        assert in_memory.search(query, 20) == built.search(query, 20) == loaded.search(query, 20)
    assert seen[-1] == len(loaded) == 200
    assert [p.name for p in tmp_path.iterdir()] == ["index"], "scratch files are deleted"


def test_damaged_or_missing_index_is_rejected(tmp_path: Path) -> None:
    BM25Index.build([("a", "lamp")], folder=tmp_path / "index")
    (tmp_path / "index" / "documents.npy").write_bytes(b"short")
    with pytest.raises(DataError, match="build it again"):
        BM25Index.load(tmp_path / "index")
    with pytest.raises(DataError, match="not a complete search index"):
        BM25Index.load(tmp_path / "nowhere")


@pytest.mark.skipif("ARBORETUM_DATA" not in os.environ, reason="needs ARBORETUM_DATA and the recordings beside it")
def test_recorded_terms_of_queries_are_reproduced() -> None:
    folder = Path(os.environ["ARBORETUM_DATA"]).parent / "golden" / "webshop"
    golden = folder / "bm25_top50.jsonl.gz"
    with gzip.open(golden, "rt") as file:
        records: list[dict[str, Any]] = [json.loads(line) for line in file][1:]
    assert len(records) >= 200
    for record in records:
        assert analyze(record["query"]) == record["terms"]
