"""Retrieval quality on a question set: recall of the supporting articles by retriever."""

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
    """Measure the recall of supporting titles among the first k documents, with the question as the query.

    Args:
        retrievers: "bm25", "lucene", "dense" or "hybrid" for a temporary index, or any argument of
            `open_retriever` (an index folder, the address of a server).
        data: Folder of a data set with a corpus; None selects hotpotqa below `ARBORETUM_DATA`.
        split: Split of the data set; None selects all splits. Questions without supporting articles are excluded.
        encoder: Encoder of dense and hybrid indexes.
        faiss: faiss index type of dense and hybrid indexes.
        device: Torch device of the encoder; None selects the default.
        depths: Values of k.
        progress: Callback that is called with the name of each retriever; None for no callback.

    Raises:
        ConfigurationError: There is no such data set, or none of its questions names supporting articles.
    """
    folder = data_folder(DEFAULT_DATASET, data)
    if folder is None:
        raise ConfigurationError("there is no data set to measure on; name its folder, or set ARBORETUM_DATA.")
    corpus = corpus_file(folder)
    files = question_files(folder)
    chosen = [q for s in choose_split(split, files, folder) for q in read_questions(files[s]) if q.evidence]
    if not chosen:
        raise ConfigurationError(f"{folder}: no question names its supporting articles; choose another split.")
    rows = []
    for name in retrievers:
        if progress is not None:
            progress(name)
        with _open_by_name(name, corpus, folder, encoder, faiss, device) as retriever:
            found = recall_of(name, retriever, [q.question for q in chosen], [q.evidence for q in chosen], depths)
        rows.append(found)
    return rows


@contextmanager
def _open_by_name(
    name: str, corpus: Path | None, folder: Path, encoder: str | EncoderSpec, faiss: str, device: str | None
) -> Iterator[Retriever]:
    with tempfile.TemporaryDirectory(prefix="arboretum-index-") as scratch:
        if name in RETRIEVERS:
            if corpus is None:
                raise ConfigurationError(f"{folder} has no corpus.jsonl to index; name an index folder instead.")
            index = Path(scratch) / name
            build_index(corpus, name, index, encoder=encoder, faiss=faiss, device=device)
            retriever = open_retriever(index, device=device)
        else:
            retriever = open_retriever(name, device=device)
        try:
            yield retriever
        finally:
            retriever.close()
