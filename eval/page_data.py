"""Data that a report's page embeds and unpacks on demand."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any


def encode_page(page: str) -> bytes:
    """Return a page in UTF-8, in which lone surrogates, which UTF-8 does not have, are replaced by U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", page).encode()


def pack(data: Any) -> str:
    """Return data as gzipped, base64-encoded JSON."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode()
