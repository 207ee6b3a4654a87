"""Goals of customers, in the order and with the price limits of the published benchmark.

The original draws prices and price limits from Python's global generator, unseeded, *before* it seeds and shuffles
the goals. Here both draws come from a separate generator, seeded with `load_seed`. The same seed gives the same
goals as the original gives if its global generator is seeded right before loading.
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
from .product_catalog import ProductCatalog

SHUFFLE_SEED = 233
"""Seed of the published order of goals."""

NO_LIMIT = 1_000_000.0
"""Price limit of a goal whose instruction names none."""

PRICE_LIMITS = tuple(10.0 * step for step in range(1, 100))
"""Possible price limits in dollars."""


class Goal(NamedTuple):
    """Goal of a customer, which defines a task.

    Attributes:
        asin: Amazon number of the goal's product.
        category: Top-level category of the product.
        query: Search under which the product was collected.
        name: Title of the product.
        product_category: Path of the product in the taxonomy.
        instruction_text: Instruction as displayed, with its price clause.
        attributes: Wanted attributes.
        price_upper: Highest acceptable price in dollars; `NO_LIMIT` if the instruction names none.
        goal_options: Wanted option values: `{name: value}` for synthetic goals, a tuple of values for human ones.
        weight: Relative probability of being drawn.
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
        """Instruction without its price clause, suitable as a search."""
        return self.instruction_text.partition(", and price lower than ")[0]


def draw_prices(catalog: ProductCatalog, rng: random.Random) -> NDArray[np.float64]:
    """Return the price of every product: its single price, or a uniform draw from its price range."""
    prices = catalog.low.copy()
    for number in np.flatnonzero(~np.isnan(catalog.high)).tolist():
        prices[number] = rng.uniform(float(catalog.low[number]), float(catalog.high[number]))
    return prices


def _draw_limit(price: float, rng: random.Random) -> float:
    """Draw two of the next four price limits above a price and return the higher one."""
    above = PRICE_LIMITS[bisect_right(PRICE_LIMITS, price) :][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def _price_clause(limit: float) -> str:
    return "" if limit == NO_LIMIT else f", and price lower than {limit:.2f} dollars"


def _combination(options: Mapping[str, Sequence[str]], place: int) -> dict[str, str]:
    """Return element `place` of the Cartesian product of all options, by sorted name, the last name fastest."""
    chosen: dict[str, str] = {}
    for name in sorted(options, reverse=True):
        place, digit = divmod(place, len(options[name]))
        chosen[name] = options[name][digit]
    return dict(sorted(chosen.items()))


class Goals(Sequence[Goal]):
    """Sequence of all goals of a shop in benchmark order, created on access so that a million take little memory.

    Args:
        catalog: Products of the shop.
        prices: Price of every product; see `draw_prices`.
        rng: Draws the price limits; must be the generator that drew `prices`.
        human: Use the crowd-sourced instructions instead of the synthetic ones.
        filter_goals: Function `(index, goal) -> bool` that selects goals; None keeps all.
        limit_goals: Number of goals to draw by weight after filtering; None keeps all.

    Raises:
        ConfigurationError: No goal is left, or fewer than `limit_goals` can be drawn.
    """

    def __init__(
        self,
        catalog: ProductCatalog,
        prices: NDArray[np.float64],
        rng: random.Random,
        *,
        human: bool = False,
        filter_goals: Callable[[int, Goal], bool] | None = None,
        limit_goals: int | None = None,
    ) -> None:
        self._catalog = catalog
        self._human = human
        products = catalog.human if human else catalog.synthetic
        self._limits = np.array([_draw_limit(price, rng) for price in prices[products].tolist()], dtype=np.float64)
        sizes = np.ones(len(products), dtype=np.int64) if human else catalog.combinations
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
            last = len(self._order) - 1
            weighed = (i for i, (low, high) in enumerate(pairwise(cumulative)) if low < high)
            drawable = len({min(i + 1, last) for i in weighed})  # See `draw_index`.
            if limit_goals > drawable:
                raise ConfigurationError(
                    f"limit_goals={limit_goals} exceeds the {drawable} goals that can be drawn."
                )
            drawn: dict[int, None] = {}
            while len(drawn) < limit_goals:
                drawn[draw_index(cumulative, shuffler)] = None
            self._order = self._order[list(drawn)]
        if not len(self._order):
            kind = "human instructions (items_human_ins*.json)" if human else "synthetic instructions"
            raise ConfigurationError(f"there is no goal: no product has {kind} that pass the filter.")

    def _attribute_weights(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return for every product the mean over its attributes of 1 / (number of goals with that attribute)."""
        ids, ends = self._catalog.attribute_ids, self._catalog.attribute_ends
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
        """Cumulative weights of the goals, starting with 0; one more than there are goals."""
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
            product = self._catalog.product(int(self._catalog.human[entry]))
            instruction = product.human[int(self._catalog.human_place[entry])]
            return _goal(product, instruction.text, instruction.attributes, limit, instruction.options, 1.0)
        product = self._catalog.product(int(self._catalog.synthetic[entry]))
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
        text + _price_clause(limit),
        attributes,
        limit,
        options,
        weight,
    )


def draw_index(cumulative: Sequence[float], rng: random.Random) -> int:
    """Draw a goal's index by weight, with the original's off-by-one error.

    Every index is drawn with the weight of the index before it: index 0 is never drawn, and the last index also
    has its own weight.
    """
    position = rng.uniform(0, cumulative[-1])
    return min(bisect_right(cumulative, position), len(cumulative) - 2)
