"""Tests of index folders: atomic and resumable builds, and checks when an index is opened."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from arboretum.envs import ConfigurationError, DataError
from arboretum.envs.retrieval import build
from arboretum.envs.retrieval.bm25 import BM25
from arboretum.envs.retrieval.build import build_index
from arboretum.envs.retrieval.documents import read_corpus
from arboretum.envs.retrieval.factory import open_retriever
from arboretum.envs.retrieval.manifest import Manifest


def write_corpus(path, count=300, word="oak"):
    rows = ({"id": f"d{i}", "contents": f'"T{i}"\n{word} w{i % 17} w{i % 29} é🌳'} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def append(path, text):
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.jsonl")


@pytest.fixture
def index(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    return tmp_path / "index"


def test_index_and_corpus_file_give_equal_hits(corpus, index):
    queries = ["w3 w5", "oak", "T12", "🌳 é"]
    with_index, in_memory = open_retriever(index), open_retriever(corpus)
    assert (
        with_index.search(queries, 10)
        == in_memory.search(queries, 10)
        == BM25.of(read_corpus(corpus)).search(queries, 10)
    )
    assert with_index.identity == in_memory.identity
    with_index.close()


def test_closed_index_reads_no_file_that_was_opened_later(index):
    retriever = open_retriever(index)
    assert retriever.search(["oak"], 1)[0]
    retriever.close()
    with (index / "documents.jsonl").open("rb"), pytest.raises(OSError, match="Bad file descriptor"):
        retriever.search(["oak"], 1)


def test_build_writes_the_manifest_and_reports_progress(corpus, tmp_path):
    seen = []
    manifest = build_index(corpus, "bm25", tmp_path / "i", k1=1.2, b=0.75, progress=lambda *a: seen.append(a))
    assert Manifest.read(tmp_path / "i") == manifest
    assert (manifest.documents, dict(manifest.parameters)) == (300, {"k1": 1.2, "b": 0.75})
    assert ("corpus", 300, 300) in seen and ("bm25", 300, 300) in seen
    assert "k1=1.2" in open_retriever(tmp_path / "i").identity


def test_existing_index_is_replaced_only_with_overwrite(corpus, index):
    with pytest.raises(ConfigurationError, match="exists"):
        build_index(corpus, "bm25", index)
    write_corpus(corpus, 20)
    build_index(corpus, "bm25", index, overwrite=True)
    assert len(open_retriever(index)) == 20


def test_index_of_another_corpus_or_encoder_is_rejected(index, corpus, tmp_path):
    assert open_retriever(index, corpus=corpus)
    other = write_corpus(tmp_path / "other.jsonl", word="elm")
    with pytest.raises(DataError, match="another corpus"):
        open_retriever(index, corpus=other)
    with pytest.raises(ConfigurationError, match="no encoder"):
        open_retriever(index, encoder="e5")


def test_damaged_index_is_rejected(index):
    append(index / "documents.jsonl", "x")
    with pytest.raises(DataError, match=r"documents\.jsonl: is damaged .*build the index again"):
        open_retriever(index)
    (index / "documents.jsonl").unlink()
    with pytest.raises(DataError, match=r"documents\.jsonl: is missing .*build the index again"):
        open_retriever(index)
    (index / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        open_retriever(index)
    (index / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(DataError, match="format 99"):
        open_retriever(index)
    (index / "manifest.json").unlink()
    with pytest.raises(DataError, match="is not an index"):
        open_retriever(index)


def test_malformed_corpus_leaves_no_index(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", 5)
    append(corpus, '{"id": "d0", "contents": "again"}\n')
    with pytest.raises(DataError, match="line 6: repeats the id of line 1"):
        build_index(corpus, "bm25", tmp_path / "index")
    assert not (tmp_path / "index").exists()
    corpus.write_text("")
    with pytest.raises(ConfigurationError, match="no documents"):
        build_index(corpus, "bm25", tmp_path / "index")
    with pytest.raises(ConfigurationError, match="did you mean bm25"):
        build_index(corpus, "bm52", tmp_path / "index")


class Stop(Exception):
    """Exception that interrupts a build."""


def test_interrupted_build_resumes_at_its_stage(corpus, tmp_path):
    def stop(stage, done, total):
        if stage == "bm25":
            raise Stop

    with pytest.raises(Stop):
        build_index(corpus, "bm25", tmp_path / "index", progress=stop)
    assert not (tmp_path / "index").exists()
    stages = []
    build_index(corpus, "bm25", tmp_path / "index", progress=lambda stage, *_: stages.append(stage))
    assert set(stages) == {"bm25"}  # The corpus is not copied again.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


def test_build_that_is_interrupted_while_it_hashes_its_files_only_hashes_them_again(corpus, tmp_path, monkeypatch):
    def stop(*given, **options):
        raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(build, "write_checksums", stop)
        build_index(corpus, "bm25", tmp_path / "index")
    stages = []
    build_index(corpus, "bm25", tmp_path / "index", progress=lambda stage, *_: stages.append(stage))
    assert stages == []
    whole = tmp_path / "whole"
    build_index(corpus, "bm25", whole)
    assert (whole / "SHA256SUMS").read_text() == (tmp_path / "index" / "SHA256SUMS").read_text()
    assert {path.name for path in whole.iterdir()} == {path.name for path in (tmp_path / "index").iterdir()}


def test_corpus_without_documents_is_refused(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n")
    with pytest.raises(ConfigurationError, match="the corpus has no documents"):
        open_retriever(path)


def test_partial_build_of_another_corpus_is_discarded(corpus, tmp_path):
    def stop(stage, done, total):
        if stage == "bm25":
            raise Stop

    with pytest.raises(Stop):
        build_index(corpus, "bm25", tmp_path / "index", progress=stop)
    write_corpus(corpus, 40, "elm")
    build_index(corpus, "bm25", tmp_path / "index")
    index = open_retriever(tmp_path / "index")
    assert len(index) == 40
    assert index.search(["oak"], 3) == [[]]


def test_killed_build_leaves_no_index_and_resumes_without_leftovers(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", 12_000)
    script = (
        "import sys; from arboretum.envs.retrieval.build import build_index\n"
        "build_index(sys.argv[1], 'bm25', sys.argv[2], progress=lambda *a: print(*a, flush=True))"
    )
    command = [sys.executable, "-c", script, str(corpus), str(tmp_path / "index")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("bm25"):
                os.kill(process.pid, signal.SIGKILL)
                break
    assert not (tmp_path / "index").exists()
    start = time.perf_counter()
    build_index(corpus, "bm25", tmp_path / "index")
    assert time.perf_counter() - start < 60
    assert len(open_retriever(tmp_path / "index")) == 12_000
    names = {path.name for path in (tmp_path / "index").iterdir()}
    assert names == {"SHA256SUMS", "bm25", "documents.jsonl", "manifest.json", "offsets.npy", "peaks.npy"}


def test_concurrent_build_of_the_same_index_is_rejected(corpus, tmp_path):
    def build_again(stage, done, total):
        with pytest.raises(ConfigurationError, match="another process is building"):
            build_index(corpus, "bm25", tmp_path / "index")

    build_index(corpus, "bm25", tmp_path / "index", progress=build_again)


def test_large_corpus_requires_an_index(corpus, monkeypatch):
    from arboretum.envs.retrieval import factory

    monkeypatch.setattr(factory, "MAX_IN_MEMORY", 1000)
    write_corpus(corpus, 200, "ash")
    named = corpus.parent / "my corpus.jsonl"
    corpus.rename(named)
    with pytest.raises(ConfigurationError, match="arboretum index build") as error:
        open_retriever(named)
    command = shlex.split(str(error.value).split("`")[1])
    assert command[command.index("--corpus") + 1] == str(named)
    assert command[command.index("--out") + 1] == str(corpus.parent / "my corpus-bm25")
