"""Dense retrieval: an encoder's vectors in a FAISS index, compared by inner product.

`Flat` compares with every vector, straight from a memory-mapped file; `IVF`, `HNSW` and `PQ` are FAISS's own index
files, mapped as far as FAISS can (inverted lists and codes are; the links of HNSW are read into memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError, DataError, unknown_name
from .documents import StoredDocuments
from .encoder import Encoder, EncoderSpec, Vectors
from .extras import optional_module
from .interface import Hit, Retriever

FAISS_TYPES = ("Flat", "IVF", "HNSW", "PQ")
VECTORS_FILE = "vectors.f32"
FAISS_FILE = "faiss.index"
PROBE_FILE = "probe.npy"

HNSW_LINKS = 64
"""Search-R1's HNSW64."""
TRAINING_VECTORS = 100_000
"""The most vectors that IVF and PQ are trained on."""
_ADD = 65_536


def import_faiss() -> Any:
    """The faiss module.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_module("faiss", "dense", "dense retrieval")


class Flat:
    """Exhaustive inner-product search over a matrix of vectors, in memory or memory-mapped."""

    def __init__(self, vectors: Vectors) -> None:
        self._faiss = import_faiss()
        self._vectors = vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Scores and numbers of the k nearest vectors: two arrays of shape (queries, k)."""
        scores, numbers = self._faiss.knn(queries, self._vectors, k, metric=self._faiss.METRIC_INNER_PRODUCT)
        return scores, numbers


class Trained:
    """A FAISS index file."""

    def __init__(self, path: Path, probes: int, ef_search: int) -> None:
        faiss = import_faiss()
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError:
            try:
                self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
            except RuntimeError as error:
                raise DataError(path, f"is no FAISS index ({str(error).splitlines()[0]}).") from None
        if hasattr(self._index, "nprobe"):
            self._index.nprobe = probes
        if hasattr(self._index, "hnsw"):
            self._index.hnsw.efSearch = ef_search

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Scores and numbers of the k nearest vectors found (number -1 where fewer were)."""
        scores, numbers = self._index.search(queries, k)
        return scores, numbers


def factory_string(kind: str, dimension: int, count: int) -> str:
    """FAISS's name of an index of `kind` for `count` vectors.

    Raises:
        ConfigurationError: an unknown kind, or too few vectors to train it.
    """
    if kind == "HNSW":
        return f"HNSW{HNSW_LINKS},Flat"
    if kind == "IVF":
        # 4 √n lists are FAISS's rule of thumb; each wants some 39 vectors to be trained on.
        lists = max(1, min(int(4 * count**0.5), count // 39))
        return f"IVF{lists},Flat"
    if kind == "PQ":
        if count < 256:
            raise ConfigurationError(f"PQ cannot be trained on {count} vectors; it needs 256, use Flat.")
        parts = max(m for m in range(1, 97) if dimension % m == 0)
        # Codes of 8 bits want 39 training vectors for each of 256 centres.
        return f"PQ{parts}" if count >= 39 * 256 else f"PQ{parts}x4"
    raise unknown_name("FAISS index type", kind, FAISS_TYPES)


def train(kind: str, vectors: Vectors, path: Path, progress: Any = None) -> str:
    """Build an IVF, HNSW or PQ index of a matrix of vectors into a file; returns its FAISS factory string.

    The vectors may be memory-mapped. The index itself is put together in memory: about 4 · dimension bytes a
    vector for IVF, 512 more for HNSW, and at most 96 in all for PQ.
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
    for start in range(0, count, _ADD):
        index.add(np.ascontiguousarray(vectors[start : start + _ADD]))
        if progress is not None:
            progress("index", min(start + _ADD, count), count)
    faiss.write_index(index, str(path))
    return description


class Dense(Retriever):
    """A dense index and the encoder that made it.

    Args:
        folder: what `build.build_index` wrote.
        manifest: its manifest.
        device: where the encoder runs; see `Encoder`.
        probes: lists visited by IVF.
        ef_search: candidates kept by HNSW.

    Raises:
        DataError: the files do not fit the manifest.
        ConfigurationError: on the first search, if the encoder is not the one that made the index.
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
        self._index: Flat | Trained
        if kind == "Flat":
            path = folder / VECTORS_FILE
            if path.stat().st_size != 4 * count * dimension:
                raise DataError(path, f"is not {count} vectors of {dimension} numbers; build the index again.")
            self._index = Flat(np.memmap(path, np.float32, "r", shape=(count, dimension)))
        else:
            self._index = Trained(folder / FAISS_FILE, probes, ef_search)
        if len(self._index) != count:
            raise DataError(folder, f"has {len(self._index)} vectors for {count} documents; build it again.")

    @property
    def identity(self) -> str:
        return f"dense({self._kind},{self.spec}):{self._corpus}"

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded on first use and checked against the index."""
        if self._encoder is None:
            encoder = Encoder(self.spec, self._device)
            probe = np.load(self._folder / PROBE_FILE)
            if probe.shape != (encoder.dimension,) or float(encoder.probe() @ probe) < 0.99:
                raise ConfigurationError(
                    f"the encoder {self.spec.model!r} is not the one that {self._folder} was built with: its"
                    " vectors differ; build the index again or load the right model."
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
