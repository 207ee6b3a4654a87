"""Goals: what a customer is to buy, in the order and with the price limits of the published benchmark.

The original draws prices and price limits from Python's global generator, unseeded, *before* it seeds and shuffles
the goals. Here both draws come from a generator of their own, seeded with `load_seed`; the same seed gives what
the original gives when it is seeded right before loading.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigurationError
from .product import Product
from .product_catalog import Catalogue

SHUFFLE_SEED = 233
NO_LIMIT = 1_000_000.0
PRICE_LIMITS = tuple(10.0 * step for step in range(1, 100))


class Goal(NamedTuple):
    """One task.

    Attributes:
        options: wanted option values: `{name: value}` for synthetic goals, a tuple of values for human ones.
        price_upper: the highest acceptable price; `NO_LIMIT` where the text names none.
        weight: chance of being drawn, relative to the others.
    """

    asin: str
    category: str
    query: str
    name: str
    product_category: str
    instruction_text: str
    attributes: tuple[str, ...]
    price_upper: float
    goal_options: dict[str, str] | tuple[str, ...]
    weight: float

    @property
    def words(self) -> str:
        """The instruction without its price clause: what one would type into the search box."""
        return self.instruction_text.partition(", and price lower than ")[0]


def draw_prices(catalogue: Catalogue, rng: random.Random) -> NDArray[np.float64]:
    """The price of every product: as given, or uniform within the range given."""
    prices = catalogue.low.copy()
    for number in np.flatnonzero(~np.isnan(catalogue.high)).tolist():
        prices[number] = rng.uniform(float(catalogue.low[number]), float(catalogue.high[number]))
    return prices


def _draw_limit(price: float, rng: random.Random) -> float:
    above = PRICE_LIMITS[bisect_right(PRICE_LIMITS, price) :][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def _clause(limit: float) -> str:
    return "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"


def _combination(options: Mapping[str, Sequence[str]], place: int) -> dict[str, str]:
    """The `place`-th element of the product of all options, names sorted, the last one running fastest."""
    chosen: dict[str, str] = {}
    for name in sorted(options, reverse=True):
        place, digit = divmod(place, len(options[name]))
        chosen[name] = options[name][digit]
    return dict(sorted(chosen.items()))


class Goals(Sequence[Goal]):
    """All goals of a shop, in benchmark order; made one by one when asked for, so a million take little memory.

    Args:
        human: the crowd-sourced instructions instead of the synthetic ones.
        rng: draws the price limits; must have drawn the prices before (see `draw_prices`).
        filter_goals: keeps the goals for which `filter_goals(index, goal)` is true.
        limit_goals: then draws so many of them by weight.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        prices: NDArray[np.float64],
        rng: random.Random,
        *,
        human: bool = False,
        filter_goals: Callable[[int, Goal], bool] | None = None,
        limit_goals: int | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._human = human
        products = catalogue.human if human else catalogue.synthetic
        self._limits = np.array([_draw_limit(price, rng) for price in prices[products].tolist()], dtype=np.float64)
        sizes = np.ones(len(products), dtype=np.int64) if human else catalogue.combinations
        self._starts = np.concatenate(([0], np.cumsum(sizes)))
        self._entry_weights = np.ones(len(products)) if human else self._attribute_weights(sizes)
        order = list(range(int(self._starts[-1])))
        shuffler = random.Random(SHUFFLE_SEED)
        shuffler.shuffle(order)
        self._order = np.array(order, dtype=np.int64)
        if filter_goals is not None:
            kept = [i for i, goal in enumerate(self) if filter_goals(i, goal)]
            self._order = self._order[kept]
        if limit_goals is not None and 0 <= limit_goals < len(self._order):
            cumulative = self.cumulative
            if limit_goals > sum(low < high for low, high in pairwise(cumulative)):
                raise ConfigurationError(f"limit_goals={limit_goals}: too few goals have a weight above 0.")
            drawn: dict[int, None] = {}
            while len(drawn) < limit_goals:
                drawn[draw_index(cumulative, shuffler)] = None
            self._order = self._order[list(drawn)]
        if not len(self._order):
            kind = "human instructions (items_human_ins*.json)" if human else "synthetic instructions"
            raise ConfigurationError(f"there is no goal: none of the products has {kind} that pass the filter.")

    def _attribute_weights(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """For every product, the mean over its attributes of 1 / (number of goals with that attribute)."""
        ids, ends = self._catalogue.attribute_ids, self._catalogue.attribute_ends
        lengths = np.diff(ends, prepend=0)
        counts = np.bincount(ids, weights=np.repeat(sizes, lengths))
        shares = (1.0 / counts[ids]).tolist()
        starts = ends - lengths
        return np.array(
            [
                sum(shares[start:end]) / (end - start) if end > start else 0.0
                for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            ],
            dtype=np.float64,
        )

    @property
    def cumulative(self) -> list[float]:
        """Cumulative weights, starting with 0."""
        entries = np.searchsorted(self._starts, self._order, side="right") - 1
        return [0.0, *accumulate(self._entry_weights[entries].tolist())]

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Goal: ...
    @overload
    def __getitem__(self, index: slice) -> list[Goal]: ...
    def __getitem__(self, index: int | slice) -> Goal | list[Goal]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = int(self._order[index])
        entry = int(np.searchsorted(self._starts, position, side="right")) - 1
        limit = float(self._limits[entry])
        if self._human:
            product = self._catalogue.product(int(self._catalogue.human[entry]))
            instruction = product.human[int(self._catalogue.human_place[entry])]
            return _goal(product, instruction.text, instruction.attributes, limit, instruction.options, 1.0)
        product = self._catalogue.product(int(self._catalogue.synthetic[entry]))
        options = _combination(product.options, position - int(self._starts[entry]))
        wanted = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = f"{product.instruction}{' with ' if wanted else ''}{wanted}"
        weight = float(self._entry_weights[entry])
        return _goal(product, text, product.instruction_attributes, limit, options, weight)


def _goal(
    product: Product,
    text: str,
    attributes: tuple[str, ...],
    limit: float,
    options: Any,
    weight: float,
) -> Goal:
    return Goal(
        product.asin,
        product.category,
        product.query,
        product.title,
        product.product_category,
        text + _clause(limit),
        attributes,
        limit,
        options,
        weight,
    )


def draw_index(cumulative: Sequence[float], rng: random.Random) -> int:
    """A goal's index by weight, with the original's fault: index 0 is never drawn, the last has two weights."""
    position = rng.uniform(0, cumulative[-1])
    return min(bisect_right(cumulative, position), len(cumulative) - 2)
