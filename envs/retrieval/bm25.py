"""BM25 retriever with Lucene's analysis and scores (`lucene_bm25`), and top-k search that skips common terms.

`BM25Index` scores every document that contains a query term. `TopSearch` adds the terms from rare to common. Once
the remaining terms cannot lift a new document into the first k, it looks up only the documents found so far in the
remaining posting lists. This is the MaxScore strategy (Turtle and Flood, 1995); its scores are exact to the bit.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from .documents import StoredDocuments, corpus_hash
from .interface import Document, Hit, Retriever
from .lucene_bm25 import BM25Index, analyze

INDEX_FOLDER = "bm25"
PEAKS_FILE = "peaks.npy"

_Score = TypeVar("_Score", np.float32, np.float64)

K1, B = 0.9, 0.4
"""Anserini's default parameters."""


class BM25(Retriever):
    """Retriever on a BM25 index and its documents.

    Args:
        index: Index in which document i is `documents[i]`.
        documents: Documents in the order of indexing.
        corpus: Hash of the corpus; see `documents.corpus_hash`.
        peaks: Result of `term_peaks(index)`; None computes it.

    Raises:
        ConfigurationError: Index and documents differ in length.
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
        index = BM25Index.build(((d.id, d.contents) for d in kept), k1=k1, b=b)
        return cls(index, kept, corpus_hash(kept))

    @classmethod
    def load(cls, folder: Path, corpus: str) -> BM25:
        """Open the index that `build.build_index` wrote to `folder`."""
        peaks = np.load(folder / PEAKS_FILE)
        return cls(BM25Index.load(folder / INDEX_FOLDER), StoredDocuments(folder), corpus, peaks)

    @property
    def identity(self) -> str:
        return f"bm25(k1={self._index.k1:g},b={self._index.b:g}):{self._corpus}"

    def __len__(self) -> int:
        return len(self.documents)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        hits = []
        for query in queries:
            numbers, scores = self._search.top(analyze(query), k)
            ranked = zip(numbers.tolist(), scores.tolist(), strict=True)
            hits.append([Hit(self.documents[n], score) for n, score in ranked])
        return hits

    def close(self) -> None:
        if isinstance(self.documents, StoredDocuments):
            self.documents.close()


_FREQUENT = 64
"""Terms in at least 1 / 64 of the documents get a dense row over all documents on their first lookup."""
_ROUNDING = 2.0**-21
"""More than the rounding errors of a score and of a peak in float32, as a fraction of the term's weight."""
_TIE = 1 - 2.0**-22
"""Factor within which two sums may be equal in float32, where ids decide between them."""
_ROWS_SIZE = 128 * 2**20
"""Maximum size of all dense rows in bytes; a corpus too large for a single row has none."""


def term_peaks(index: BM25Index) -> NDArray[np.float32]:
    """Return the highest score of every term with weight 1 in any document; float32, shape (terms,)."""
    starts, divisors = index.postings, index.divisors
    if not len(divisors):
        return np.zeros(len(starts) - 1, np.float32)
    peaks = np.empty(len(starts) - 1, np.float32)
    step = 1 << 16  # Terms per step, because the postings may exceed the memory.
    for first in range(0, len(peaks), step):
        last = min(first + step, len(peaks))
        begin = int(starts[first])
        highest = np.maximum.reduceat(divisors[begin : int(starts[last])], starts[first:last] - begin)
        peaks[first:last] = 1 - 1 / highest
    return peaks


class _Scratch(threading.local):
    """Per-thread score accumulators over all documents, which are zero between queries."""

    def __init__(self, size: int) -> None:
        self.scores = np.zeros(size, np.float64)


