"""Readers of question sets: FlashRAG's JSON lines, HotpotQA's original JSON, and Search-R1's prepared parquet."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..checks import expand_home
from ..errors import ConfigurationError, DataError, unknown_name
from ..extras import optional_module
from ..retrieval.documents import parse_row, read_lines
from ..retrieval.interface import Document
from .downloads import CHECKSUMS_FILE

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
CORPUS_FILES = ("corpus.jsonl", "corpus.jsonl.gz")
_OTHER_FILES = frozenset({*CORPUS_FILES, CHECKSUMS_FILE, "manifest.json"})
"""Files of a data set's folder that have no questions, though their names end as if they had."""

_NAMED_SPLITS = {"dev60_with_context": "dev60", "dev7405": "dev"}
"""Splits by the file stems of the HotpotQA sample, which have longer names."""
_SPLIT_NAMES = frozenset({"train", "dev", "valid", "test"})


class Question(NamedTuple):
    """One question.

    Attributes:
        id: Identifier, unique in the question set.
        question: Text of the question.
        golden_answers: Accepted answers; empty if they are not published.
        evidence: Titles of the supporting articles, in reading order; empty if unknown.
        metadata: Other fields of the file.
        context: (title, text) of the paragraphs that belong to the question (HotpotQA's distractor setting).
    """

    id: str
    question: str
    golden_answers: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    context: tuple[tuple[str, str], ...] = ()


def read_questions(path: str | Path) -> list[Question]:
    """Read a question file in any of the supported formats.

    Raises:
        DataError: The file is missing or malformed (the error names the line or row), or an id occurs twice.
    """
    path = expand_home(path)
    if path.name.endswith(".parquet"):
        rows: Iterable[tuple[int, Any]] = _parquet_rows(path)
    elif path.name.endswith(".json"):
        rows = _json_rows(path)
    else:
        rows = ((number, parse_row(line, path, number)) for number, line in read_lines(path))
    questions: dict[str, Question] = {}
    for number, row in rows:
        question = _parse_question(row, path, number)
        if question.id in questions:
            raise DataError(path, f"repeats the question id {question.id!r}; ids must be unique.", number)
        questions[question.id] = question
    if not questions:
        raise DataError(path, "contains no questions.")
    return list(questions.values())


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        rows = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(path, "there is no such file.") from None
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"is not JSON ({error}).") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(path, "must be a JSON list of questions.")
    yield from enumerate(rows, 1)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    if not path.is_file():
        raise DataError(path, "there is no such file.")
    arrow = optional_module("pyarrow", "search", f"reading {path}")
    parquet = optional_module("pyarrow.parquet", "search", f"reading {path}")
    try:
        number = 0
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (arrow.ArrowException, OSError) as error:
        raise DataError(path, f"cannot be read as parquet ({error}).") from None


def _parse_question(row: Mapping[str, Any], path: Path, number: int) -> Question:
    try:
        return _parse_fields(row, path, number)
    except (TypeError, AttributeError, LookupError) as error:
        raise DataError(path, f"has a field of the wrong type ({error}).", number) from None


def _parse_fields(row: Mapping[str, Any], path: Path, number: int) -> Question:
    text = row.get("question")
    if not isinstance(text, str):
        text = question_from_prompt(row.get("prompt"))
    if text is None:
        raise DataError(path, "has no 'question'.", number)
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise DataError(path, "'metadata' must be an object.", number)
    extra = {key: row[key] for key in ("type", "level", "data_source") if row.get(key) is not None}
    if isinstance(metadata.get("supporting_titles"), str):
        raise DataError(path, "'supporting_titles' must be a list of titles.", number)
    evidence = metadata.get("supporting_titles") or _supporting_titles(row) or _supporting_titles(metadata)
    context = _context(row, path, number)
    if not context:
        with suppress(DataError):  # Other data sets have something else of this name.
            context = _context(metadata, path, number)
    return Question(
        _id(row, number),
        text.strip(),
        _answers(row, path, number),
        tuple(dict.fromkeys(map(str, evidence))),
        {**extra, **{key: value for key, value in metadata.items() if key != "context" or not context}},
        context,
    )


def _id(row: Mapping[str, Any], number: int) -> str:
    for key in ("id", "_id"):
        if row.get(key) is not None:
            return str(row[key])
    extra = row.get("extra_info")
    if isinstance(extra, Mapping) and extra.get("index") is not None:
        # Row numbers repeat in concatenated data sets; the name of the data set makes them unique.
        return f"{row.get('data_source', '')}_{extra.get('split', '')}_{extra['index']}".strip("_")
    return str(number - 1)


