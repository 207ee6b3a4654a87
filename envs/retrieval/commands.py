"""Commands of retrieval: their options, whose docstrings are the help, and their actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from ..checks import check_port, expand_home


@dataclass(frozen=True)
class BuildIndex:
    """Build the index of a corpus, or resume an interrupted build.

    Attributes:
        corpus: JSON lines with `id` and `contents`, plain or gzipped.
        out: Folder of the index to create.
        retriever: Kind of index: bm25, lucene, dense or hybrid.
        encoder: Encoder of dense and hybrid indexes: e5, bge, or the name or folder of a model.
        faiss: FAISS index of dense and hybrid indexes: Flat, IVF, HNSW or PQ.
        overwrite: Replace an existing index.
    """

    corpus: Path
    out: Path
    retriever: str = "bm25"
    encoder: str = "e5"
    faiss: str = "Flat"
    overwrite: bool = False

    def run(self) -> str:
        """Build the index, showing progress, and return a sentence."""
        from .build import build_index
        from .progress import progress_bar

        with progress_bar() as progress:
            manifest = build_index(**vars(self), progress=progress)
        return f"Indexed {manifest.documents:,} documents in {self.out}"


@dataclass(frozen=True)
class VerifyIndex:
    """Read every file of an index and compare it with its SHA-256.

    Attributes:
        index: Folder of the index.
    """

    index: Positional[Path]

    def run(self) -> str:
        """Verify the index, showing progress, and return a sentence."""
        from .manifest import Manifest
        from .progress import progress_bar

        with progress_bar(delay=1.0) as progress:
            manifest = Manifest.read(expand_home(self.index), fresh=True, progress=progress)
        return f"{self.index}: all files of {manifest.documents:,} documents ({manifest.retriever}) are intact"


@dataclass(frozen=True)
class Recall:
    """Measure the recall of supporting titles on HotpotQA's questions.

    Attributes:
        retriever: Retrievers to compare: bm25, lucene, dense, hybrid, folders of indexes, or addresses of servers.
        data: Folder of the data set. None uses hotpotqa/ below ARBORETUM_DATA.
        encoder: Encoder of dense and hybrid retrievers: e5, bge, or the name or folder of a model.
    """

    retriever: tuple[str, ...] = ("bm25",)
    data: Path | None = None
    encoder: str = "e5"

    def run(self) -> str:
        """Measure recall, and return the table."""
        from ..searchqa.recall import supporting_title_recall
        from .report import as_table

        rows = supporting_title_recall(self.retriever, data=self.data, encoder=self.encoder)
        return as_table(rows)


@dataclass(frozen=True)
class ServeRetrieval:
    """Serve an index over HTTP, compatible with Search-R1's POST /retrieve.

    Attributes:
        index: Folder of an index made by `arboretum index build`, or a corpus file.
        host: Address to listen on; the default accepts connections from this machine only.
        port: TCP port; 0 chooses a free one.
        max_batch: Queries to search at the same time; larger requests are split. A dense index with FAISS Flat
            reads all its vectors once for each batch, so that more are faster.
        max_waiting: Requests that may wait; further ones are answered with status 503.
    """

    index: Path
    host: str = "127.0.0.1"
    port: int = 8000
    max_batch: int = 64
    max_waiting: int = 64

    def run(self, ready: Callable[[str], None]) -> None:
        """Serve until interrupted; `ready` is called with the address."""
        from .server import serve

        check_port("--port", self.port)
        serve(**vars(self), ready=ready)
