"""BM25 in process: Lucene's analysis and scores (`envs.lucene_bm25`), with top-k search that skips common terms.

The shared index scores every document that holds any query term. Here the terms are taken from the rarest on, and
as soon as the terms left over could not lift a new document into the first k any more, only the documents seen so
far are looked up in their posting lists: the MaxScore strategy (Turtle and Flood, 1995), exact to the last bit.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from .documents import StoredDocuments, corpus_hash
from .interface import Document, Hit, Retriever
from .lucene_bm25 import BM25Index, analyze

INDEX_FOLDER = "bm25"
PEAKS_FILE = "peaks.npy"
K1, B = 0.9, 0.4
"""Anserini's default parameters."""


class BM25(Retriever):
    """A BM25 index together with its documents.

    Args:
        index: postings; document i of the index is `documents[i]`.
        documents: in the order of indexing.
        corpus: the corpus hash.
        peaks: `term_peaks(index)`, where it is at hand.
    """

    def __init__(
        self,
        index: BM25Index,
        documents: Sequence[Document],
        corpus: str,
        peaks: NDArray[np.float32] | None = None,
    ) -> None:
        if len(index) != len(documents):
            raise ConfigurationError(
                f"a BM25 index of {len(index)} documents does not belong to a corpus of {len(documents)}."
            )
        self.documents = documents
        self._index = index
        self._corpus = corpus
        self._search = TopSearch(index, term_peaks(index) if peaks is None else peaks)

    @classmethod
    def of(cls, documents: Iterable[Document], *, k1: float = K1, b: float = B) -> BM25:
        """Index documents in memory."""
        kept = list(documents)
        index = BM25Index.build(((d.id, breathing(d.contents)) for d in kept), k1=k1, b=b)
        return cls(index, kept, corpus_hash(kept))

    @classmethod
    def load(cls, folder: Path, corpus: str) -> BM25:
        """Map the index that `build.build_index` wrote into `folder`."""
        peaks = np.load(folder / PEAKS_FILE)
        return cls(BM25Index.load(folder / INDEX_FOLDER), StoredDocuments(folder), corpus, peaks)

    @property
    def identity(self) -> str:
        k1, b = self._index._meta["k1"], self._index._meta["b"]
        return f"bm25(k1={k1:g},b={b:g}):{self._corpus}"

    def __len__(self) -> int:
        return len(self.documents)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        hits = []
        for query in queries:
            numbers, scores = self._search.top(analyze(breathing(query)), k)
            ranked = zip(numbers.tolist(), scores.tolist(), strict=True)
            hits.append([Hit(self.documents[n], score) for n, score in ranked])
        return hits

    def close(self) -> None:
        if isinstance(self.documents, StoredDocuments):
            self.documents.close()


_RUN_LENGTH = 4 * 255
_RUN = re.compile(rf"\S{{{_RUN_LENGTH}}}(?=\S)")

_FREQUENT = 64
"""Terms in at least one of so many documents get a row over all documents once they are looked up."""
_ROWS_SIZE = 128 * 2**20
"""Bytes that these rows may take together; in a corpus so large that they do not fit, there are none."""


def breathing(text: str) -> str:
    """The text with a space after every 1,020 characters that stand together.

    The tokenizer cuts words at 255 characters, looking at the whole run again after each cut: minutes for a
    megabyte of one letter. The spaces fall where it would cut such a run anyway.
    """
    return _RUN.sub(r"\g<0> ", text) if len(text) > _RUN_LENGTH else text


def term_peaks(index: BM25Index) -> NDArray[np.float32]:
    """The highest score a term of weight 1 gives any document, by term number: shape (terms,), float32."""
    starts, _, divisors, _, _ = _arrays(index)
    if not len(divisors):
        return np.zeros(len(starts) - 1, np.float32)
    peaks = np.empty(len(starts) - 1, np.float32)
    step = 1 << 16  # terms at a time: the postings may be larger than the memory
    for first in range(0, len(peaks), step):
        last = min(first + step, len(peaks))
        begin = int(starts[first])
        highest = np.maximum.reduceat(divisors[begin : int(starts[last])], starts[first:last] - begin)
        peaks[first:last] = 1 - 1 / highest
    return peaks


def _arrays(index: BM25Index) -> tuple[NDArray[Any], ...]:
    """Postings bounds, document numbers, score divisors, inverse document frequencies and ranks of ids."""
    return index._postings, index._documents, index._divisors, index._idf, index._id_rank


