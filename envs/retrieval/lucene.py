"""Lucene itself as a retriever: an Anserini index in a Java machine of this process (the extra `lucene`)."""

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
MOST_TERMS = 1024
"""Lucene refuses queries of more terms; what is beyond is left out."""


def index_documents(documents: StoredDocuments, folder: Path, report: Callable[[int], None]) -> None:
    """Index documents with Anserini's defaults into `folder`.

    Lucene breaks ties by the document's name. The names it is given are the ranks of the ids in alphabetical
    order, so ties fall as in an index under the ids themselves, and `order.npy` leads from a name to a document's
    number.
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


def _acceptable(query: str) -> str:
    """A query as Lucene takes it: whole characters, no zeros (they end a C string), not too many terms."""
    query = query.encode("utf-8", "replace").decode().replace("\0", " ")
    if len(query) > MOST_TERMS:
        different = list(dict.fromkeys(tokenize(query)))
        if len(different) > MOST_TERMS:
            return " ".join(different[:MOST_TERMS])
    return query


class Lucene(Retriever):
    """Searches a Lucene index.

    Args:
        folder: what `build.build_index` wrote.
        corpus: the corpus hash.
        k1, b: BM25's parameters.
        threads: Java threads that share a batch of queries; None takes as many as there are processors.
    """

    def __init__(self, folder: Path, corpus: str, k1: float, b: float, threads: int | None = None) -> None:
        self.documents = StoredDocuments(folder)
        self._order = np.load(folder / INDEX_FOLDER / ORDER_FILE, mmap_mode="r")
        self._corpus = corpus
        self._parameters = f"k1={k1:g},b={b:g}"
        self._threads = threads or len(os.sched_getaffinity(0))
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
            texts.add(_acceptable(query))
            names.add(str(number))
        found = self._searcher.batch_search(texts, names, k, self._threads)
        return [[self._hit(hit) for hit in found.get(str(number)) or ()] for number in range(len(queries))]

    def _hit(self, hit: Any) -> Hit:
        return Hit(self.documents[int(self._order[int(hit.docid)])], float(hit.score))

    def close(self) -> None:
        self._searcher.close()
        self.documents.close()
