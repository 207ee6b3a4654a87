"""Client of a retrieval server (Search-R1's `POST /retrieve`), with retries, timeouts and a cache on disk."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from .cache import ReplyCache
from .interface import Document, Hit, RetrievalError, Retriever

_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_PAUSE = 10.0
"""Maximum number of seconds between two tries."""

# Retrieval servers run on this machine or in the local network, so system proxies are bypassed.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HTTPRetriever(Retriever):
    """Retriever on a server: `arboretum serve retrieval`, Search-R1's server, or a compatible one.

    Args:
        url: Address such as `http://127.0.0.1:8000`; `/retrieve` is appended unless the path ends with it.
        timeout: Seconds to wait for a reply.
        retries: Number of further tries after a failure: no connection, a timeout, or status 408, 425, 429, 500,
            502, 503 or 504.
        backoff: Seconds before the first retry, doubled for each further one; a reply's `Retry-After` takes
            precedence.
        cache: SQLite file that caches replies by server, query and k; None disables the cache. Several processes
            may share the file. If the server has a `/health` page, the cache detects another index at the same
            address; otherwise delete the file when the index changes.

    Raises:
        ConfigurationError: The address or another option is invalid.
        DataError: The cache file is not a cache.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        retries: int = 3,
        backoff: float = 0.5,
        cache: str | Path | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"a retrieval server's address starts with http:// or https://, not {url!r}.")
        if timeout <= 0 or retries < 0 or backoff < 0:
            raise ConfigurationError("timeout must be positive, and retries and backoff must not be negative.")
        base = url.rstrip("/")
        self.base = base.removesuffix("/retrieve")
        self.url = f"{self.base}/retrieve"
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self._cache = ReplyCache(Path(cache).expanduser()) if cache is not None else None
        self._served: tuple[int, str] | None = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        return f"http:{self.url}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if not queries:
            return []
        if self._cache is None:
            return self._request(queries, k)
        corpus = self._cache_namespace()
        known = self._cache.get(corpus, queries, k)
        missing = list(dict.fromkeys(q for q in queries if q not in known))
        if missing:
            fresh = dict(zip(missing, self._request(missing, k), strict=True))
            self._cache.put(corpus, fresh, k)
            known |= fresh
        return [known[query] for query in queries]

    def health(self) -> dict[str, Any]:
        """Return the server's `/health` report.

        Raises:
            RetrievalError: The server does not reply, or has no such page.
        """
        reply = self._exchange(urllib.request.Request(f"{self.base}/health"), retries=0)
        if not isinstance(reply, dict):
            raise RetrievalError(f"{self.base}/health returned no JSON object.")
        return reply

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()

    def _cache_namespace(self) -> str:
        """Return the first part of cache keys: the address, and the identity of the server's index if known."""
        assert self._cache is not None
        with self._lock:
            if self._served is None or self._served[0] != os.getpid():
                try:
                    index = str(self.health().get("index", ""))
                    self._cache.set_served_index(self.url, index)
                except RetrievalError:  # The server is down or has no /health: assume its last known index.
                    index = self._cache.get_served_index(self.url)
                self._served = os.getpid(), f"{self.url} {index}"
            return self._served[1]

    def _request(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        body = json.dumps({"queries": list(queries), "topk": k, "return_scores": True}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        reply = self._exchange(request, self.retries)
        return parse_reply(reply, len(queries), self.url)

    def _exchange(self, request: urllib.request.Request, retries: int) -> Any:
        pause = self.backoff
        problem = ""
        for attempt in range(retries + 1):
            if attempt:
                time.sleep(min(pause, _MAX_PAUSE))
                pause = self.backoff * 2**attempt
            try:
                with _OPENER.open(request, timeout=self.timeout) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                with error:
                    problem = f"returned status {error.code} ({_explanation(error)})"
                    if error.code not in _RETRIED_STATUSES:
                        break
                    pause = _retry_after(error, pause)
            except TimeoutError:
                problem = f"did not reply within {self.timeout:g} s"
            except urllib.error.URLError as error:
                reason = error.reason
                if isinstance(reason, TimeoutError):
                    problem = f"did not reply within {self.timeout:g} s"
                else:
                    problem = f"cannot be reached ({reason})"
            except (http.client.HTTPException, OSError) as error:
                problem = f"closed the connection ({type(error).__name__}: {error})"
            except ValueError:
                problem = "returned a reply that is not JSON"
                break
        tries = f" after {attempt + 1} tries" if attempt else ""
        raise RetrievalError(f"the retrieval server at {request.full_url} {problem}{tries}.")


def _explanation(error: urllib.error.HTTPError) -> str:
    """Return the server's own description of an error if it sent one, else the status text."""
    try:
        return str(json.loads(error.read(4096))["error"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return str(error.reason)


def _retry_after(error: urllib.error.HTTPError, default: float) -> float:
    """Return the seconds in `Retry-After`, or the default if there are none."""
    try:
        return max(float(error.headers.get("Retry-After", "")), 0.0)
    except ValueError:
        return default


def parse_reply(reply: Any, queries: int, source: str) -> list[list[Hit]]:
    """Parse a reply in any of the known forms of retrieval servers.

    `result` has one list (or null) per query, whose items are `{"document": …, "score": …}`, documents, or strings
    as web-search servers send them. An item without a score gets minus its rank, one without an id its text.

    Args:
        reply: Decoded JSON reply.
        queries: Number of queries in the request.
        source: Address of the server, for error messages.

    Raises:
        RetrievalError: The reply has another form or another number of lists.
    """
    result = reply.get("result") if isinstance(reply, dict) else None
    if not isinstance(result, list) or len(result) != queries:
        found = f"{len(result)} lists" if isinstance(result, list) else "no list"
        raise RetrievalError(f"{source} returned {found} under 'result' for {queries} queries.")
    try:
        return [[_hit(item, rank) for rank, item in enumerate(items or [])] for items in result]
    except (TypeError, ValueError, AttributeError) as error:
        raise RetrievalError(f"{source} returned a result that is not a document ({error}).") from None


def _hit(item: Any, rank: int) -> Hit:
    score = -float(rank)
    if isinstance(item, dict) and "document" in item:
        score = float(item.get("score", score))
        item = item["document"]
    if isinstance(item, str):
        return Hit(Document(item, item), score)
    contents = item.get("contents")
    if contents is None and "text" in item:
        contents = f'"{item.get("title", "")}"\n{item["text"]}'
    if not isinstance(contents, str):
        raise ValueError(f"it has the keys {sorted(map(str, item))[:8]}")
    return Hit(Document(str(item.get("id", contents)), contents), score)
