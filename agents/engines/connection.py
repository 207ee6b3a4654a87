"""One attempt of a request over HTTP, and the classification of its response."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from ...envs.addresses import CREDENTIAL, basic_authorization, check_has_query, public_url, query_mark
from ...envs.errors import ConfigurationError
from ...envs.extras import optional_module
from ...envs.http_client import HTTPClient, NoResponse, ResponseTooLarge
from ...envs.retry_after import requested_wait
from ..base import Stop
from .faults import (
    BASE_URL_OPTION,
    ContextOverflow,
    OptionRejected,
    RequestRejected,
    RetryableError,
    error_text,
    is_content_refusal,
    is_context_overflow,
    unsupported_option,
)

log = logging.getLogger(__name__)

_LONG_SECRET = 16
"""Number of characters from which a credential is looked for in replies, too: no text contains it by chance."""
_LATE = frozenset({408, 504, 524})
"""Statuses of a gateway that did not wait for the reply, which the server behind it may have completed."""
_ABOUT_CONTENT = frozenset({400, 413, 422, 451})
"""Statuses that a server which has answered before returns for one conversation, not for all."""


class Connection:
    """Connections to an OpenAI-compatible API, within one event loop.

    Args:
        base_url: URL of the API, up to and including `/v1`. Proxies of the process environment are used. A user
            name with a password takes the place of the header `authorization`; they and a query are never shown.
        model: Name of the model, for error messages.
        headers: HTTP headers of every request, whose values are never shown.
        timeout: Maximum duration of one attempt, to the last byte, in seconds.

    Attributes:
        answered: True once the server has answered a request.
        base_url: The URL without what may be secret.
        query_mark: Digest of the URL's query as a fragment; see `envs.addresses.query_mark`.

    Raises:
        ConfigurationError: The URL is invalid, or the extra `openai` is not installed.
    """

    def __init__(self, base_url: str, model: str, headers: Mapping[str, str], timeout: float) -> None:
        URL = optional_module("yarl", "openai", "the engine of a server").URL  # a part of aiohttp
        self.base_url = public_url(base_url).rstrip("/")
        self.query_mark = query_mark(base_url)
        check_has_query(base_url)
        try:
            base: Any = URL(base_url)
            parts = urlsplit(base_url)
        except ValueError:
            raise ConfigurationError(f"{BASE_URL_OPTION} {self.base_url!r} is not a valid URL.") from None
        if base.scheme not in ("http", "https") or not base.host:
            raise ConfigurationError(f"{BASE_URL_OPTION} must look like https://host/v1, not {self.base_url!r}.")
        self._base = base.with_user(None).with_fragment(None)
        sent = {**headers, **basic_authorization(parts)}
        queries = [pair.partition("=")[::2] for pair in parts.query.split("&")]
        values = [(name, value.removeprefix("Bearer ").removeprefix("Basic ")) for name, value in headers.items()]
        credentials = [value for name, value in (*queries, *values) if CREDENTIAL.search(name)]
        self._secrets = _Secrets(
            [
                parts.username,
                parts.password,
                *credentials,
                sent.get("authorization", "").partition(" ")[2],
            ],
            [*parts.query.split("&"), *(value for _, value in (*queries, *values))],
        )
        self.answered = False
        self._label = f"{self.base_url} ({model})"
        self._timeout = timeout
        self._client = HTTPClient(self.base_url, sent, timeout, use_proxies=True, purpose="the engine of a server")
        self._urls: dict[str, Any] = {}
        self._not_before = 0.0
        self._rejected_options: set[str] = set()
        self._rng = random.Random(os.urandom(16))  # jitter of waits only; results do not depend on it

    @property
    def is_waiting(self) -> bool:
        """True while the server has requested that no request be sent."""
        return self._not_before > time.monotonic()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def jitter(self, wait: float) -> float:
        """Return a random delay on top of `wait`, so that many waiting requests do not resume at the same time."""
        return self._rng.uniform(0, min(1.0, 0.1 + wait / 4))

    async def wait(self) -> None:
        """Wait as long as the server has requested."""
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait + self.jitter(wait))

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the JSON object of its response.

        Raises:
            RetryableError: This attempt failed, but another may succeed.
            RequestRejected, ContextOverflow: This request cannot succeed.
            Stop: No request can succeed.
        """
        await self.wait()
        while True:
            try:
                content = await self._exchange("POST", path, self._without_rejected(body))
                break
            except OptionRejected:
                pass
        return self._decode(content)

    def check_reply(self, reply: Mapping[str, Any]) -> None:
        """Raise a `RetryableError` if a response describes an error instead of holding a reply."""
        if is_error(reply):
            raise RetryableError(f"the response is an error: {self._explain(reply)}")

    async def get(self, path: str) -> dict[str, Any]:
        """Request a page and return the JSON object of its response.

        Raises:
            RetryableError, RequestRejected, Stop: There is no such response.
        """
        return self._decode(await self._exchange("GET", path, None))

    def _decode(self, content: bytes) -> dict[str, Any]:
        try:
            reply = decode_json(self._secrets.hide_in_reply(content))
        except ValueError:
            text = self._explain(content[:200].decode(errors="replace"), 80)
            raise RetryableError(f"the response is not JSON: {text!r}", may_cost=True) from None
        if not isinstance(reply, dict):
            raise RetryableError(f"the response is not a JSON object: {self._explain(reply, 80)!r}")
        return reply

    def _explain(self, body: Any, limit: int = 200) -> str:
        """Return the message in a response without secrets; see `error_text`."""
        return error_text(body, limit, self._secrets.hide)

    def _without_rejected(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body without options that the server has rejected."""
        if not self._rejected_options:
            return body
        accepted = {name: value for name, value in body.items() if name not in self._rejected_options}
        if "max_tokens" in body and "max_tokens" in self._rejected_options:
            accepted.setdefault("max_completion_tokens", body["max_tokens"])
        return accepted

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._base.joinpath(path, encoded=True).with_query(self._base.query)
        data = None if body is None else encode_json(body)
        try:
            response = await self._client.request(method, url, data)
        except TimeoutError:
            raise RetryableError(f"no complete response within {self._timeout:g} s", may_cost=True) from None
        except ResponseTooLarge as error:
            raise RequestRejected(f"the response exceeds {error}", may_cost=True) from None
        except NoResponse as error:
            raise RetryableError(
                f"the connection failed ({self._explain(str(error))})",
                unreachable=True,
                may_cost=error.connected,
            ) from None
        if 200 <= response.status < 300:
            return response.content
        if 300 <= response.status < 400:
            address = public_url(response.headers.get("location", "")).rstrip("/").removesuffix(f"/{path}")
            raise Stop(f"{self._label} has moved; set {BASE_URL_OPTION} to {address[:200]!r}.")
        raise self._classify(response.status, response.headers, response.content, body or {})

    def _classify(
        self, status: int, headers: Mapping[str, str], content: bytes, sent: Mapping[str, Any]
    ) -> Exception:
        """Return the exception for an HTTP status other than success."""
        try:
            body = decode_json(content)
        except ValueError:
            body = content.decode(errors="replace")
        reason = f"status {status}: {self._explain(body) or 'no explanation'}"
        if status in (401, 402) or (status == 429 and "insufficient_quota" in str(body)):
            return Stop(f"{self._label} rejects the account or its key: {reason}")
        if (status == 403 and not is_content_refusal(body)) or (status == 404 and not self.answered):
            hint = "check the model's name" if status == 404 else "check that the key may use this model"
            return Stop(f"{self._label} rejects all requests: {reason}; {hint}.")
        if status in (400, 413) and is_context_overflow(body):
            return ContextOverflow(reason)
        if status in (400, 422):
            option = unsupported_option(body, sent)
            if option is not None:
                if option not in self._rejected_options:
                    log.warning("%s rejects the option %s, which is omitted (%s)", self._label, option, reason)
                self._rejected_options.add(option)
                return OptionRejected(reason)
        if status in (404, 408, 409, 425, 429) or status >= 500:
            wait = requested_wait(headers, time.time())
            if wait is not None:
                self._not_before = max(self._not_before, time.monotonic() + wait)
            return RetryableError(reason, wait, may_cost=status in _LATE)
        # A server that has answered accepts the options and the model, so these are about the conversation.
        by_content = (self.answered and status in _ABOUT_CONTENT) or is_content_refusal(body)
        return RequestRejected(f"{self._label} rejects this request: {reason}", by_content)


class _Secrets:
    """Credentials that no message and no reply may repeat, and further values that no message may.

    Args:
        credentials: Credentials; those of less than four characters and the placeholder "none" are not secret.
        others: Values that may be secret, such as an API's version; a model's reply may contain them.
    """

    def __init__(self, credentials: Iterable[str | None], others: Iterable[str]) -> None:
        in_replies = _secret_forms(credentials)
        self._values = sorted(in_replies | _secret_forms(others), key=len, reverse=True)
        self._in_replies = [
            value.encode() for value in self._values if value in in_replies and len(value) >= _LONG_SECRET
        ]

    def hide(self, text: str) -> str:
        """Return a text with *** for every secret."""
        for value in self._values:
            text = text.replace(value, "***")
        return text

    def hide_in_reply(self, content: bytes) -> bytes:
        """Return a reply with *** for every long credential: a server may repeat the headers of the request."""
        for value in self._in_replies:
            if value in content:
                content = content.replace(value, b"***")
        return content


def _secret_forms(values: Iterable[str | None]) -> set[str]:
    forms = {form for value in values if value for form in (value, unquote(value))}
    return {form for form in forms if len(form) >= 4 and form != "none"}


def is_error(reply: Mapping[str, Any]) -> bool:
    """Return True if a response describes an error instead of holding a reply."""
    return bool(reply.get("error") and not reply.get("choices"))


def encode_json(data: Any) -> bytes:
    """Return data as JSON; half surrogate pairs, which models produce, are escaped."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return json.dumps(data).encode()


def decode_json(content: bytes) -> Any:
    """Return the data of JSON, in which half surrogate pairs and NaN are accepted.

    Raises:
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        try:
            return msgspec.json.decode(content)
        except ValueError:
            return json.loads(content)  # It accepts a little more, at three times the cost.
    except RecursionError:
        raise ValueError("nested too deeply") from None
