"""An inverted index with Lucene's BM25 scores, built in bounded memory and memory-mapped when loaded.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), as Lucene 8 and later
compute it: for a term that occurs q times in the query and f times in a document of (coded) length L,

    score = w - w / (1 + f / (k1 (1 - b + b L / mean length))),   w = q ln(1 + (N - df + 0.5) / (df + 0.5)),

in float32, document lengths rounded down to one of 256 values; the sum over terms is float64, the total float32.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .analysis import analyze, term_of, tokenize

FORMAT = 1
"""Version of the files; an index of another version is refused."""

BLOCK_TOKENS = 2_000_000
"""Tokens that are inverted at once while an index is built; bounds the memory this takes (about 100 MB)."""

_ARRAYS = ("term_ends", "postings", "documents", "divisors", "idf", "id_ends", "id_rank")


def _length_table() -> NDArray[np.int64]:
    """The 256 document lengths that Lucene's one-byte code can express (`SmallFloat.byte4ToInt`)."""
    values = list(range(24))
    for code in range(256 - 24):
        shift = (code >> 3) - 1
        values.append(24 + (code & 7 if shift < 0 else (code & 7 | 8) << shift))
    return np.array(values, dtype=np.int64)


LENGTHS = _length_table()


class PackedStrings(Sequence[str]):
    """A list of strings as one UTF-8 blob and the end of each in it; reads straight from a memory map."""

    def __init__(self, blob: Any, ends: NDArray[np.int64]) -> None:
        self._blob = memoryview(blob)
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = int(self._ends[index - 1]) if index else 0
        return str(self._blob[start : int(self._ends[index])], "utf-8")

    @staticmethod
    def pack(strings: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        encoded = [s.encode() for s in strings]
        ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
        return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


class _TermIds(dict[str, int]):
    """Token → number of its term (-1 for a stop word), numbered as terms occur."""

    LIMIT = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, int] = {}

    def __missing__(self, token: str) -> int:
        term = term_of(token)
        number = self.terms.setdefault(term, len(self.terms)) if term else -1
        if len(self) >= self.LIMIT:  # only a cache: misspellings must not fill the memory
            self.clear()
        self[token] = number
        return number


