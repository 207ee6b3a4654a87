"""Opening a retriever from what a user writes: an index folder, a corpus file or a server's address."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, DataError
from .bm25 import BM25
from .dense import Dense
from .documents import corpus_hash, read_corpus
from .encoder import EncoderSpec, encoder_spec
from .fusion import Hybrid
from .http import HTTPRetriever
from .interface import Retriever
from .manifest import Manifest

LARGEST_IN_MEMORY = 256 * 2**20
"""Bytes of a corpus file above which an index must be built first."""


def open_retriever(
    source: str | Path,
    *,
    corpus: str | Path | None = None,
    encoder: str | EncoderSpec | None = None,
    device: str | None = None,
    **options: Any,
) -> Retriever:
    """Open a retriever.

    Args:
        source: an index folder of `build.build_index`; a corpus file (indexed in memory with BM25, once a
            process); or the `http://` address of a retrieval server.
        corpus: the corpus file that an index must be of; None does not check.
        encoder: the encoder that an index must be of; None takes what its manifest says.
        device: where an encoder runs.
        options: of `HTTPRetriever`, or `probes` and `ef_search` of a dense index.

    Raises:
        DataError: the index or corpus is missing, damaged, or of another corpus.
        ConfigurationError: an index of another encoder, an option that does not apply, a package is missing.
    """
    text = str(source)
    if text.startswith(("http://", "https://")):
        return HTTPRetriever(text, **options)
    path = Path(source).expanduser()
    if path.is_file():
        _no_options(options, path)
        return _in_memory(path.resolve(), path.stat().st_size, path.stat().st_mtime_ns)
    if not path.is_dir():
        raise DataError(path, "is no index folder, corpus file or http:// address.")
    manifest = Manifest.read(path)
    if corpus is not None:
        _check_corpus(manifest, path, Path(corpus).expanduser())
    if encoder is not None:
        _check_encoder(manifest, path, encoder)
    return _open_index(path, manifest, device, options)


def _open_index(path: Path, manifest: Manifest, device: str | None, options: dict[str, Any]) -> Retriever:
    if manifest.retriever in ("bm25", "lucene"):
        _no_options(options, path)
    if manifest.retriever == "bm25":
        return BM25.load(path, manifest.corpus)
    if manifest.retriever == "lucene":
        from .lucene import Lucene

        return Lucene(path, manifest.corpus, manifest.parameters["k1"], manifest.parameters["b"])
    assert manifest.encoder is not None
    dense = Dense(
        path,
        manifest.corpus,
        EncoderSpec(**manifest.encoder),
        manifest.parameters["faiss"],
        manifest.parameters["dimension"],
        device=device,
        **options,
    )
    if manifest.retriever == "dense":
        return dense
    return Hybrid([BM25.load(path, manifest.corpus), dense])


def _no_options(options: dict[str, Any], path: Path) -> None:
    if options:
        raise ConfigurationError(f"the option {next(iter(options))!r} does not apply to {path}.")


def _check_corpus(manifest: Manifest, path: Path, corpus: Path) -> None:
    found = corpus_hash(read_corpus(corpus))
    if found != manifest.corpus:
        raise DataError(
            path, f"is an index of another corpus than {corpus} (hash {manifest.corpus[:12]}…, not {found[:12]}…)."
        )


def _check_encoder(manifest: Manifest, path: Path, encoder: str | EncoderSpec) -> None:
    spec = encoder if isinstance(encoder, EncoderSpec) else encoder_spec(encoder)
    if manifest.encoder is None:
        raise ConfigurationError(f"{path} is a {manifest.retriever} index and has no encoder.")
    if dict(manifest.encoder) != spec.as_dict():
        built = EncoderSpec(**manifest.encoder)
        raise ConfigurationError(
            f"{path} was built with {built}, not with {spec}; build it again or drop encoder=."
        )


@lru_cache(maxsize=4)
def _in_memory(path: Path, size: int, modified: int) -> BM25:
    """BM25 over a corpus file. The environments of one process share it."""
    if size > LARGEST_IN_MEMORY:
        raise ConfigurationError(
            f"{path} has {size / 2**20:.0f} MB, too much to index at every start; run"
            f" `arboretum index build --corpus {path} --retriever bm25 --out {path.with_suffix('')}-bm25` once"
            " and give that folder."
        )
    return BM25.of(read_corpus(path))
