"""Sources of questions and corpora: the generated encyclopedia, or data on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ..checks import user_path
from ..data import data_file_or_folder
from ..errors import ConfigurationError, DataError, unknown_name
from ..retrieval.bm25 import BM25
from ..retrieval.factory import open_retriever
from ..retrieval.interface import Document, Retriever
from ..retrieval.manifest import MANIFEST_FILE
from .datasets import SUFFIXES, Question, choose_split, context_corpus, corpus_file, question_files, read_questions
from .downloads import DATA_SETS
from .encyclopedia import SPLITS, encyclopedia
from .questions import generate_questions

ENCYCLOPEDIA = "encyclopedia"
DEFAULT_DATASET = "hotpotqa"
"""Data set that is used without `dataset=` if its folder exists."""

_NUMBER_OF_HOPS = re.compile(r"(\d)hop")


class Source(NamedTuple):
    """Questions by task id, and a retriever.

    Attributes:
        name: Name of the data set, or the encyclopedia's name with its seed.
        questions: Questions by task id, in task order.
        retriever: Retriever that was requested, or else one over the data set's own corpus.
        is_generated: True for the questions of the generated encyclopedia.
    """

    name: str
    questions: dict[str, Question]
    retriever: Retriever
    is_generated: bool


def open_source(
    dataset: str | None,
    data: str | Path | None,
    split: str | None,
    hops: int | Sequence[int] | None,
    retriever: Retriever | str | Path | None,
    seed: int,
) -> Source:
    """Open the questions and the retriever of an environment.

    Args:
        dataset: Name of a data set, or "encyclopedia"; None selects `DEFAULT_DATASET` if available, else the
            encyclopedia.
        data: Folder of the data set, or a question file; None selects `ARBORETUM_DATA`.
        split: Split of the questions; None selects all splits.
        hops: Number of hops, or several numbers; None selects all questions.
        retriever: Retriever, or an argument of `open_retriever`; None selects the data set's own corpus.
        seed: Seed of the encyclopedia.

    Raises:
        ConfigurationError: The data set or split is unknown, no question has the number of hops, or there is no
            corpus.
        DataError: A file is missing or malformed.
    """
    folder = _find_folder(dataset, data)
    if folder is None:
        name, by_split = (
            f"{ENCYCLOPEDIA}-{seed}",
            {s: generate_questions(seed, s) for s in _generated_splits(split)},
        )
        question_paths: Sequence[Path] = ()
    else:
        name = str(folder.name)
        files = {folder.name.partition(".")[0]: folder} if folder.is_file() else question_files(folder)
        if not files:
            raise DataError(folder, f"contains no question file (one of {', '.join(f'*{s}' for s in SUFFIXES)}).")
        if folder.is_file() and split is not None and split not in files:
            raise ConfigurationError(f"{folder} is a single file with no split {split!r}; omit split=.")
        chosen = choose_split(split, files, folder)
        by_split = {s: _read(files[s], *_file_stamp(files[s])) for s in chosen}
        question_paths = [files[s] for s in chosen]
    wanted = _parse_hops(hops)
    questions = {
        _task_id(name_of_split, question, generated=folder is None): question
        for name_of_split, found in by_split.items()
        for question in found
        if wanted is None or number_of_hops(question) in wanted
    }
    if not questions:
        raise ConfigurationError(f"{name} has no question with hops={hops} in split {split or 'any'}.")
    if retriever is not None:
        found_retriever = retriever if isinstance(retriever, Retriever) else _open_shared(retriever)
    elif folder is None:
        found_retriever = _encyclopedia_index(seed)
    else:
        found_retriever = _dataset_index(folder, question_paths)
    return Source(name, questions, found_retriever, is_generated=folder is None)


def number_of_hops(question: Question) -> int | None:
    """Return the number of hops of a question, or None if it is unknown.

    The metadata (encyclopedia) or the id (MuSiQue) gives it; otherwise it is the number of supporting titles.
    """
    stated = question.metadata.get("hops")
    if isinstance(stated, int):
        return stated
    named = _NUMBER_OF_HOPS.match(question.id)  # MuSiQue's ids begin with 2hop__, 3hop1__, 4hop2__.
    if named:
        return int(named[1])
    return len(question.evidence) or None


def _find_folder(dataset: str | None, data: str | Path | None) -> Path | None:
    """Return the data set's folder or file; None for the generated encyclopedia."""
    if dataset == ENCYCLOPEDIA:
        if data is not None:
            raise ConfigurationError("the encyclopedia is generated; omit data=.")
        return None
    folder = data_file_or_folder(dataset or DEFAULT_DATASET, data)
    if folder is None and dataset is not None:
        if dataset not in DATA_SETS:
            near = unknown_name("data set", dataset, [ENCYCLOPEDIA, *DATA_SETS])
            raise ConfigurationError(f"{near} One of your own needs its folder as data=, or in ARBORETUM_DATA.")
        if not os.environ.get("ARBORETUM_DATA"):
            raise ConfigurationError(
                f"the data set {dataset!r} was not found; set ARBORETUM_DATA to a folder for data and download it"
                f" with `arboretum data get {dataset}`, or pass its folder as data=."
            )
        raise ConfigurationError(
            f"the data set {dataset!r} was not found; download it with `arboretum data get {dataset}`, pass its"
            " folder as data=, or set ARBORETUM_DATA to the folder that contains it."
        )
    return folder