class TopSearch:
    """Exact top-k search over a `BM25Index`, which threads may share.

    Args:
        index: Index to search.
        peaks: Result of `term_peaks(index)`.
    """

    def __init__(self, index: BM25Index, peaks: NDArray[np.float32]) -> None:
        self._index = index
        self._documents, self._divisors = index.documents, index.divisors
        self._peaks = peaks
        self._scratch = _Scratch(len(index))
        self._rows: dict[int, NDArray[np.float32]] = {}

    def top(self, terms: Sequence[str], k: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Return the numbers and scores of the k best documents; equal to `BM25Index.top`."""
        query = self._query_terms(terms)
        if not query or k < 1:
            return np.empty(0, np.intp), np.empty(0, np.float32)
        rest = [0.0] * (len(query) + 1)
        for i in range(len(query) - 1, -1, -1):
            rest[i] = rest[i + 1] + query[i].bound
        found, scores, used = self._gather(query, rest, k)
        for i in range(used, len(query)):
            if len(found) > k:
                possible = np.flatnonzero(scores + rest[i] >= _TIE * _kth_highest(scores, k))
                found, scores = found.take(possible), scores.take(possible)
            self._add_scores(query[i], found, scores)
        values = scores.astype(np.float32)
        if len(found) > k:
            best = np.flatnonzero(values >= _kth_highest(values, k))
            found, values = found.take(best), values.take(best)
        order = np.lexsort((self._index.id_ranks.take(found), -values))[:k]
        return found.take(order), values.take(order)

    def _query_terms(self, terms: Sequence[str]) -> list[_Term]:
        """Return the query's indexed terms, rarest first."""
        query = []
        starts = self._index.postings
        for term, count in Counter(terms).items():
            number = self._index.term_number(term)
            if number >= 0:
                weight = np.float32(count) * self._index.idf[number]
                bound = float(weight) * (float(self._peaks[number]) + _ROUNDING)
                query.append(_Term(int(starts[number]), int(starts[number + 1]), weight, bound))
        query.sort(key=lambda t: t.end - t.start)
        return query

    def _gather(
        self, query: Sequence[_Term], rest: Sequence[float], k: int
    ) -> tuple[NDArray[np.intp], NDArray[np.float64], int]:
        """Collect every document that could be among the k best.

        Args:
            query: Terms, rarest first.
            rest: Sum of the bounds of the terms from each position on; one more than terms.
            k: Number of documents to find.

        Returns:
            Document numbers, their scores over the first terms, and the number of those terms.
        """
        scores = self._scratch.scores
        found = np.empty(0, np.intp)
        used = 0
        try:
            for term in query:
                documents = self._documents[term.start : term.end].astype(np.intp)
                added = term.weight - term.weight / self._divisors[term.start : term.end]
                if used:
                    before = scores.take(documents)
                    found = np.concatenate((found, documents.take(np.flatnonzero(before == 0.0))))
                    scores[documents] = before + added
                else:
                    found = documents
                    scores[documents] = added
                used += 1
                # Skip the comparison while no score over the first terms can exceed the bound of the rest.
                if len(found) >= k and used < len(query) and rest[used] < rest[0] - rest[used]:
                    partial = scores.take(found)
                    if rest[used] < _TIE * _kth_highest(partial, k):
                        return found, partial, used
            return found, scores.take(found), used
        finally:
            scores[found] = 0.0

    def _add_scores(self, term: _Term, found: NDArray[np.intp], scores: NDArray[np.float64]) -> None:
        """Add a term's scores in place to the documents that contain it."""
        row = self._dense_row(term)
        if row is not None:
            scores += term.weight - term.weight / row.take(found)
            return
        documents = self._documents[term.start : term.end]
        wanted = found.astype(documents.dtype)  # With another type, `searchsorted` would convert all postings.
        places = np.searchsorted(documents, wanted)
        places[places == len(documents)] = 0
        contains = np.flatnonzero(documents.take(places) == wanted)
        divisors = self._divisors[term.start : term.end].take(places.take(contains))
        scores[contains] += term.weight - term.weight / divisors

    def _dense_row(self, term: _Term) -> NDArray[np.float32] | None:
        """Return a frequent term's divisors by document, 1 (a score of 0) if absent; None for other terms."""
        row = self._rows.get(term.start)
        size = len(self._index)
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
    """Term of a query.

    Attributes:
        start: Start of its postings.
        end: End of its postings.
        weight: Count in the query times inverse document frequency.
        bound: Upper bound of its score in any document.
    """

    start: int
    end: int
    weight: np.float32
    bound: float


def _kth_highest(values: NDArray[_Score], k: int) -> _Score:
    place = len(values) - k
    highest: _Score = np.partition(values, place)[place]
    return highest
