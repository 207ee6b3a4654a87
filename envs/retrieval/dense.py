"""Dense retrieval: inner-product search over an encoder's vectors with FAISS.

`Flat` compares a query with every vector of a memory-mapped file. `IVF`, `HNSW` and `PQ` are index files of FAISS,
which maps inverted lists and codes, and reads the links of HNSW into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError, DataError, unknown_name
from ..extras import optional_module
from .documents import StoredDocuments
from .encoder import Encoder, EncoderSpec, Vectors
from .interface import Hit, Retriever
from .progress import Progress

FAISS_TYPES = ("Flat", "IVF", "HNSW", "PQ")
VECTORS_FILE = "vectors.f32"
FAISS_FILE = "faiss.index"
PROBE_FILE = "probe.npy"

HNSW_LINKS = 64
"""Links per vector, as in Search-R1's HNSW64."""

TRAINING_VECTORS = 100_000
"""Maximum number of vectors to train IVF and PQ on."""

_ADD_SIZE = 65_536
"""Number of vectors added to an index at once."""


def import_faiss() -> Any:
    """Import the faiss module.

    Raises:
        ConfigurationError: FAISS is not installed.
    """
    return optional_module("faiss", "dense", "dense retrieval")


class Flat:
    """Exhaustive inner-product search.

    Args:
        vectors: Matrix of vectors, in memory or memory-mapped; shape (vectors, dimension).
    """

    def __init__(self, vectors: Vectors) -> None:
        self._faiss = import_faiss()
        self._vectors = vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Return the scores and numbers of the k nearest vectors: two arrays of shape (queries, k)."""
        scores, numbers = self._faiss.knn(queries, self._vectors, k, metric=self._faiss.METRIC_INNER_PRODUCT)
        return scores, numbers


class FaissIndex:
    """Index file of FAISS.

    Args:
        path: File that `build_faiss_index` wrote.
        probes: Number of lists to visit in an IVF index.
        ef_search: Number of candidates to keep in an HNSW index.

    Raises:
        DataError: The file is not a FAISS index.
    """

    def __init__(self, path: Path, probes: int, ef_search: int) -> None:
        faiss = import_faiss()
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError:
            try:
                self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise DataError(path, f"is not a FAISS index ({reason}); build the index again.") from None
        if hasattr(self._index, "nprobe"):
            self._index.nprobe = probes
        if hasattr(self._index, "hnsw"):
            self._index.hnsw.efSearch = ef_search

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Return scores and numbers of the k nearest vectors, padded with number -1: shape (queries, k)."""
        scores, numbers = self._index.search(queries, k)
        return scores, numbers