class BM25Index:
    """Documents that can be searched. Make one with `build`, keep it with `save`, map it back with `load`.

    `search` and its kin only read, so threads may share an index; processes share a loaded one through the page
    cache.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        self._arrays = arrays
        self._meta = meta
        self.terms = PackedStrings(arrays["terms"], arrays["term_ends"])
        self.ids = PackedStrings(arrays["ids"], arrays["id_ends"])
        self._postings = arrays["postings"]
        self._documents = arrays["documents"]
        self._divisors = arrays["divisors"]
        self._idf = arrays["idf"]
        self._id_rank = arrays["id_rank"]
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def total_terms(self) -> int:
        """Tokens indexed, stop words not counted."""
        return int(self._meta["total_terms"])

    # ------------------------------------------------------------------ searching

    def search(self, query: str, k: int = 10) -> list[tuple[str, float]]:
        """The k best documents for a query: `(document id, score)`, best first, ties by id ascending."""
        return self.search_terms(analyze(query), k)

    def search_terms(self, terms: Sequence[str], k: int = 10) -> list[tuple[str, float]]:
        """`search` for a query that is analysed already."""
        numbers, scores = self.top(terms, k)
        ids = self.ids
        return [(ids[n], s) for n, s in zip(numbers.tolist(), scores.tolist(), strict=True)]

    def search_batch(self, queries: Iterable[str], k: int = 10) -> list[list[tuple[str, float]]]:
        """`search` for each of many queries."""
        return [self.search(query, k) for query in queries]

    def top(self, terms: Sequence[str], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Numbers (in order of indexing) and float32 scores of the k best documents, best first."""
        scores = self._scores(terms)
        found = np.flatnonzero(scores)
        values = scores[found]
        if len(found) > k > 0:
            least = np.partition(values, len(values) - k)[len(values) - k]
            keep = values >= least  # ties of the last place included: their ids decide
            found, values = found[keep], values[keep]
        order = np.lexsort((self._id_rank[found], -values))[: max(k, 0)]
        return found[order], values[order]

    def _scores(self, terms: Sequence[str]) -> NDArray[np.float32]:
        total = np.zeros(len(self), dtype=np.float64)
        for term, count in Counter(terms).items():
            number = self._number(term)
            if number < 0:
                continue
            start, end = int(self._postings[number]), int(self._postings[number + 1])
            weight = np.float32(count) * self._idf[number]
            total[self._documents[start:end]] += weight - weight / self._divisors[start:end]
        return total.astype(np.float32)

    def _number(self, term: str) -> int:
        number = self._numbers.get(term)
        if number is None:
            number = bisect_left(self.terms, term)
            if number == len(self.terms) or self.terms[number] != term:
                return -1
            if len(self._numbers) < 1 << 16:
                self._numbers[term] = number
        return number

    def frequencies(self, term: str) -> int:
        """In how many documents a term (already analysed) occurs."""
        number = self._number(term)
        return 0 if number < 0 else int(self._postings[number + 1] - self._postings[number])

    @property
    def id_ranks(self) -> NDArray[np.int32]:
        """For each document, its place among all ids sorted ascending: how ties are broken."""
        return self._id_rank

    def score_matrix(self) -> dict[str, NDArray[Any]]:
        """Scores of single terms as a sparse matrix, a column a term: `data`, `indices` (documents), `indptr`."""
        weights = np.repeat(self._idf, np.diff(self._postings))
        data = weights - weights / self._divisors
        return {"data": data, "indices": self._documents, "indptr": self._postings}

    # ------------------------------------------------------------------ building

    @classmethod
    def build(
        cls,
        documents: Iterable[tuple[str, str]],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        folder: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> BM25Index:
        """Index documents.

        Args:
            documents: `(id, text)`, ids distinct; read once, never held together.
            k1, b: BM25's parameters; Anserini's defaults.
            folder: where to write the index, built there in bounded memory; None keeps it in memory.
            progress: called now and then with the number of documents read so far.
        """
        with tempfile.TemporaryDirectory(prefix="bm25-", dir=folder.parent if folder else None) as scratch:
            blocks = _Blocks(Path(scratch))
            token_ids = _TermIds()
            ids: list[str] = []
            number_of = token_ids.__getitem__
            for id_, text in documents:
                ids.append(id_)
                blocks.add([n for n in map(number_of, tokenize(text)) if n >= 0])
                if progress and not len(ids) % 1000:
                    progress(len(ids))
            index = cls._assemble(blocks, token_ids.terms, ids, k1, b, Path(scratch) if folder else None)
            if folder:
                index.save(folder)
                index = cls.load(folder)
        if progress:
            progress(len(ids))
        return index

    @classmethod
    def _assemble(
        cls, blocks: _Blocks, terms: dict[str, int], ids: list[str], k1: float, b: float, scratch: Path | None
    ) -> BM25Index:
        lengths = np.frombuffer(blocks.lengths, dtype=np.int32)
        total = int(lengths.sum(dtype=np.int64))
        filled = int(np.count_nonzero(lengths))
        codes = np.searchsorted(LENGTHS, lengths, side="right") - 1
        one, k1_, b_ = np.float32(1), np.float32(k1), np.float32(b)
        mean = np.float32(total / max(filled, 1)) or one
        slopes = one / (k1_ * ((one - b_) + b_ * LENGTHS.astype(np.float32) / mean))

        words = sorted(terms)
        rank = np.empty(len(words), dtype=np.int64)  # first-seen number → place in the sorted list
        rank[[terms[w] for w in words]] = np.arange(len(words))
        frequency = np.zeros(len(words), dtype=np.int64)
        for numbers, _, _ in blocks:
            places, counts = np.unique(rank[numbers], return_counts=True)
            frequency[places] += counts
        postings = np.concatenate(([0], np.cumsum(frequency)))

        def empty(name: str, kind: Any) -> NDArray[Any]:
            if scratch is None or not postings[-1]:
                return np.empty(int(postings[-1]), dtype=kind)
            return np.lib.format.open_memmap(scratch / name, "w+", kind, (int(postings[-1]),))

        documents, divisors = empty("documents", np.int32), empty("divisors", np.float32)
        cursor = postings[:-1].copy()
        for numbers, docs, counts in blocks:
            places = rank[numbers]
            order = np.argsort(places, kind="stable")
            places, docs, counts = places[order], docs[order], counts[order]
            starts = np.flatnonzero(np.diff(places, prepend=-1))
            sizes = np.diff(starts, append=len(places))
            within = np.arange(len(places)) - np.repeat(starts, sizes)
            at = cursor[places] + within
            documents[at] = docs
            divisors[at] = one + counts.astype(np.float32) * slopes[codes[docs]]
            cursor[places[starts]] += sizes

        idf = np.log(1 + (filled - frequency + 0.5) / (frequency + 0.5)).astype(np.float32)
        id_rank = np.empty(len(ids), dtype=np.int32)
        id_rank[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids), dtype=np.int32)
        term_blob, term_ends = PackedStrings.pack(words)
        id_blob, id_ends = PackedStrings.pack(ids)
        arrays: dict[str, NDArray[Any]] = {
            "terms": term_blob,
            "term_ends": term_ends,
            "postings": postings,
            "documents": documents,
            "divisors": divisors,
            "idf": idf,
            "ids": id_blob,
            "id_ends": id_ends,
            "id_rank": id_rank,
        }
        return cls(arrays, {"format": FORMAT, "k1": k1, "b": b, "total_terms": total})

    # ------------------------------------------------------------------ files

    def save(self, folder: Path) -> None:
        """Write the index into a folder, whole or not at all."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
        try:
            for name, array_ in self._arrays.items():
                np.save(fresh / f"{name}.npy", array_)
            (fresh / "meta.json").write_text(json.dumps(self._meta))
            fresh.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            fresh.rename(folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    @classmethod
    def load(cls, folder: Path) -> BM25Index:
        """Map an index that `save` or `build` wrote; takes milliseconds at any size.

        Raises:
            DataError: the folder is not a whole index of this version.
        """
        try:
            meta = json.loads((folder / "meta.json").read_text())
            if meta.get("format") != FORMAT:
                raise DataError(folder, f"index of format {meta.get('format')}, expected {FORMAT}; build it anew.")
            names = (*_ARRAYS, "terms", "ids")
            # As plain arrays: `numpy.memmap` costs several times as much for every slice taken.
            arrays = {n: np.asarray(np.load(folder / f"{n}.npy", mmap_mode="r")) for n in names}
        except (OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(folder, f"not a whole search index ({error}); delete it and build it anew.") from error
        return cls(arrays, meta)


class _Blocks:
    """Postings in blocks of `(term numbers, document numbers, counts)`, spilt to files if there are several."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._tokens = array("i")
        self._sizes = array("i")
        self._spilt: list[Path] = []
        self._last: tuple[NDArray[np.int64], ...] | None = None
        self.lengths = array("i")

    def add(self, numbers: list[int]) -> None:
        """Add the next document's term numbers."""
        self._tokens.extend(numbers)
        self._sizes.append(len(numbers))
        self.lengths.append(len(numbers))
        if len(self._tokens) >= BLOCK_TOKENS:
            path = self._scratch / f"block-{len(self._spilt)}.npy"
            np.save(path, np.stack(self._invert()))
            self._spilt.append(path)

    def _invert(self) -> tuple[NDArray[np.int64], ...]:
        sizes = np.array(self._sizes, dtype=np.int64)
        first = len(self.lengths) - len(sizes)
        keys = np.array(self._tokens, dtype=np.int64) * max(len(sizes), 1)
        keys += np.repeat(np.arange(len(sizes)), sizes)
        keys, counts = np.unique(keys, return_counts=True)
        numbers, docs = np.divmod(keys, max(len(sizes), 1))
        self._tokens, self._sizes = array("i"), array("i")
        return numbers, docs + first, counts

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], ...]]:
        for path in self._spilt:
            yield tuple(np.load(path))
        if self._last is None:
            self._last = self._invert()
        yield self._last
