"""Manifest of an index folder: its corpus, parameters and files, checked whenever the index is opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError

MANIFEST_FILE = "manifest.json"
FORMAT = 1
"""Version of index folders; other versions are rejected."""


@dataclass(frozen=True)
class Manifest:
    """Description of an index folder.

    Attributes:
        retriever: "bm25", "lucene", "dense" or "hybrid".
        corpus: Hash of the corpus; see `documents.corpus_hash`.
        documents: Number of documents.
        parameters: Parameters of the index, such as k1, b or the FAISS index type.
        encoder: Fields of the `EncoderSpec`, or None for an index without encoder.
        files: Size in bytes of every file of the index by its path within the folder.
        format: Version of the folder.
    """

    retriever: str
    corpus: str
    documents: int
    parameters: Mapping[str, Any]
    encoder: Mapping[str, Any] | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write the manifest to an index folder."""
        (folder / MANIFEST_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of an index folder and check the folder's files against it.

        Raises:
            DataError: The manifest is missing, damaged or of another format, or a file is missing or has another
                size.
        """
        path = folder / MANIFEST_FILE
        try:
            raw = json.loads(path.read_text())
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
            raise DataError(path, f"is damaged ({error}); build the index again.") from None
        for name, size in manifest.files.items():
            file = folder / name
            if not file.is_file():
                raise DataError(file, "is missing from the index; build the index again.")
            if file.stat().st_size != size:
                raise DataError(
                    file, f"has {file.stat().st_size} bytes, but {size} in the manifest; build the index again."
                )
        return manifest


def sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of every file below a folder by relative path."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in found}
