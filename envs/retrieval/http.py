"""Client of a retrieval server (Search-R1's `POST /retrieve`), with retries, timeouts and a cache on disk."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..addresses import basic_authorization, check_has_query, identifying_url, parse_address, public_url
from ..checks import expand_home
from ..errors import ConfigurationError
from ..http_client import BlockingClient, NoResponse, Response, ResponseTooLarge
from ..retry_after import requested_wait
from .cache import HitCache
from .interface import MAX_QUERY, Document, Hit, RetrievalError, Retriever

_RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_PAUSE = 10.0
"""Maximum number of seconds between two tries."""

_URL_CHARACTERS = "/%:@!$&'()*+,;=~?"
"""Characters that may occur unquoted in a path or a query (RFC 3986), and the percent sign of quoted ones."""

_MAX_BODY = 2**19
"""Maximum number of bytes of the queries of one request."""
_MAX_HITS = 5000
"""Maximum number of hits of one request; more queries are sent in several requests."""


class HTTPRetriever(Retriever):
    """Retriever on a server: `arboretum serve retrieval`, Search-R1's server, or a compatible one.

    Args:
        url: Address such as `http://127.0.0.1:8000`; `/retrieve` is appended unless the path ends with it. A user
            name with a password, and a query such as `?key=…`, are sent, but never shown or stored.
        timeout: Seconds to wait for the last byte of a reply.
        retries: Number of further tries after a failure: no connection, a timeout, or status 408, 425, 429, 500,
            502, 503 or 504.
        backoff: Seconds before the first retry, doubled for each further one; a reply's `Retry-After` takes
            precedence.
        cache: SQLite file that caches replies by server, query and k; None disables the cache. Several processes
            may share the file. If the server has a `/health` page, the cache detects another index at the same
            address; otherwise delete the file when the index changes.

    Raises:
        ConfigurationError: The address or another option is invalid, or the extra `openai` is not installed.
        DataError: The cache file is not a cache.
    """

    waits = True

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
            raise ConfigurationError(
                f"a retrieval server's address starts with http:// or https://, not {public_url(url)!r}."
            )
        check_has_query(url)
        if not (timeout > 0 and retries >= 0 and backoff >= 0):
            raise ConfigurationError("timeout must be positive, and retries and backoff must not be negative.")
        parts = parse_address(url)
        # HTTP allows ASCII only.
        parts = parts._replace(path=quote(parts.path, _URL_CHARACTERS), query=quote(parts.query, _URL_CHARACTERS))
        base = parts.path.rstrip("/").removesuffix("/retrieve")
        server = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        self._pages = {
            page: server._replace(path=f"{base}/{page}", fragment="").geturl() for page in ("retrieve", "health")
        }
        self.url = public_url(self._pages["retrieve"])
        self._address = identifying_url(self._pages["retrieve"])
        # No proxies: these servers run on this machine or in the local network.
        self._client = BlockingClient(
            self.url, basic_authorization(parts), timeout, use_proxies=False, purpose="retrieval over HTTP"
        )
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self._cache = HitCache(expand_home(cache)) if cache is not None else None
        self._served: tuple[int, str] | None = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        return f"http:{self._address}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if not queries:
            return []
        return self._search(queries, k, self.retries)

    def check(self) -> None:
        try:
            self._search(["test"], 1, retries=0)
        except RetrievalError as error:
            raise ConfigurationError(
                f"{str(error).rstrip('.')}; start it (arboretum serve retrieval), or set retriever= to the address"
                " of one that runs."
            ) from None

    def _search(self, queries: Sequence[str], k: int, retries: int) -> list[list[Hit]]:
        if self._cache is None:
            return self._request(queries, k, retries)
        corpus = self._cache_namespace()
        known = self._cache.get(corpus, queries, k)
        missing = list(dict.fromkeys(q for q in queries if q not in known))
        if missing:
            fresh = dict(zip(missing, self._request(missing, k, retries), strict=True))
            self._cache.put(corpus, fresh, k)
            known |= fresh
        return [known[query] for query in queries]

    def health(self) -> dict[str, Any]:
        """Return the server's `/health` report.

        Raises:
            RetrievalError: The server does not reply, or has no such page.
        """
        reply = self._exchange("health", None, retries=0)
        if not isinstance(reply, dict):
            raise RetrievalError(f"{public_url(self._pages['health'])} returned no JSON object.")
        return reply

    def close(self) -> None:
        self._client.close()
        if self._cache is not None:
            self._cache.close()

    def _cache_namespace(self) -> str:
        """Return the first part of cache keys: the address, and the identity of the server's index if known."""
        assert self._cache is not None
        with self._lock:
            if self._served is None or self._served[0] != os.getpid():
                try:
                    index = str(self.health().get("index", ""))
                    self._cache.set_served_index(self._address, index)
                except RetrievalError:  # The server is down or has no /health: assume its last known index.
                    index = self._cache.get_served_index(self._address)
                self._served = os.getpid(), f"{self._address} {index}"
            return self._served[1]

    def _request(self, queries: Sequence[str], k: int, retries: int) -> list[list[Hit]]:
        hits = []
        for part in _split(queries, k):
            body = json.dumps({"queries": part, "topk": k, "return_scores": True}).encode()
            hits += parse_reply(self._exchange("retrieve", body, retries), len(part), self.url)
        return [ranking[:k] for ranking in hits]

    def _exchange(self, page: str, body: bytes | None, retries: int) -> Any:
        pause = self.backoff
        problem = ""
        for attempt in range(retries + 1):
            if attempt:
                time.sleep(min(pause, _MAX_PAUSE))
                pause = self.backoff * 2**attempt
            try:
                response = self._client.request("GET" if body is None else "POST", self._pages[page], body)
                if 200 <= response.status < 300:
                    return json.loads(response.content)
                problem = f"returned status {response.status} ({_explanation(response)})"
                if response.status not in _RETRIED_STATUSES:
                    break
                wait = requested_wait(response.headers, time.time())
                pause = pause if wait is None else wait
            except ResponseTooLarge as error:
                problem = f"returned more than {error}"
                break
            except TimeoutError:
                problem = f"did not reply within {self.timeout:g} s"
            except NoResponse as error:
                reason = _one_line(str(error))
                if error.connected:
                    problem = f"closed the connection ({error.kind}: {reason})"
                else:
                    problem = f"cannot be reached ({reason})"
            except (ValueError, RecursionError):
                problem = "returned a reply that is not JSON"
                break
        tries = f" after {attempt + 1} tries" if attempt else ""
        raise RetrievalError(f"the retrieval server at {public_url(self._pages[page])} {problem}{tries}.")


