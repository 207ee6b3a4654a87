"""Cost of a hosted model's replies, and a strict limit on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...envs.errors import ConfigurationError, unknown_name
from ..base import Stop
from .base import Request, Usage

MAX_TOKENS = 10**9
"""Largest credible number of tokens of one request."""
_TOKENS_PER_MESSAGE = 8  # upper bound of role and delimiters in common chat formats


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens.

    Attributes:
        input: Price of prompt tokens.
        output: Price of completion tokens, hidden reasoning included.
        cached: Price of prompt tokens that the provider had cached; None for the price of `input`.
    """

    input: float
    output: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached"):
            value = getattr(self, name)
            if value is None and name == "cached":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ConfigurationError(
                    f"price {name!r} must be a number of US dollars per million tokens, not {value!r}."
                )

    @classmethod
    def of(cls, prices: Prices | Mapping[str, float]) -> Prices:
        """Return the prices of a mapping such as `{"input": 2.5, "cached": 1.25, "output": 10}`.

        Raises:
            ConfigurationError: A name is unknown or missing, or a price is not a number.
        """
        if isinstance(prices, Prices):
            return prices
        known = ("input", "cached", "output")
        for name in prices:
            if name not in known:
                raise unknown_name("price", name, known)
        if "input" not in prices or "output" not in prices:
            raise ConfigurationError('prices need "input" and "output", in US dollars per million tokens.')
        return cls(**prices)

    def cost_of(self, usage: Usage) -> float:
        """Return the cost of a reply, in US dollars."""
        cached = self.input if self.cached is None else self.cached
        uncached_tokens = usage.prompt_tokens - usage.cached_tokens
        total = uncached_tokens * self.input + usage.cached_tokens * cached + usage.completion_tokens * self.output
        return total / 1e6

    def max_cost(self, request: Request, body: Mapping[str, Any]) -> float:
        """Return an upper bound of a request's cost, in US dollars.

        A token has at least one byte, and a reply at most as many tokens as the request or its JSON body allow,
        whose further fields may allow more.
        """
        if request.prompt_ids is not None:
            prompt = len(request.prompt_ids)
        else:
            prompt = sum(len(text.encode()) + _TOKENS_PER_MESSAGE for _, text in request.messages)
            prompt += sum(len(json.dumps(tool)) for tool in request.tools)
        limits = (body.get(name) for name in ("max_tokens", "max_completion_tokens"))
        reply = max([request.sampling.max_tokens, *(limit for limit in limits if isinstance(limit, int))])
        return self.cost_of(Usage(prompt_tokens=prompt, completion_tokens=reply))


def read_usage(usage: Mapping[str, Any] | None) -> Usage:
    """Return the token counts of a response.

    Counts that the server does not report, or that cannot be true (negative, above `MAX_TOKENS`, no integers), are
    0. xAI and Gemini count hidden reasoning in the total only.
    """
    if not isinstance(usage, Mapping):
        return Usage()
    details = usage.get("prompt_tokens_details")
    prompt = _count(usage.get("prompt_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    hidden_included = _count(usage.get("total_tokens")) - prompt if prompt else 0
    return Usage(prompt, min(cached, prompt), max(_count(usage.get("completion_tokens")), hidden_included))


def _count(value: object) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS
    return int(value) if is_count else 0  # type: ignore[call-overload]


class CostLimit(Stop):
    """The cost limit is reached."""


class Budget:
    """Admission of requests under a cost limit, within one event loop.

    A request is admitted only if the limit holds even at its maximum cost. Otherwise it waits until the requests
    in progress have been settled at their actual cost, which is usually far lower. If it still does not fit, it
    and all later requests are rejected.

    Args:
        limit: Cost limit in US dollars; None for no limit.

    Attributes:
        spent: Cost of all settled requests, in US dollars.
        refusal: Message of the first rejection; None before.

    Raises:
        ConfigurationError: The limit is not positive.
    """

    def __init__(self, limit: float | None) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0):
            raise ConfigurationError(f"cost_limit must be a positive number of US dollars, not {limit!r}.")
        self.limit = limit
        self.spent = 0.0
        self.refusal: str | None = None
        self._reserved = 0.0
        self._in_progress = 0
        self._settled = asyncio.Condition()

    async def reserve(self, max_cost: float) -> None:
        """Reserve the maximum cost of a request, in US dollars.

        Raises:
            CostLimit: It does not fit within the limit.
        """
        if self.limit is None:
            return
        async with self._settled:
            while self.refusal is None and self.spent + self._reserved + max_cost > self.limit:
                if self._in_progress == 0:
                    self.refusal = (
                        f"the cost limit of ${self.limit:g} is reached: ${self.spent:.4f} are spent and the next"
                        f" request may cost up to ${max_cost:.4f}; raise cost_limit to continue."
                    )
                    self._settled.notify_all()
                else:
                    await self._settled.wait()
            if self.refusal is not None:
                raise CostLimit(self.refusal)
            self._reserved += max_cost
            self._in_progress += 1

    async def settle(self, max_cost: float, cost: float) -> None:
        """Release the reservation of a request and add its actual cost, in US dollars."""
        self.spent += cost
        if self.limit is None:
            return
        async with self._settled:
            self._in_progress -= 1
            self._reserved = self._reserved - max_cost if self._in_progress else 0.0
            self._settled.notify_all()
