"""What replies of a hosted model cost, and a limit that is never passed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from ...envs.errors import ConfigurationError, unknown_name
from ..base import Stop
from .base import Request, Usage

_TOKENS_PER_MESSAGE = 8  # role and delimiters, in every chat format we know of fewer


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens.

    Attributes:
        input: prompt tokens.
        output: completion tokens, hidden reasoning included.
        cached: prompt tokens that the provider had cached; default: as `input`.
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
        """Prices from a mapping such as `{"input": 2.5, "cached": 1.25, "output": 10}`.

        Raises:
            ConfigurationError: a name is unknown or missing, or a price is no number.
        """
        if isinstance(prices, Prices):
            return prices
        for name in prices:
            if name not in ("input", "output", "cached"):
                raise unknown_name("price", name, ("input", "cached", "output"))
        if "input" not in prices or "output" not in prices:
            raise ConfigurationError('prices need "input" and "output", in US dollars per million tokens.')
        return cls(**prices)

    def of_usage(self, usage: Usage) -> float:
        """What a reply cost, in US dollars."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.prompt_tokens - usage.cached_tokens
        total = fresh * self.input + usage.cached_tokens * cached + usage.completion_tokens * self.output
        return total / 1e6

    def at_most(self, request: Request) -> float:
        """More than a request can cost: a token is at least one byte, and a reply at most `max_tokens` long."""
        if request.prompt_ids is not None:
            prompt = len(request.prompt_ids)
        else:
            prompt = sum(len(text.encode()) + _TOKENS_PER_MESSAGE for _, text in request.messages)
        return self.of_usage(Usage(prompt_tokens=prompt, completion_tokens=request.sampling.max_tokens))


class CostLimit(Stop):
    """The money is spent."""


class Budget:
    """Grants requests as long as even the dearest outcome stays within the limit. For one event loop.

    A request that might not fit waits until those under way have come in at their true cost, usually far lower.
    If it does not fit even then, it and all later ones are refused.
    """

    def __init__(self, limit: float | None) -> None:
        if limit is not None and not limit > 0:
            raise ConfigurationError(f"cost_limit must be a positive number of US dollars, not {limit!r}.")
        self.limit = limit
        self.spent = 0.0
        self.refusal: str | None = None
        self._reserved = 0.0
        self._under_way = 0
        self._settled = asyncio.Condition()

    async def reserve(self, most: float) -> None:
        """Set `most` dollars aside for a request.

        Raises:
            CostLimit: they are not there.
        """
        if self.limit is None:
            return
        async with self._settled:
            while self.refusal is None and self.spent + self._reserved + most > self.limit:
                if self._under_way == 0:
                    self.refusal = (
                        f"the cost limit of ${self.limit:g} is reached: ${self.spent:.4f} are spent and the next"
                        f" request may cost up to ${most:.4f}; raise cost_limit to go on."
                    )
                    self._settled.notify_all()
                else:
                    await self._settled.wait()
            if self.refusal is not None:
                raise CostLimit(self.refusal)
            self._reserved += most
            self._under_way += 1

    async def settle(self, most: float, cost: float) -> None:
        """Give back what was set aside, and book what the request did cost."""
        self.spent += cost
        if self.limit is None:
            return
        async with self._settled:
            self._under_way -= 1
            self._reserved = self._reserved - most if self._under_way else 0.0
            self._settled.notify_all()
