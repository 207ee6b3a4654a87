"""Factory of retrievers from an index folder, a corpus file or the address of a server."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any

from ..checks import expand_home
from ..errors import ConfigurationError, DataError
from .bm25 import BM25
from .dense import Dense
from .documents import corpus_hash, read_corpus
from .encoder import EncoderSpec, encoder_spec
from .fusion import Hybrid
from .http import HTTPRetriever
from .interface import Retriever
from .manifest import Manifest

MAX_IN_MEMORY = 256 * 2**20
"""Maximum size in bytes of a corpus file that is indexed in memory."""


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
        source: Index folder of `build.build_index`; corpus file, which is indexed in memory with BM25 once per
            process; or `http://` address of a retrieval server.
        corpus: Corpus file to compare the index with; None skips the check.
        encoder: Encoder to compare the index with; None uses the encoder of the manifest.
        device: Torch device of the encoder; None uses a GPU if there is one.
        options: Options of `HTTPRetriever`, or `probes` and `ef_search` of a dense index.

    Raises:
        DataError: The index or corpus is missing or damaged, or the index is of another corpus.
        ConfigurationError: The index is of another encoder, an option does not apply, or a package is missing.
    """
    text = str(source)
    if text.startswith(("http://", "https://")):
        return HTTPRetriever(text, **options)
    path = expand_home(source)
    if path.is_file():
        _reject_options(options, path)
        return _in_memory(path.resolve(), path.stat().st_size, path.stat().st_mtime_ns)
    if not path.is_dir():
        raise DataError(path, "is no index folder, corpus file or http:// address.")
    manifest = Manifest.read(path)
    if corpus is not None:
        _check_corpus(manifest, path, expand_home(corpus))
    if encoder is not None:
        _check_encoder(manifest, path, encoder)
    return _open_index(path, manifest, device, options)


def _open_index(path: Path, manifest: Manifest, device: str | None, options: dict[str, Any]) -> Retriever:
    if manifest.retriever in ("bm25", "lucene"):
        _reject_options(options, path)
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


def _reject_options(options: dict[str, Any], path: Path) -> None:
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
    """Return BM25 over a corpus file, shared by all environments of the process while the file is unchanged."""
    if size > MAX_IN_MEMORY:
        index = f"{path.with_suffix('')}-bm25"
        raise ConfigurationError(
            f"{path} has {size / 2**20:.0f} MB, which is too large to index in memory; run"
            f" `arboretum index build --corpus {quote(str(path))} --retriever bm25 --out {quote(index)}` once and"
            " open that folder instead."
        )
    found = BM25.of(read_corpus(path))
    if not len(found):
        raise ConfigurationError(f"{path}: the corpus has no documents.")
    return found