def _generated_splits(split: str | None) -> tuple[str, ...]:
    if split is None:
        return SPLITS
    split = "dev" if split == "valid" else split
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    return (split,)


def _parse_hops(hops: int | Sequence[int] | None) -> frozenset[int] | None:
    if hops is None:
        return None
    wanted = frozenset(hops if isinstance(hops, Iterable) else [hops])
    if not wanted or not all(type(n) is int and n >= 1 for n in wanted):
        raise ConfigurationError(f"hops must be a positive integer or a sequence of them, not {hops!r}.")
    return wanted


def _task_id(split: str, question: Question, generated: bool) -> str:
    return question.id if generated else f"{split}/{question.id}"


def _file_stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=16)
def _read(path: Path, size: int, modified: int) -> tuple[Question, ...]:
    return tuple(read_questions(path))


def _open_shared(source: str | Path) -> Retriever:
    """Open a retriever, which all environments of the process share if it is a server or an index folder."""
    text = str(source)
    if text.startswith(("http://", "https://")):
        return _shared_retriever(text, None)
    manifest = user_path("retriever", source).resolve() / MANIFEST_FILE
    if manifest.is_file():
        return _shared_retriever(str(manifest.parent), _file_stamp(manifest))
    return open_retriever(source)


@lru_cache(maxsize=4)
def _shared_retriever(source: str, stamp: tuple[int, int] | None) -> Retriever:
    return open_retriever(source)


@lru_cache(maxsize=4)
def _encyclopedia_index(seed: int) -> BM25:
    return BM25.of(encyclopedia(seed).documents())


def _dataset_index(folder: Path, files: Sequence[Path]) -> Retriever:
    """Return a retriever over the corpus beside the questions, or BM25 over their context paragraphs."""
    corpus = corpus_file(folder.parent if folder.is_file() else folder)
    if corpus is not None:
        return open_retriever(corpus)
    stamps = tuple((file, *_file_stamp(file)) for file in files)
    return _context_index(stamps)


@lru_cache(maxsize=4)
def _context_index(files: tuple[tuple[Path, int, int], ...]) -> BM25:
    documents: list[Document] = context_corpus(q for file in files for q in _read(*file))
    if not documents:
        raise ConfigurationError(
            f"there is no corpus beside {files[0][0]}: add corpus.jsonl there, or set retriever= to an index"
            " folder, a corpus file or the address of a retrieval server."
        )
    return BM25.of(documents)
