"""Retrieval quality on a question set: how often each retriever finds the supporting articles."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..data import data_folder
from ..errors import ConfigurationError
from ..retrieval.build import RETRIEVERS, build_index
from ..retrieval.encoder import EncoderSpec
from ..retrieval.factory import open_retriever
from ..retrieval.interface import Retriever
from ..retrieval.report import DEPTHS, Recall, recall_of
from .datasets import choose_split, corpus_file, question_files, read_questions
from .sources import DEFAULT_DATASET


def supporting_title_recall(
    retrievers: Sequence[str] = ("bm25",),
    *,
    data: str | Path | None = None,
    split: str | None = None,
    encoder: str | EncoderSpec = "e5",
    faiss: str = "Flat",
    device: str | None = None,
    depths: Sequence[int] = DEPTHS,
    progress: Callable[[str], None] | None = None,
) -> list[Recall]:
    """Recall of the supporting titles among the first k documents, the question itself being the query.

    Args:
        retrievers: "bm25", "lucene", "dense" or "hybrid", indexed for the occasion; or whatever `open_retriever`
            takes (an index folder, the address of a server).
        data: a data set's folder with a corpus; None takes ARBORETUM_DATA's hotpotqa.
        split: None takes every question that names its supporting articles.
        encoder, faiss, device: of dense and hybrid.

    Raises:
        ConfigurationError: there is no such data set, or none of its questions names supporting articles.
    """
    folder = data_folder(DEFAULT_DATASET, data)
    if folder is None:
        raise ConfigurationError("there is no data set to measure on; give its folder, or set ARBORETUM_DATA.")
    corpus = corpus_file(folder)
    files = question_files(folder)
    chosen = [q for s in choose_split(split, files, folder) for q in read_questions(files[s]) if q.evidence]
    if not chosen:
        raise ConfigurationError(f"{folder}: no question names its supporting articles.")
    rows = []
    for name in retrievers:
        if progress is not None:
            progress(name)
        with _opened(name, corpus, folder, encoder, faiss, device) as retriever:
            found = recall_of(name, retriever, [q.question for q in chosen], [q.evidence for q in chosen], depths)
        rows.append(found)
    return rows


@contextmanager
def _opened(
    name: str, corpus: Path | None, folder: Path, encoder: str | EncoderSpec, faiss: str, device: str | None
) -> Iterator[Retriever]:
    with tempfile.TemporaryDirectory(prefix="arboretum-index-") as scratch:
        if name in RETRIEVERS:
            if corpus is None:
                raise ConfigurationError(f"{folder} has no corpus.jsonl to index; give an index folder instead.")
            index = Path(scratch) / name
            build_index(corpus, name, index, encoder=encoder, faiss=faiss, device=device)
            retriever = open_retriever(index, device=device)
        else:
            retriever = open_retriever(name, device=device)
        try:
            yield retriever
        finally:
            retriever.close()
