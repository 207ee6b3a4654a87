"""Retriever on Lucene: an Anserini index in a Java virtual machine of this process (extra `lucene`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .documents import StoredDocuments
from .interface import Hit, Retriever
from .lucene_bm25 import tokenize
from .lucene_jvm import java_class

INDEX_FOLDER = "lucene"
ORDER_FILE = "order.npy"
_COLLECTION = "collection"
MAX_TERMS = 1024
"""Maximum number of terms of a query, which is Lucene's limit; further terms are dropped."""


def index_documents(documents: StoredDocuments, folder: Path, report: Callable[[int], None]) -> None:
    """Index documents with Anserini's defaults.

    Lucene breaks ties by document name. The names in the index are the ranks of the ids in alphabetical order, so
    ties are broken as by the ids themselves, and `order.npy` maps a name to a document number.

    Args:
        documents: Documents to index.
        folder: Folder of the index; created if it does not exist.
        report: Called from time to time with the number of documents read so far.
    """
    collection = folder / _COLLECTION
    collection.mkdir(parents=True)
    ids = [document.id for document in documents]
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    with (collection / "documents.jsonl").open("w", encoding="utf-8") as file:
        for number, document in enumerate(documents):
            name = f"{int(rank[number]):010d}"
            file.write(json.dumps({"id": name, "contents": document.contents}) + "\n")
            if not number % 1000:
                report(number)
    arguments = ["-collection", "JsonCollection", "-generator", "DefaultLuceneDocumentGenerator", "-quiet"]
    arguments += ["-input", str(collection), "-index", str(folder), "-threads", "1"]
    java_class("io.anserini.index.IndexCollection").main(arguments)
    (collection / "documents.jsonl").unlink()
    collection.rmdir()
    np.save(folder / ORDER_FILE, order)
    report(len(ids))


def _sanitize(query: str) -> str:
    """Return a query that Java and Lucene accept: without lone surrogates, null characters and excess terms."""
    query = query.encode("utf-8", "replace").decode().replace("\0", " ")
    if len(query) > MAX_TERMS:
        distinct = list(dict.fromkeys(tokenize(query)))
        if len(distinct) > MAX_TERMS:
            return " ".join(distinct[:MAX_TERMS])
    return query


def _processors() -> int:
    """Return the number of processors that this process may use; where the system does not tell, of all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Lucene(Retriever):
    """Retriever on a Lucene index.

    Args:
        folder: Index folder that `build.build_index` wrote.
        corpus: Hash of the corpus; see `documents.corpus_hash`.
        k1: BM25's term-frequency parameter.
        b: BM25's length-normalization parameter.
        threads: Number of Java threads per batch of queries; None uses the number of available processors.
    """

    def __init__(self, folder: Path, corpus: str, k1: float, b: float, threads: int | None = None) -> None:
        self.documents = StoredDocuments(folder)
        self._order = np.load(folder / INDEX_FOLDER / ORDER_FILE, mmap_mode="r")
        self._corpus = corpus
        self._parameters = f"k1={k1:g},b={b:g}"
        self._threads = threads or _processors()
        self._searcher: Any = java_class("io.anserini.search.SimpleSearcher")(str(folder / INDEX_FOLDER))
        self._searcher.set_bm25(k1, b)

    @property
    def identity(self) -> str:
        return f"lucene({self._parameters}):{self._corpus}"

    def __len__(self) -> int:
        return len(self.documents)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if k < 1 or not queries:
            return [[] for _ in queries]
        texts, names = java_class("java.util.ArrayList")(), java_class("java.util.ArrayList")()
        for number, query in enumerate(queries):
            texts.add(_sanitize(query))
            names.add(str(number))
        found = self._searcher.batch_search(texts, names, k, self._threads)
        return [[self._hit(hit) for hit in found.get(str(number)) or ()] for number in range(len(queries))]

    def _hit(self, hit: Any) -> Hit:
        return Hit(self.documents[int(self._order[int(hit.docid)])], float(hit.score))

    def close(self) -> None:
        self._searcher.close()
        self.documents.close()
