"""Streaming, resumable and atomic builds of index folders.

An index is built in `<out>.partial`, which is renamed to `<out>` after its manifest is written. The same call
resumes an interrupted or killed build: it keeps the copied corpus, the finished stages and, for dense indexes,
every encoded block of vectors. The partial build of a different index is discarded.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from ..checks import expand_home
from ..checksums import write_checksums
from ..errors import ConfigurationError, unknown_name
from ..files import PART, move_file, move_folder, replace_folder, write_atomic
from . import bm25, dense
from .documents import DOCUMENTS_FILE, OFFSETS_FILE, CorpusHash, StoredDocuments, read_corpus
from .encoder import Encoder, EncoderSpec, encoder_spec
from .lucene_bm25 import BM25Index
from .manifest import Manifest
from .progress import Progress

RETRIEVERS: Mapping[str, tuple[str, ...]] = {
    "bm25": ("bm25",),
    "lucene": ("lucene",),
    "dense": ("dense",),
    "hybrid": ("bm25", "dense"),
}
"""Parts of every kind of index."""

BLOCK = 4096
"""Number of passages encoded between two points at which a dense build can resume."""

_PLAN_FILE = "plan.json"
_COPIED_FILE = "copied.json"
_REPORT_EVERY = 1000


def build_index(
    corpus: str | Path,
    retriever: str,
    out: str | Path,
    *,
    k1: float = bm25.K1,
    b: float = bm25.B,
    encoder: str | EncoderSpec = "e5",
    faiss: str = "Flat",
    device: str | None = None,
    batch_size: int = 64,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Build an index of a corpus.

    Args:
        corpus: Corpus file of JSON lines, plain or gzipped; see `documents`.
        retriever: "bm25", "lucene", "dense" or "hybrid" (BM25 and dense).
        out: Folder to create.
        k1: BM25's term-frequency parameter.
        b: BM25's length-normalization parameter.
        encoder: Preset, model name, folder or spec of the encoder, for "dense" and "hybrid".
        faiss: FAISS index type for "dense" and "hybrid": "Flat", "IVF", "HNSW" or "PQ".
        device: Torch device of the encoder; None uses a GPU if there is one.
        batch_size: Number of passages per forward pass of the encoder.
        overwrite: Replace an existing index.
        progress: Called from time to time in every stage.

    Returns:
        The manifest of the index.

    Raises:
        DataError: The corpus is malformed; names the line.
        ConfigurationError: A name is unknown, a package is missing, `out` exists, or another process builds it.
    """
    if retriever not in RETRIEVERS:
        raise unknown_name("retriever", retriever, RETRIEVERS)
    parts = RETRIEVERS[retriever]
    if faiss not in dense.FAISS_TYPES:
        raise unknown_name("FAISS index type", faiss, dense.FAISS_TYPES)
    corpus, out = expand_home(corpus).resolve(), expand_home(out).resolve()
    if out.exists() and not overwrite:
        raise ConfigurationError(f"{out} exists; set another folder, or overwrite it.")
    if not corpus.is_file():
        raise ConfigurationError(f"{corpus}: there is no such corpus file.")
    report: Progress = progress or (lambda stage, done, total: None)
    parameters: dict[str, Any] = {}
    if parts != ("dense",):
        parameters |= {"k1": k1, "b": b}
    spec = None
    if "dense" in parts:
        spec = encoder if isinstance(encoder, EncoderSpec) else encoder_spec(encoder)
        parameters["faiss"] = faiss
    plan = {
        "corpus": [str(corpus), corpus.stat().st_size, corpus.stat().st_mtime_ns],
        "retriever": retriever,
        "parameters": parameters,
        "encoder": spec.as_dict() if spec else None,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    work = out.with_name(f"{out.name}.partial")
    with _build_lock(out.with_name(f"{out.name}.lock")):
        _resume_or_discard(work, plan)
        copied = _copy_corpus(corpus, work, report)
        documents = StoredDocuments(work)
        try:
            for part in parts:
                if part == "bm25":
                    _build_bm25(documents, work, k1, b, report)
                elif part == "lucene":
                    _build_lucene(documents, work, report)
                else:
                    assert spec is not None
                    parameters |= _build_dense(documents, work, spec, faiss, device, batch_size, report)
        finally:
            documents.close()
        manifest = Manifest(
            retriever,
            copied["corpus"],
            copied["documents"],
            parameters,
            spec.as_dict() if spec else None,
        )
        manifest.write(work)
        markers = (_COPIED_FILE, _PLAN_FILE)
        write_checksums(work, exclude=markers)
        for name in markers:  # With the plan, an interrupted build is resumed.
            (work / name).unlink()
        move_folder(work, out)
    return manifest


@contextmanager
def _build_lock(path: Path) -> Iterator[None]:
    """Context that holds the exclusive lock of one index; the system releases it if the process dies."""
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigurationError(f"another process is building this index (it holds {path}).") from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot delete an open file.
            path.unlink(missing_ok=True)
        lock.release()


def _resume_or_discard(work: Path, plan: Mapping[str, Any]) -> None:
    """Keep the finished parts of a partial build with the same plan, and discard any other partial build."""
    try:
        same = json.loads((work / _PLAN_FILE).read_text(encoding="utf-8")) == json.loads(json.dumps(plan))
    except (OSError, ValueError):
        same = False
    if not same:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        write_atomic(work / _PLAN_FILE, json.dumps(plan))
    for path in work.glob(f"*{PART}"):  # Leftovers of a killed build, which must not become part of the index.
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _copy_corpus(corpus: Path, work: Path, report: Progress) -> dict[str, Any]:
    """Copy the validated documents to the index folder for random access; return their hash and number."""
    marker = work / _COPIED_FILE
    if marker.exists():
        found: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))
        return found
    digest = CorpusHash()
    offsets = array("q")
    position = count = 0
    offsets.append(0)
    with (work / DOCUMENTS_FILE).open("wb") as file:
        for document in read_corpus(corpus):
            digest.add(document)
            row = {"id": document.id, "contents": document.contents}
            position += file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            offsets.append(position)
            count += 1
            if not count % _REPORT_EVERY:
                report("corpus", count, None)
    if not count:
        raise ConfigurationError(f"{corpus}: the corpus has no documents.")
    np.save(work / OFFSETS_FILE, np.frombuffer(offsets, np.int64))
    report("corpus", count, count)
    copied = {"corpus": digest.hexdigest(), "documents": count}
    write_atomic(marker, json.dumps(copied))
    return copied