def _answers(row: Mapping[str, Any], path: Path, number: int) -> tuple[str, ...]:
    found = row.get("golden_answers")
    if found is None:
        model = row.get("reward_model")
        truth = model.get("ground_truth") if isinstance(model, Mapping) else None
        found = truth.get("target") if isinstance(truth, Mapping) else None
    if found is None:
        found = row.get("answer", [])
    if isinstance(found, str):
        found = [found]
    if not isinstance(found, list) or not all(isinstance(answer, str) for answer in found):
        raise DataError(path, "'golden_answers' must be a list of strings.", number)
    return tuple(found)


def question_from_prompt(prompt: Any) -> str | None:
    """Return the question in a prepared chat prompt, or None if there is none.

    The question follows the first "Question:" and extends to `<|im_end|>` or to the end.
    """
    if not (isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping)):
        return None
    _, _, rest = str(prompt[-1].get("content", "")).partition("Question:")
    text = rest.lstrip()
    end = text.find("<|im_end|>", 1)  # A question has at least one character.
    return (text if end < 0 else text[:end]).rstrip() if rest else None


def _supporting_titles(row: Mapping[str, Any]) -> list[str]:
    facts = row.get("supporting_facts") or []
    if isinstance(facts, Mapping):  # Hugging Face stores the facts as columns.
        return [str(title) for title in facts.get("title", [])]
    return [str(fact[0]) for fact in facts if isinstance(fact, list | tuple) and fact]


def _context(row: Mapping[str, Any], path: Path, number: int) -> tuple[tuple[str, str], ...]:
    context = row.get("context") or []
    try:
        if isinstance(context, Mapping):  # FlashRAG stores the paragraphs as columns, of one of two names.
            columns = context.get("title", []), context.get("sentences", context.get("content", []))
            context = list(zip(*columns, strict=True))
        if any(isinstance(paragraph, str) for paragraph in context):
            raise TypeError
        return tuple((str(title), "".join(sentences)) for title, sentences in context)
    except (TypeError, ValueError):
        raise DataError(path, "'context' must be a list of [title, [sentences]].", number) from None


def context_corpus(questions: Iterable[Question]) -> list[Document]:
    """Return a corpus of the context paragraphs of all questions, without duplicates."""
    paragraphs = dict.fromkeys(paragraph for question in questions for paragraph in question.context)
    return [Document(str(i), f'"{title}"\n{text}') for i, (title, text) in enumerate(paragraphs)]


def question_files(folder: Path) -> dict[str, Path]:
    """Return the question files of a data set's folder by split, in alphabetical order of file names.

    Where several names stand for one split, as HotpotQA's two development sets do for "dev", the splits are the
    whole names.

    Raises:
        ConfigurationError: Two files have the same name but for its ending.
    """
    stems: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        suffix = next((s for s in reversed(SUFFIXES) if path.name.endswith(s)), None)
        if suffix is None or path.name in _OTHER_FILES or not path.is_file():
            continue
        stem = path.name.removesuffix(suffix)
        if stem in stems:
            raise ConfigurationError(
                f"{folder}: {stems[stem].name} and {path.name} are both the split {stem!r}; keep one of them."
            )
        stems[stem] = path
    splits = {stem: _infer_split(stem) for stem in stems}
    shared = {split for split, count in Counter(splits.values()).items() if count > 1}
    return {stem if splits[stem] in shared else splits[stem]: path for stem, path in stems.items()}


def _infer_split(stem: str) -> str:
    """Return the split named in a file stem, such as "dev" for `hotpot_dev_distractor_v1`, or else the stem."""
    if stem in _NAMED_SPLITS:
        return _NAMED_SPLITS[stem]
    parts = re.split(r"[^A-Za-z0-9]+", stem.lower())
    named = [part for part in parts if part in _SPLIT_NAMES]
    return named[0] if len(named) == 1 else stem


def corpus_file(folder: Path) -> Path | None:
    """Return the corpus file in a data set's folder, or None if there is none."""
    return next((folder / name for name in CORPUS_FILES if (folder / name).is_file()), None)


def choose_split(split: str | None, available: Iterable[str], where: str | Path) -> list[str]:
    """Return the requested split as a list of one, or all splits if `split` is None.

    The names "valid" and "dev" are synonyms.

    Args:
        split: Requested split, or None.
        available: Names of the existing splits.
        where: File or folder that the error message names.

    Raises:
        ConfigurationError: There is no such split.
    """
    names = list(available)
    if split is None:
        return names
    for wanted in (split, {"valid": "dev", "dev": "valid"}.get(split, split)):
        if wanted in names:
            return [wanted]
    raise unknown_name(f"split of {where}", split, names)
