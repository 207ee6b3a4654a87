"""A remote retriever: the client of Search-R1's `POST /retrieve`, with retries, timeouts and a cache on disk."""

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

_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_PAUSE = 10.0

# Retrieval servers stand on the local machine or network: a proxy for the outer world is not asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HTTPRetriever(Retriever):
    """Searches through a retrieval server: ours (`arboretum serve retrieval`), Search-R1's, or one like it.

    Args:
        url: such as `http://127.0.0.1:8000`; `/retrieve` is added unless the path ends so.
        timeout: seconds to wait for one reply.
        retries: further tries after a failed one (no connection, timeout, status 5xx or 429).
        backoff: seconds before the first retry, doubled for each further one; a `Retry-After` in the reply wins.
        cache: a SQLite file in which replies are kept, by server, query and k; None keeps none. Several
            processes may share the file. An index that changes behind the same address is noticed through the
            server's `/health`, where it has one; otherwise delete the file.
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
            raise ConfigurationError("timeout must be positive, retries and backoff not negative.")
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
            return self._ask(queries, k)
        corpus = self._served_corpus()
        known = self._cache.get(corpus, queries, k)
        missing = list(dict.fromkeys(q for q in queries if q not in known))
        if missing:
            fresh = dict(zip(missing, self._ask(missing, k), strict=True))
            self._cache.put(corpus, fresh, k)
            known |= fresh
        return [known[query] for query in queries]

    def health(self) -> dict[str, Any]:
        """The server's `/health` report.

        Raises:
            RetrievalError: the server does not answer, or has no such page.
        """
        reply = self._exchange(urllib.request.Request(f"{self.base}/health"), retries=0)
        if not isinstance(reply, dict):
            raise RetrievalError(f"{self.base}/health answers no JSON object.")
        return reply

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()

    def _served_corpus(self) -> str:
        """What replies are filed under: the address, and the index behind it as far as the server tells."""
        assert self._cache is not None
        with self._lock:
            if self._served is None or self._served[0] != os.getpid():
                try:
                    index = str(self.health().get("index", ""))
                    self._cache.remember_server(self.url, index)
                except RetrievalError:  # an older kind of server, or one that is down: what it served last
                    index = self._cache.remembered_server(self.url)
                self._served = os.getpid(), f"{self.url} {index}"
            return self._served[1]

    def _ask(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        body = json.dumps({"queries": list(queries), "topk": k, "return_scores": True}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        reply = self._exchange(request, self.retries)
        return parse_reply(reply, len(queries), self.url)

    def _exchange(self, request: urllib.request.Request, retries: int) -> Any:
        pause = self.backoff
        problem = ""
        for attempt in range(retries + 1):
            if attempt:
                time.sleep(min(pause, _LONGEST_PAUSE))
                pause = self.backoff * 2**attempt
            try:
                with _OPENER.open(request, timeout=self.timeout) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                with error:
                    problem = f"answers {error.code} ({_explanation(error)})"
                    if error.code not in _RETRIED:
                        break
                    pause = _retry_after(error, pause)
            except TimeoutError:
                problem = f"does not answer within {self.timeout:g} s"
            except urllib.error.URLError as error:
                reason = error.reason
                if isinstance(reason, TimeoutError):
                    problem = f"does not answer within {self.timeout:g} s"
                else:
                    problem = f"cannot be reached ({reason})"
            except (http.client.HTTPException, OSError) as error:
                problem = f"broke the connection ({type(error).__name__}: {error})"
            except ValueError:
                problem = "answers something that is not JSON"
                break
        tries = f" after {attempt + 1} tries" if attempt else ""
        raise RetrievalError(f"the retrieval server at {request.full_url} {problem}{tries}.")


def _explanation(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(4096))["error"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return str(error.reason)


def _retry_after(error: urllib.error.HTTPError, default: float) -> float:
    try:
        return max(float(error.headers.get("Retry-After", "")), 0.0)
    except ValueError:
        return default


def parse_reply(reply: Any, queries: int, source: str) -> list[list[Hit]]:
    """Read any of the shapes in which retrieval servers answer.

    `result` holds a list a query (or null): of `{"document": …, "score": …}`, of documents, or of strings, as
    web-search servers send them. A result without a score gets minus its rank, one without an id its own text.

    Raises:
        RetrievalError: the reply has another shape, or not one list a query.
    """
    result = reply.get("result") if isinstance(reply, dict) else None
    if not isinstance(result, list) or len(result) != queries:
        found = f"{len(result)} lists" if isinstance(result, list) else "no list"
        raise RetrievalError(f"{source} answers {found} under 'result', where {queries} were asked for.")
    try:
        return [[_hit(item, rank) for rank, item in enumerate(items or [])] for items in result]
    except (TypeError, ValueError, AttributeError) as error:
        raise RetrievalError(f"{source} answers a result that is no document ({error}).") from None


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
