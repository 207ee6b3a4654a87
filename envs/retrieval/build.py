"""Building index folders: streamed, resumable, and there whole or not at all.

An index is built in `<out>.partial` and renamed to `<out>` when its manifest is written. A build that was stopped,
however rudely, is taken up where it stood by the same call: the copied corpus, the finished stages and, for dense
indexes, every block of vectors already encoded. A partial build of something else is discarded.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigurationError, unknown_name
from . import bm25, dense
from .documents import DOCUMENTS_FILE, OFFSETS_FILE, CorpusHash, StoredDocuments, read_corpus
from .encoder import Encoder, EncoderSpec, encoder_spec
from .lucene_bm25 import BM25Index
from .manifest import Manifest, sizes

Progress = Callable[[str, int, int | None], None]
"""Called with a stage's name, how much of it is done, and how much there is (None: unknown)."""

RETRIEVERS: Mapping[str, tuple[str, ...]] = {
    "bm25": ("bm25",),
    "lucene": ("lucene",),
    "dense": ("dense",),
    "hybrid": ("bm25", "dense"),
}
"""What can be built, and of which parts it consists."""

BLOCK = 4096
"""Passages encoded between two points at which a dense build can be taken up again."""

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
        corpus: JSON lines, plain or gzipped; see `documents`.
        retriever: "bm25", "lucene", "dense" or "hybrid" (BM25 and dense).
        out: the folder to make.
        k1, b: BM25's parameters.
        encoder: a preset, model name, folder or spec; for dense and hybrid.
        faiss: "Flat", "IVF", "HNSW" or "PQ".
        device, batch_size: how to encode; see `Encoder`.
        overwrite: replace an index that stands at `out`.
        progress: told about every stage.

    Raises:
        DataError: the corpus is malformed (names the line).
        ConfigurationError: an unknown kind, a missing package, `out` exists, or another build of it is running.
    """
    if retriever not in RETRIEVERS:
        raise unknown_name("retriever", retriever, RETRIEVERS)
    parts = RETRIEVERS[retriever]
    if faiss not in dense.FAISS_TYPES:
        raise unknown_name("FAISS index type", faiss, dense.FAISS_TYPES)
    corpus, out = Path(corpus).expanduser().resolve(), Path(out).expanduser().resolve()
    if out.exists() and not overwrite:
        raise ConfigurationError(f"{out} exists; give another folder, or overwrite it.")
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
    with _locked(out.with_name(f"{out.name}.lock")):
        _take_up(work, plan)
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
        for name in (_PLAN_FILE, _COPIED_FILE):
            (work / name).unlink()
        manifest = Manifest(
            retriever,
            copied["corpus"],
            copied["documents"],
            parameters,
            spec.as_dict() if spec else None,
            sizes(work),
        )
        manifest.write(work)
        if out.exists():
            shutil.rmtree(out)
        os.replace(work, out)
    return manifest


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the right to build one index; the system lets go of it when the process dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(f"another process is building this index (it holds {path}).") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _take_up(work: Path, plan: Mapping[str, Any]) -> None:
    """Keep the partial build of the same plan; discard any other."""
    try:
        same = json.loads((work / _PLAN_FILE).read_text()) == json.loads(json.dumps(plan))
    except (OSError, ValueError):
        same = False
    if not same:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        _write_whole(work / _PLAN_FILE, json.dumps(plan).encode())


def _write_whole(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def _copy_corpus(corpus: Path, work: Path, report: Progress) -> dict[str, Any]:
    """Bring the documents into the index folder, checked and in a form that can be read at any place."""
    marker = work / _COPIED_FILE
    if marker.exists():
        found: dict[str, Any] = json.loads(marker.read_text())
        return found
    digest = CorpusHash()
    offsets = _Growing(work / OFFSETS_FILE)
    position = count = 0
    offsets.append(0)
    with (work / DOCUMENTS_FILE).open("wb") as file:
        for document in read_corpus(corpus):
            digest.add(document)
            row = {"id": document.id, "contents": document.contents}
            try:
                line = json.dumps(row, ensure_ascii=False).encode()
            except UnicodeEncodeError:  # half a surrogate pair
                line = json.dumps(row).encode()
            position += file.write(line + b"\n")
            offsets.append(position)
            count += 1
            if not count % _REPORT_EVERY:
                report("corpus", count, None)
    if not count:
        raise ConfigurationError(f"{corpus}: the corpus has no documents.")
    offsets.save()
    report("corpus", count, count)
    copied = {"corpus": digest.hexdigest(), "documents": count}
    _write_whole(marker, json.dumps(copied).encode())
    return copied


class _Growing:
    """A list of numbers of 8 bytes each that ends as an .npy file."""

    def __init__(self, path: Path) -> None:
        from array import array

        self._path = path
        self._values = array("q")
        self.append = self._values.append

    def save(self) -> None:
        np.save(self._path, np.frombuffer(self._values, np.int64))


def _build_bm25(documents: StoredDocuments, work: Path, k1: float, b: float, report: Progress) -> None:
    if (work / bm25.PEAKS_FILE).exists():
        return
    total = len(documents)
    index = BM25Index.build(
        ((d.id, bm25.breathing(d.contents)) for d in documents),
        k1=k1,
        b=b,
        folder=work / bm25.INDEX_FOLDER,
        progress=lambda done: report("bm25", done, total),
    )
    fresh = work / f"new-{bm25.PEAKS_FILE}"
    np.save(fresh, bm25.term_peaks(index))
    os.replace(fresh, work / bm25.PEAKS_FILE)


def _build_lucene(documents: StoredDocuments, work: Path, report: Progress) -> None:
    from . import lucene

    if not (work / lucene.INDEX_FOLDER).exists():
        fresh = work / f"new-{lucene.INDEX_FOLDER}"
        shutil.rmtree(fresh, ignore_errors=True)
        lucene.index_documents(documents, fresh, lambda done: report("lucene", done, len(documents)))
        os.replace(fresh, work / lucene.INDEX_FOLDER)


def _build_dense(
    documents: StoredDocuments,
    work: Path,
    spec: EncoderSpec,
    kind: str,
    device: str | None,
    batch_size: int,
    report: Progress,
) -> dict[str, Any]:
    dense.import_faiss()
    total = len(documents)
    encoder = Encoder(spec, device, batch_size)
    row = 4 * encoder.dimension
    path = work / dense.VECTORS_FILE
    if not (work / dense.FAISS_FILE).exists():
        path.touch()
        # What a killed process may have left of its last block does not count.
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
            fresh = work / f"new-{dense.FAISS_FILE}"
            dense.train(kind, vectors, fresh, report)
            os.replace(fresh, work / dense.FAISS_FILE)
        path.unlink(missing_ok=True)
    return found
