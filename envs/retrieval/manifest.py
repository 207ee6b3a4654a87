"""The manifest of an index folder: what it was built from and how, checked whenever it is opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError

MANIFEST_FILE = "manifest.json"
FORMAT = 1
"""Version of the index folders; others are refused."""


@dataclass(frozen=True)
class Manifest:
    """What an index folder holds.

    Attributes:
        retriever: "bm25", "lucene", "dense" or "hybrid".
        corpus: `documents.corpus_hash` of the corpus.
        documents: how many.
        parameters: k1, b, the FAISS type and so on.
        encoder: the fields of `EncoderSpec`, or None.
        files: size in bytes of every file of the index, by its path within the folder.
    """

    retriever: str
    corpus: str
    documents: int
    parameters: Mapping[str, Any]
    encoder: Mapping[str, Any] | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        (folder / MANIFEST_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check a manifest.

        Raises:
            DataError: there is none, it is of another format, or a file is missing or has another size.
        """
        path = folder / MANIFEST_FILE
        try:
            raw = json.loads(path.read_text())
            if raw.get("format") != FORMAT:
                raise DataError(path, f"has format {raw.get('format')}, not {FORMAT}; build the index again.")
            manifest = cls(**raw)
        except FileNotFoundError:
            raise DataError(
                folder, "is no index (it has no manifest.json); `arboretum index build` makes one."
            ) from None
        except (ValueError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(path, f"is damaged ({error}); build the index again.") from None
        for name, size in manifest.files.items():
            file = folder / name
            if not file.is_file():
                raise DataError(file, "is missing from the index; build it again.")
            if file.stat().st_size != size:
                raise DataError(
                    file, f"has {file.stat().st_size} bytes where the manifest says {size}; build it again."
                )
        return manifest


def sizes(folder: Path) -> dict[str, int]:
    """The size of every file below a folder."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in found}