class _Scratch(threading.local):
    """Per-thread accumulators over all documents; `scores` is all zeros between queries."""

    def __init__(self, size: int) -> None:
        self.scores = np.zeros(size, np.float64)


class TopSearch:
    """Exact top-k search over a `BM25Index`. Safe to share between threads."""

    def __init__(self, index: BM25Index, peaks: NDArray[np.float32]) -> None:
        self._number = index._number
        self._starts, self._documents, self._divisors, self._idf, self._id_rank = _arrays(index)
        self._peaks = peaks
        self._scratch = _Scratch(len(index))
        self._rows: dict[int, NDArray[np.float32]] = {}

    def top(self, terms: Sequence[str], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Numbers and float32 scores of the k best documents, best first, ties by id: as `BM25Index.top`."""
        query = self._weigh(terms)
        if not query or k < 1:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        rest = np.zeros(len(query) + 1)
        for i in range(len(query) - 1, -1, -1):
            rest[i] = rest[i + 1] + query[i].bound
        found, scores, used = self._gather(query, rest, k)
        for i in range(used, len(query)):
            if len(found) > k:
                least = float(np.partition(scores, len(scores) - k)[len(scores) - k])
                alive = scores + rest[i] >= least
                found, scores = found[alive], scores[alive]
            self._look_up(query[i], found, scores)
        values = scores.astype(np.float32)
        if len(found) > k:
            least = np.partition(values, len(values) - k)[len(values) - k]
            best = values >= least
            found, values = found[best], values[best]
        order = np.lexsort((self._id_rank[found], -values))[:k]
        return found[order].astype(np.int64), values[order]

    def _weigh(self, terms: Sequence[str]) -> list[_Term]:
        """The query's known terms, rarest first."""
        query = []
        for term, count in Counter(terms).items():
            number = self._number(term)
            if number >= 0:
                weight = np.float32(count) * self._idf[number]
                # Bounds and sums are rounded: a hair more keeps them bounds.
                bound = float(weight) * float(self._peaks[number]) * (1 + 1e-6)
                query.append(_Term(int(self._starts[number]), int(self._starts[number + 1]), weight, bound))
        query.sort(key=lambda t: t.end - t.start)
        return query

    def _gather(
        self, query: Sequence[_Term], rest: NDArray[np.float64], k: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64], int]:
        """Every document that could be among the best, its score over the first terms, and how many those are."""
        scores = self._scratch.scores
        found = np.empty(0, np.int32)
        used = 0
        try:
            for term in query:
                documents = self._documents[term.start : term.end]
                score = term.weight - term.weight / self._divisors[term.start : term.end]
                if used:
                    before = scores[documents]
                    found = np.concatenate((found, documents[before == 0.0]))
                    scores[documents] = before + score
                else:
                    found = documents
                    scores[documents] = score
                used += 1
                # Nobody's score can pass the bounds so far: often there is nothing to look for yet.
                if len(found) >= k and used < len(query) and rest[used] < rest[0] - rest[used]:
                    partial = scores[found]
                    partial.partition(len(partial) - k)
                    if rest[used] < partial[len(partial) - k]:
                        break
            return found, scores[found], used
        finally:
            scores[found] = 0.0

    def _look_up(self, term: _Term, found: NDArray[np.int32], scores: NDArray[np.float64]) -> None:
        """Add a term's score to those of the documents found that hold it."""
        row = self._row(term)
        if row is not None:
            scores += term.weight - term.weight / row[found]
            return
        documents = self._documents[term.start : term.end]
        at = np.searchsorted(documents, found)
        at[at == len(documents)] = 0
        has = documents[at] == found
        divisors = self._divisors[term.start : term.end][at[has]]
        scores[has] += term.weight - term.weight / divisors

    def _row(self, term: _Term) -> NDArray[np.float32] | None:
        """A frequent term's divisors by document (1 where it does not occur, so that the score is 0)."""
        row = self._rows.get(term.start)
        size = len(self._id_rank)
        if (
            row is None
            and (term.end - term.start) * _FREQUENT >= size
            and len(self._rows) < _ROWS_SIZE // (4 * size)
        ):
            row = np.ones(size, np.float32)
            row[self._documents[term.start : term.end]] = self._divisors[term.start : term.end]
            self._rows[term.start] = row
        return row


class _Term(NamedTuple):
    """A query term: where its postings lie, its weight (count times idf), the best score it gives."""

    start: int
    end: int
    weight: np.float32
    bound: float
