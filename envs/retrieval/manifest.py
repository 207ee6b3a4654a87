"""Manifest of an index folder: its corpus and parameters. `SHA256SUMS` covers it and all other files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..checksums import verify_checksums
from ..errors import DataError
from .progress import Progress

MANIFEST_FILE = "manifest.json"
FORMAT = 2
"""Version of index folders; other versions are rejected."""

_FIX = "build the index again, or restore this file from a copy."


@dataclass(frozen=True)
class Manifest:
    """Description of an index folder.

    Attributes:
        retriever: "bm25", "lucene", "dense" or "hybrid".
        corpus: Hash of the corpus; see `documents.corpus_hash`.
        documents: Number of documents.
        parameters: Parameters of the index, such as k1, b or the FAISS index type.
        encoder: Fields of the `EncoderSpec`, or None for an index without encoder.
        format: Version of the folder.
    """

    retriever: str
    corpus: str
    documents: int
    parameters: Mapping[str, Any]
    encoder: Mapping[str, Any] | None = None
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write the manifest to an index folder."""
        text = json.dumps(asdict(self), indent=1) + "\n"
        (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, *, fresh: bool = False, progress: Progress | None = None) -> Manifest:
        """Read the manifest of an index folder and verify the folder's files; see `checksums.verify_checksums`.

        Args:
            folder: Folder of the index.
            fresh: Read files again that were found intact before.
            progress: Called from time to time with the number of megabytes read.

        Raises:
            DataError: The manifest is missing or of another format, or a file is missing or damaged.
        """
        path = folder / MANIFEST_FILE
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw.get("format") != FORMAT:
                raise DataError(path, f"has format {raw.get('format')}, not {FORMAT}; build the index again.")
            manifest = cls(**raw)
        except FileNotFoundError:
            raise DataError(
                folder, "is not an index (it has no manifest.json); build one with `arboretum index build`."
            ) from None
        except (ValueError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(path, f"is damaged ({error}); {_FIX}") from None

        def report(done: int, total: int) -> None:
            if progress is not None:
                progress("verify", done >> 20, total >> 20)

        verify_checksums(folder, _FIX, fresh=fresh, progress=report)
        return manifest