def _split(queries: Sequence[str], k: int) -> Iterator[list[str]]:
    """Yield the queries, each cut to `MAX_QUERY` characters, in parts that servers accept as one request."""
    part: list[str] = []
    size = 0
    for query in queries:
        query = query[:MAX_QUERY]
        bytes_ = len(json.dumps(query))
        if part and (size + bytes_ > _MAX_BODY or (len(part) + 1) * k > _MAX_HITS):
            yield part
            part, size = [], 0
        part.append(query)
        size += bytes_
    yield part


def _one_line(text: str) -> str:
    """Return a server's text on one line of at most 200 printable characters."""
    line = " ".join(text[:1000].split())[:200]
    return "".join(c if c.isprintable() else "\ufffd" for c in line)


def _explanation(response: Response) -> str:
    """Return the server's own description of an error if it sent one, else the status text."""
    if 300 <= response.status < 400:
        return (
            f"it has moved to {_one_line(public_url(response.headers.get('Location', '')))!r}; pass that address"
        )
    try:
        return _one_line(str(json.loads(response.content)["error"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return _one_line(response.reason)


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
        return [_ranking(items) for items in result]
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RetrievalError(
            f"{source} returned a result that is not a document ({_one_line(str(error))})."
        ) from None


def _ranking(items: Any) -> list[Hit]:
    if not isinstance(items, list | None):
        raise ValueError(f"a {type(items).__name__} in the place of a list")
    return [_hit(item, rank) for rank, item in enumerate(items or [])]


def _hit(item: Any, rank: int) -> Hit:
    score = -float(rank)
    if isinstance(item, dict) and "document" in item:
        score = float(item.get("score", score))
        if not math.isfinite(score):
            raise ValueError(f"its score is {score}")
        item = item["document"]
    if isinstance(item, str):
        return Hit(Document(item, item), score)
    contents, text, name = item.get("contents"), item.get("text"), item.get("id")
    if contents is None and isinstance(text, str):
        contents = f'"{item.get("title", "")}"\n{text}'
    if not isinstance(contents, str):
        raise ValueError(f"it has the keys {_one_line(', '.join(sorted(map(str, item))[:8]))}")
    return Hit(Document(contents if name is None else str(name), contents), score)