def factory_string(kind: str, dimension: int, count: int) -> str:
    """Return FAISS's factory string for an index.

    Args:
        kind: "IVF", "HNSW" or "PQ".
        dimension: Dimension of the vectors.
        count: Number of vectors.

    Raises:
        ConfigurationError: The kind is unknown, or there are too few vectors to train it.
    """
    if kind == "HNSW":
        return f"HNSW{HNSW_LINKS},Flat"
    if kind == "IVF":
        # FAISS recommends 4 √n lists, and at least 39 training vectors for each.
        lists = max(1, min(int(4 * count**0.5), count // 39))
        return f"IVF{lists},Flat"
    if kind == "PQ":
        if count < 256:
            raise ConfigurationError(f"PQ needs at least 256 vectors to train, but there are {count}; use Flat.")
        parts = max(m for m in range(1, 97) if dimension % m == 0)
        # FAISS recommends 39 training vectors for each of the 256 centroids of 8-bit codes.
        return f"PQ{parts}" if count >= 39 * 256 else f"PQ{parts}x4"
    raise unknown_name("FAISS index type", kind, FAISS_TYPES)


def build_faiss_index(kind: str, vectors: Vectors, path: Path, progress: Progress | None = None) -> str:
    """Build an index of vectors and write it to a file.

    The index is built in memory and takes about 4 · dimension bytes per vector for IVF, 512 more for HNSW, and at
    most 96 in total for PQ.

    Args:
        kind: "IVF", "HNSW" or "PQ".
        vectors: Matrix of vectors, which may be memory-mapped; shape (vectors, dimension).
        path: File to write.
        progress: Called with the stage "index" after every block of vectors.

    Returns:
        The factory string of the index.
    """
    faiss = import_faiss()
    count, dimension = vectors.shape
    description = factory_string(kind, dimension, count)
    index = faiss.index_factory(dimension, description, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        rng = np.random.Generator(np.random.PCG64(0))
        sample = np.arange(count)
        if count > TRAINING_VECTORS:
            sample = np.sort(rng.choice(count, TRAINING_VECTORS, replace=False))
        index.train(np.ascontiguousarray(vectors[sample]))
    for start in range(0, count, _ADD_SIZE):
        index.add(np.ascontiguousarray(vectors[start : start + _ADD_SIZE]))
        if progress is not None:
            progress("index", min(start + _ADD_SIZE, count), count)
    faiss.write_index(index, str(path))
    return description


class Dense(Retriever):
    """Retriever on a dense index and the encoder that built it.

    Args:
        folder: Index folder that `build.build_index` wrote.
        corpus: Hash of the corpus; see `documents.corpus_hash`.
        spec: Encoder of the index.
        kind: One of `FAISS_TYPES`.
        dimension: Dimension of the vectors.
        device: Torch device of the encoder; None uses a GPU if there is one.
        probes: Number of lists to visit in an IVF index.
        ef_search: Number of candidates to keep in an HNSW index.

    Raises:
        DataError: The files do not match the arguments.
        ConfigurationError: FAISS is missing; or, on the first search, the encoder differs from the index's.
    """

    def __init__(
        self,
        folder: Path,
        corpus: str,
        spec: EncoderSpec,
        kind: str,
        dimension: int,
        *,
        device: str | None = None,
        probes: int = 64,
        ef_search: int = 128,
    ) -> None:
        self.documents = StoredDocuments(folder)
        self.spec = spec
        self._corpus = corpus
        self._folder = folder
        self._device = device
        self._encoder: Encoder | None = None
        count = len(self.documents)
        self._kind = kind
        self._index: Flat | FaissIndex
        if kind == "Flat":
            path = folder / VECTORS_FILE
            if path.stat().st_size != 4 * count * dimension:
                raise DataError(path, f"is not {count} vectors of {dimension} numbers; build the index again.")
            self._index = Flat(np.memmap(path, np.float32, "r", shape=(count, dimension)))
        else:
            self._index = FaissIndex(folder / FAISS_FILE, probes, ef_search)
        if len(self._index) != count:
            raise DataError(folder, f"has {len(self._index)} vectors for {count} documents; build it again.")

    @property
    def identity(self) -> str:
        return f"dense({self._kind},{self.spec}):{self._corpus}"

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def encoder(self) -> Encoder:
        """Encoder, loaded on first use and checked against the index."""
        if self._encoder is None:
            encoder = Encoder(self.spec, self._device)
            probe = np.load(self._folder / PROBE_FILE)
            if probe.shape != (encoder.dimension,) or float(encoder.probe() @ probe) < 0.99:
                raise ConfigurationError(
                    f"the encoder {self.spec.model!r} is not the one that {self._folder} was built with: its"
                    " vectors differ; build the index again or use the original model."
                )
            self._encoder = encoder
        return self._encoder

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if not queries:
            return []
        if k < 1:
            return [[] for _ in queries]
        scores, numbers = self._index.search(self.encoder.queries(queries), min(k, len(self)))
        return [
            [Hit(self.documents[n], s) for n, s in zip(row.tolist(), values.tolist(), strict=True) if n >= 0]
            for row, values in zip(numbers, scores, strict=True)
        ]

    def close(self) -> None:
        self.documents.close()
