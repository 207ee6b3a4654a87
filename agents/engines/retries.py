"""Retries of a request: exponential back-off with jitter, waits that the server requests, and a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...envs.errors import ConfigurationError
from ...envs.extras import missing_extra
from ..base import Stop
from .base import Completion
from .connection import Connection
from .faults import BASE_URL_OPTION, RequestRejected, RetryableError

logging.getLogger("stamina").addHandler(logging.NullHandler())  # retries are counted, not printed

_MIN_WAIT, _MAX_WAIT = 0.5, 30.0  # seconds
_CONTACT_ATTEMPTS = 4  # to reach a server that has never answered, so that a wrong URL is reported soon

_PATIENCE = 3  # attempts of one request, before the reason of the failures is logged
_log = logging.getLogger(__name__)

Attempt = Callable[[], Awaitable[Completion]]
"""One attempt of a request, which raises `RetryableError` if another may succeed."""


class Retries:
    """Attempts of requests until they succeed.

    Args:
        attempts: Maximum number of attempts per request.
        timeout: Maximum duration of one attempt, in seconds.
        deadline: Maximum duration of one request, with all attempts and waits, in seconds.

    Attributes:
        count: Number of failed attempts that were followed by another.

    Raises:
        ConfigurationError: A value is invalid, or the extra `openai` is not installed.
    """

    def __init__(self, attempts: int, timeout: float, deadline: float) -> None:
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise ConfigurationError(f"attempts must be a positive integer, not {attempts!r}.")
        for option, number in (("timeout", timeout), ("deadline", deadline)):
            if not isinstance(number, int | float) or not number > 0:
                raise ConfigurationError(f"{option} must be a positive number of seconds, not {number!r}.")
        try:
            import stamina  # noqa: F401
        except ImportError as error:
            raise missing_extra("the engine of a server", "openai", error) from None
        self.count = 0
        self._warned = False
        self._attempts, self._timeout, self._deadline = attempts, timeout, deadline

    async def run(self, attempt: Attempt, connection: Connection) -> Completion:
        """Return the completion of a request, attempted until it succeeds.

        Args:
            attempt: Makes one attempt.
            connection: Connection of the request.

        Raises:
            RequestRejected, ContextOverflow, Stop: It cannot succeed.
        """
        end = asyncio.get_running_loop().time() + self._deadline
        failure: RetryableError | None = None
        # The machinery of retries costs as much as a request, and most need none.
        if self._deadline > self._timeout and not connection.is_waiting:
            try:
                return await attempt()
            except RetryableError as error:
                failure = error
        return await self._retry(attempt, connection, end, failure)

    def _warn(self, connection: Connection, tries: int, error: RetryableError) -> None:
        """Say once why requests are repeated, if one is more than a few times."""
        is_reached = connection.answered or not error.unreachable
        if tries == _PATIENCE and is_reached and not self._warned:
            self._warned = True
            _log.warning("%s failed %d times, and is asked again: %s", connection.base_url, tries, error)

    async def _retry(
        self, attempt: Attempt, connection: Connection, end: float, failure: RetryableError | None
    ) -> Completion:
        """Attempt a request until it succeeds.

        Args:
            attempt: Makes one attempt.
            connection: Connection of the request.
            end: Time of the loop at which the deadline ends.
            failure: Failure of a first attempt that was made already; None if there was none.

        Raises:
            RequestRejected, ContextOverflow, Stop: It cannot succeed.
        """
        import stamina

        now = asyncio.get_running_loop().time
        last: RetryableError | None = None
        tries = 0

        def should_retry(error: Exception) -> bool | float:
            """Return True to retry after the back-off, the seconds to wait before a retry, or False."""
            if not isinstance(error, RetryableError):
                return False
            if error.unreachable and not connection.answered and tries >= _CONTACT_ATTEMPTS:
                return False
            if error.wait is None:
                return True
            wait = error.wait + connection.jitter(error.wait)
            return wait if now() + wait < end else False

        try:
            async with asyncio.timeout_at(end):
                async for current in stamina.retry_context(
                    on=should_retry,
                    attempts=self._attempts,
                    timeout=None,
                    wait_initial=_MIN_WAIT,
                    wait_max=_MAX_WAIT,
                    wait_jitter=1.0,
                ):
                    with current:
                        self.count += tries > 0
                        tries += 1
                        try:
                            if failure is not None:
                                first, failure = failure, None
                                raise first
                            return await attempt()
                        except RetryableError as error:
                            last = error
                            self._warn(connection, tries, error)
                            raise
        except (RetryableError, TimeoutError):
            pass
        if last is None:
            raise RequestRejected(f"{connection.base_url} did not respond within {self._deadline:g} s.")
        if last.unreachable and not connection.answered:
            raise Stop(
                f"no server answers at {connection.base_url} ({last}); start the server, or name another with"
                f" {BASE_URL_OPTION}."
            )
        exceeds_deadline = last.wait is not None and now() + last.wait >= end
        wait = f"; the server requests a wait of {last.wait:.0f} s" if exceeds_deadline else ""
        raise RequestRejected(f"{connection.base_url} failed {tries} times in a row, at last with: {last}{wait}.")
