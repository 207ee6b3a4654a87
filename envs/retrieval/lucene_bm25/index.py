"""Inverted index with Lucene's BM25 scores, built in bounded memory and memory-mapped when loaded.

The scores are those of Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), as
Lucene 8 and later compute them. A term that occurs q times in the query, f times in a document of length L, and in
df of N documents contributes

    score = w - w / (1 + f / (k1 (1 - b + b L / mean length))),   w = q ln(1 + (N - df + 0.5) / (df + 0.5)).

Contributions are computed in float32 with L rounded down to one of 256 values. Their sum is float64, and the total
is rounded to float32.
"""

from __future__ import annotations

import json
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
from ...files import PART, replace_folder
from .analysis import analyze, term_of, tokenize

FORMAT = 1
"""Version of the files; indexes of another version are rejected."""

BLOCK_TOKENS = 2_000_000
"""Number of tokens inverted at once during a build, which bounds its memory to about 100 MB."""

_ARRAYS = ("term_ends", "postings", "documents", "divisors", "idf", "id_ends", "id_rank")


def _length_table() -> NDArray[np.int64]:
    """Return the 256 document lengths that Lucene's one-byte code represents (`SmallFloat.byte4ToInt`)."""
    values = list(range(24))
    for code in range(256 - 24):
        shift = (code >> 3) - 1
        values.append(24 + (code & 7 if shift < 0 else (code & 7 | 8) << shift))
    return np.array(values, dtype=np.int64)


LENGTHS = _length_table()