def _build_bm25(documents: StoredDocuments, work: Path, k1: float, b: float, report: Progress) -> None:
    if (work / bm25.PEAKS_FILE).exists():
        return
    total = len(documents)
    index = BM25Index.build(
        ((d.id, d.contents) for d in documents),
        k1=k1,
        b=b,
        folder=work / bm25.INDEX_FOLDER,
        progress=lambda done: report("bm25", done, total),
    )
    peaks = io.BytesIO()
    np.save(peaks, bm25.term_peaks(index))
    write_atomic(work / bm25.PEAKS_FILE, peaks.getvalue())


def _build_lucene(documents: StoredDocuments, work: Path, report: Progress) -> None:
    from . import lucene

    if not (work / lucene.INDEX_FOLDER).exists():
        with replace_folder(work / lucene.INDEX_FOLDER) as part:
            lucene.index_documents(documents, part, lambda done: report("lucene", done, len(documents)))


def _build_dense(
    documents: StoredDocuments,
    work: Path,
    spec: EncoderSpec,
    kind: str,
    device: str | None,
    batch_size: int,
    report: Progress,
) -> dict[str, Any]:
    """Encode the documents, resuming after the last complete block, and build the FAISS index of their vectors."""
    dense.import_faiss()
    total = len(documents)
    encoder = Encoder(spec, device, batch_size)
    row = 4 * encoder.dimension
    path = work / dense.VECTORS_FILE
    if not (work / dense.FAISS_FILE).exists():
        path.touch()
        # A killed process may have left an incomplete last block, which is encoded again.
        done = path.stat().st_size // row // BLOCK * BLOCK if path.stat().st_size < total * row else total
        with path.open("r+b") as file:
            file.truncate(done * row)
            file.seek(done * row)
            for start in range(done, total, BLOCK):
                stop = min(start + BLOCK, total)
                vectors = encoder.passages([documents[i].contents for i in range(start, stop)])
                file.write(vectors.tobytes())
                file.flush()
                os.fsync(file.fileno())
                report("vectors", stop, total)
    np.save(work / dense.PROBE_FILE, encoder.probe())
    found = {"dimension": encoder.dimension}
    if kind != "Flat":
        if not (work / dense.FAISS_FILE).exists():
            vectors = np.memmap(path, np.float32, "r", shape=(total, encoder.dimension))
            part = work / f"{dense.FAISS_FILE}{PART}"
            dense.build_faiss_index(kind, vectors, part, report)
            move_file(part, work / dense.FAISS_FILE)
        path.unlink(missing_ok=True)
    return found