class PackedStrings(Sequence[str]):
    """Sequence of strings in one UTF-8 blob (lone surrogates included), which may be memory-mapped.

    Args:
        blob: Buffer with the concatenated strings.
        ends: End of each string in `blob`; shape (strings,).
    """

    def __init__(self, blob: Any, ends: NDArray[np.int64]) -> None:
        self._blob = memoryview(blob)
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = int(self._ends[index - 1]) if index else 0
        return str(self._blob[start : int(self._ends[index])], "utf-8", "surrogatepass")

    @staticmethod
    def pack(strings: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the blob and the ends of strings."""
        encoded = [s.encode("utf-8", "surrogatepass") for s in strings]
        ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
        return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


class _TermIds(dict[str, int]):
    """Cache from a token to the number of its term, or -1 for a stop word; terms are numbered as they occur."""

    LIMIT = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, int] = {}

    def __missing__(self, token: str) -> int:
        term = term_of(token)
        number = self.terms.setdefault(term, len(self.terms)) if term else -1
        if len(self) >= self.LIMIT:  # Rare tokens must not fill the memory.
            self.clear()
        self[token] = number
        return number


class BM25Index:
    """Searchable index of documents.

    Create an index with `build`, write it with `save` and open it again with `load`. Searches only read, so
    threads may share an index, and processes share a loaded one through the page cache. Documents are numbered
    from 0 in the order of indexing, terms in sorted order.

    Attributes:
        terms: Index terms, sorted.
        ids: Id of every document.
        postings: Bounds of every term's postings in `documents` and `divisors`; int64, shape (terms + 1,).
        documents: Numbers of the documents of every posting, ascending per term; int32.
        divisors: Denominator 1 + f / (…) of every posting's score; float32.
        idf: Inverse document frequency of every term; float32.
        id_ranks: Rank of every document among all ids in ascending order, which breaks ties; int32.
        k1: BM25's term-frequency parameter.
        b: BM25's length-normalization parameter.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        self._arrays = arrays
        self._meta = meta
        self.terms = PackedStrings(arrays["terms"], arrays["term_ends"])
        self.ids = PackedStrings(arrays["ids"], arrays["id_ends"])
        self.postings = arrays["postings"]
        self.documents = arrays["documents"]
        self.divisors = arrays["divisors"]
        self.idf = arrays["idf"]
        self.id_ranks = arrays["id_rank"]
        self.k1: float = meta["k1"]
        self.b: float = meta["b"]
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def total_terms(self) -> int:
        """Number of tokens indexed, stop words excluded."""
        return int(self._meta["total_terms"])

    # ------------------------------------------------------------------ searching

    def search(self, query: str, k: int = 10) -> list[tuple[str, float]]:
        """Return `(document id, score)` of the k best documents for a query, best first, ties by ascending id."""
        numbers, scores = self.top(analyze(query), k)
        ids = self.ids
        return [(ids[n], s) for n, s in zip(numbers.tolist(), scores.tolist(), strict=True)]

    def top(self, terms: Sequence[str], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the numbers and scores of the k best documents, best first, ties by ascending id.

        Args:
            terms: Analyzed terms of the query, with repeats.
            k: Maximum number of documents.
        """
        scores = self._scores(terms)
        found = np.flatnonzero(scores)
        values = scores[found]
        if len(found) > k > 0:
            least = np.partition(values, len(values) - k)[len(values) - k]
            keep = values >= least  # Includes all ties for the last place, which ids break.
            found, values = found[keep], values[keep]
        order = np.lexsort((self.id_ranks[found], -values))[: max(k, 0)]
        return found[order], values[order]

    def _scores(self, terms: Sequence[str]) -> NDArray[np.float32]:
        total = np.zeros(len(self), dtype=np.float64)
        for term, count in Counter(terms).items():
            number = self.term_number(term)
            if number < 0:
                continue
            start, end = int(self.postings[number]), int(self.postings[number + 1])
            weight = np.float32(count) * self.idf[number]
            total[self.documents[start:end]] += weight - weight / self.divisors[start:end]
        return total.astype(np.float32)

    def term_number(self, term: str) -> int:
        """Return the number of an analyzed term, or -1 if no document contains it."""
        number = self._numbers.get(term)
        if number is None:
            number = bisect_left(self.terms, term)
            if number == len(self.terms) or self.terms[number] != term:
                return -1
            if len(self._numbers) < 1 << 16:
                self._numbers[term] = number
        return number

    def score_matrix(self) -> dict[str, NDArray[Any]]:
        """Return the scores of all terms in all documents as `data`, `indices` and `indptr` of a CSC matrix."""
        weights = np.repeat(self.idf, np.diff(self.postings))
        data = weights - weights / self.divisors
        return {"data": data, "indices": self.documents, "indptr": self.postings}

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
            documents: `(id, text)` pairs with distinct ids, consumed once.
            k1: BM25's term-frequency parameter; the default is Anserini's.
            b: BM25's length-normalization parameter; the default is Anserini's.
            folder: Folder to write the index to, which bounds the memory of the build. None keeps it in memory.
            progress: Called from time to time with the number of documents read so far.
        """
        with tempfile.TemporaryDirectory(
            prefix="bm25-", suffix=PART, dir=folder.parent if folder else None
        ) as scratch:
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
        rank = np.empty(len(words), dtype=np.int64)  # First-seen number → place in the sorted list.
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
        """Write the index to a folder, which replaces an existing one."""
        with replace_folder(folder) as part:
            for name, values in self._arrays.items():
                np.save(part / f"{name}.npy", values)
            (part / "meta.json").write_text(json.dumps(self._meta), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> BM25Index:
        """Open an index that `save` or `build` wrote, as a memory map; takes milliseconds at any size.

        Raises:
            DataError: The folder is not a complete index of this version.
        """
        try:
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            if meta.get("format") != FORMAT:
                raise DataError(folder, f"has format {meta.get('format')}, not {FORMAT}; build the index again.")
            names = (*_ARRAYS, "terms", "ids")
            # Plain arrays, because slices of `numpy.memmap` cost several times as much.
            arrays = {n: np.asarray(np.load(folder / f"{n}.npy", mmap_mode="r")) for n in names}
        except (OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(folder, f"not a complete search index ({error}); build it again.") from error
        return cls(arrays, meta)


class _Blocks:
    """Postings in blocks of `(term numbers, document numbers, counts)`, spilled to files if there are several.

    Args:
        scratch: Folder for the files.

    Attributes:
        lengths: Number of terms of every document.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._tokens = array("i")
        self._sizes = array("i")
        self._spilled: list[Path] = []
        self._last: tuple[NDArray[np.int64], ...] | None = None
        self.lengths = array("i")

    def add(self, numbers: list[int]) -> None:
        """Add the next document's term numbers."""
        self._tokens.extend(numbers)
        self._sizes.append(len(numbers))
        self.lengths.append(len(numbers))
        if len(self._tokens) >= BLOCK_TOKENS:
            path = self._scratch / f"block-{len(self._spilled)}.npy"
            np.save(path, np.stack(self._invert_block()))
            self._spilled.append(path)

    def _invert_block(self) -> tuple[NDArray[np.int64], ...]:
        sizes = np.array(self._sizes, dtype=np.int64)
        first = len(self.lengths) - len(sizes)
        keys = np.array(self._tokens, dtype=np.int64) * max(len(sizes), 1)
        keys += np.repeat(np.arange(len(sizes)), sizes)
        keys, counts = np.unique(keys, return_counts=True)
        numbers, docs = np.divmod(keys, max(len(sizes), 1))
        self._tokens, self._sizes = array("i"), array("i")
        return numbers, docs + first, counts

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], ...]]:
        for path in self._spilled:
            yield tuple(np.load(path))
        if self._last is None:
            self._last = self._invert_block()
        yield self._last
