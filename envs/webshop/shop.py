"""The shop: catalogue, search, goals, and the original's page state machine as a pure function of a session.

`Shop.act` answers every action as the original does, odd corners and exceptions included; `world.WebShop` puts
Gymnasium's manners around it, and `server` a browser's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..data import data_folder
from ..errors import ConfigurationError
from .goals import Goal, Goals, draw_prices
from .pages import PRODUCTS_PER_PAGE, SUB_PAGES, Clickable, Page
from .product import Product
from .product_catalog import Catalogue
from .progress import progress_bar
from .reward import Purchase, score_purchase
from .search import make_engine
from .session import Session
from .sources import builtin_catalogue, find_sources, open_catalogue
from .tagger import make_tagger

RESULTS = 50
"""How many products a search returns at most."""

_ACTION = re.compile(r"(.+)\[(.+)\]")
_SUB_PAGE = {name.lower(): name for name in SUB_PAGES}
_PAGE_NAMES = ("search_results", "item_page", "item_sub_page", "done")


class Turn(NamedTuple):
    """What an action led to.

    Attributes:
        session: afterwards.
        valid: whether the action was one of those that the page offers (or a search, which always works).
        purchase: the reward and its parts, where the action was a purchase.
    """

    session: Session
    valid: bool
    purchase: Purchase | None = None


def parse_action(action: str) -> tuple[str, str | None]:
    """`name[argument]` as the original reads it: greedy on both sides, what follows the last bracket ignored.

    Returns:
        The name, and the argument in lower case; the whole text and None where it has not that form.
    """
    match = _ACTION.match(action)
    return (match[1], match[2].lower()) if match else (action, None)


class Shop:
    """A catalogue with goals, prices and a search engine. Holds no session; any number of customers share it.

    Args:
        catalogue: the products.
        human_goals: crowd-sourced instructions instead of synthetic ones.
        show_attrs: give item pages an "Attributes" button.
        load_seed: seeds the draws of prices within ranges and of price limits.
        tagger: see `tagger.make_tagger`.
        search: see `search.make_engine`.
        filter_goals, limit_goals: see `goals.Goals`.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        human_goals: bool = False,
        show_attrs: bool = False,
        load_seed: int = 0,
        tagger: str | Callable[[str], list[str]] = "auto",
        search: str = "bm25",
        filter_goals: Callable[[int, Goal], bool] | None = None,
        limit_goals: int | None = None,
    ) -> None:
        rng = random.Random(load_seed)
        self.catalogue = catalogue
        self.show_attrs = show_attrs
        self.tagger = make_tagger(tagger)
        self.prices = draw_prices(catalogue, rng)
        self.goals = Goals(
            catalogue, self.prices, rng, human=human_goals, filter_goals=filter_goals, limit_goals=limit_goals
        )
        self._engine = make_engine(search, catalogue)
        self.goal = lru_cache(maxsize=1024)(self.goals.__getitem__)
        """The goal of an index."""
        self._find = lru_cache(maxsize=1024)(self._find_now)

    # ------------------------------------------------------------------ pages

    def page(self, session: Session) -> Page:
        """The open page of a session."""
        product = self.catalogue.product
        return Page(
            session,
            self.goal(session.goal),
            None if session.product is None else product(session.product),
            [product(number) for number in session.results] if session.kind == "results" else (),
            self.show_attrs,
        )

    def product(self, session: Session) -> Product:
        """The open product."""
        assert session.product is not None
        return self.catalogue.product(session.product)

    # ------------------------------------------------------------------ actions

    def act(self, session: Session, action: str, rng: random.Random) -> Turn:
        """The session after an action.

        Args:
            rng: draws the products of a search for `<r>`; nothing else is left to chance.

        Raises:
            IndexError, TypeError, ValueError: where the original raises them: a search for `<c>` without a
                category, for `<a>`, and for `<r>` in a shop of fewer than 50 products.
        """
        name, argument = parse_action(action)
        if name == "search" and argument:
            return self.search(session, argument, rng)
        if name == "click" and argument is not None:
            return self.click(session, argument, rng)
        return Turn(session, False)

    def search(self, session: Session, words: str, rng: random.Random) -> Turn:
        """A search, from whatever page."""
        return Turn(self._results(session, tuple(words.lower().split(" ")), 1, rng), True)

    def click(self, session: Session, name: str, rng: random.Random) -> Turn:
        """A click on something by its name in lower case."""
        clickable = self.page(session).clickables().get(name) if name != "search" else None
        if clickable is None:
            return Turn(session, False)
        return self._click(session, name, clickable, rng)

    def choose(self, session: Session, option: str, value: str) -> Turn:
        """A value of an option on the open item page: what a click means, where two options share a value."""
        if session.kind != "item" or value not in self.product(session).options.get(option, ()):
            return Turn(session, False)
        options = session.chosen(option, value)
        return Turn(session._replace(options=options, actions=session.counted("options")), True)

    def _click(self, session: Session, name: str, clickable: Clickable, rng: random.Random) -> Turn:
        if name == "buy now":
            return self._buy(session)
        if name == "back to search":
            return Turn(Session(session.id, session.goal), True)
        words, page = session.keywords or (), session.page or 0
        if name in ("next >", "< prev"):
            # The original tells pages apart by words in the address, which holds the customer's own words too.
            asin = "" if session.product is None else self.product(session).asin
            url = session.url(asin)
            kind = next((kind for kind in _PAGE_NAMES if kind in url), "")
            if kind == "search_results":
                return Turn(self._results(session, words, page + (1 if name == "next >" else -1), rng), True)
            if name == "< prev" and kind == "item_page":
                return Turn(self._results(session, words, page, rng), True)
        elif name in _SUB_PAGE:
            sub = _SUB_PAGE[name]
            return Turn(session._replace(kind="sub", sub=sub, actions=session.counted(sub)), True)
        if clickable.kind == "link":
            session = session._replace(
                product=clickable.product,
                visited=session.visited | {clickable.product},
                actions=session.counted("asin"),
                results=(),
                total=0,
            )
        elif clickable.kind == "option":
            session = session._replace(
                options=session.chosen(clickable.option, name), actions=session.counted("options")
            )
        return Turn(session._replace(kind="item", sub=""), True)

    def _buy(self, session: Session) -> Turn:
        product = self.product(session)
        assert session.product is not None
        purchase = score_purchase(
            product,
            self.goal(session.goal),
            float(self.prices[session.product]),
            [value for _, value in session.options],
            self.tagger,
        )
        bought = session._replace(kind="done", sub="", reward=purchase.reward, actions=session.counted("purchase"))
        return Turn(bought, True, purchase)

    def _results(self, session: Session, words: tuple[str, ...], page: int, rng: random.Random) -> Session:
        found = self.find(words, rng)
        return session._replace(
            kind="results",
            keywords=words,
            page=page,
            product=None,
            options=(),
            sub="",
            # Page 0 is empty and page -1 counts from the end, as Python's slices do.
            results=tuple(found[(page - 1) * PRODUCTS_PER_PAGE : page * PRODUCTS_PER_PAGE]),
            total=len(found),
            actions=session.counted("search"),
        )

    # ------------------------------------------------------------------ searching

    def find(self, words: tuple[str, ...], rng: random.Random) -> Sequence[int]:
        """Numbers of the products for a search's words, best first.

        `<r>` draws 50 at random, `<c> name` lists a category, `<q> words` what was collected under a query.
        """
        if words[0] == "<r>":
            return rng.sample(range(len(self.catalogue)), k=RESULTS)
        if words[0] == "<c>":
            return self.catalogue.in_category(words[1].strip())
        if words[0] == "<q>":
            return self.catalogue.with_query(" ".join(words[1:]).strip())
        if words[0] == "<a>":
            raise TypeError("the text environment has no table of attributes to search for <a>")
        return self._find(" ".join(words))

    def forget(self) -> None:
        """Drop what earlier searches found: for measurements."""
        self._find.cache_clear()

    def _find_now(self, query: str) -> tuple[int, ...]:
        return tuple(self._engine(query, RESULTS))


@lru_cache(maxsize=16)
def _shared_catalogue(path: Path | None, num_products: int | None) -> Catalogue:
    with progress_bar("Reading products") as progress:
        if path is None:
            return builtin_catalogue(num_products, progress)
        return open_catalogue(find_sources(path), num_products, progress)


@lru_cache(maxsize=16)
def _shared_shop(catalogue: Catalogue, options: tuple[tuple[str, Any], ...]) -> Shop:
    return Shop(catalogue, **dict(options))


def open_shop(data: str | Path | None = None, num_products: int | None = None, **options: Any) -> Shop:
    """A shop over real data where there is any, else over the generated catalogue.

    Equal calls in one process return the same object, so any number of environments cost one catalogue. The first
    call for a large catalogue takes minutes, with a progress bar on a terminal; later ones take milliseconds.

    Args:
        data: the folder of WebShop's files, its parent, or the product file; None looks at `ARBORETUM_DATA`.
        num_products: only the first so many products; None for all.
        options: see `Shop`.

    Raises:
        ConfigurationError, DataError: an impossible option, or a data file missing or malformed.
    """
    if num_products is not None and (not isinstance(num_products, int) or num_products < 1):
        raise ConfigurationError(f"num_products must be a positive integer or None, not {num_products!r}.")
    path = Path(data).expanduser() if data is not None else None
    if path is None or not path.is_file():
        path = data_folder("webshop", data)
    return _shared_shop(_shared_catalogue(path, num_products), tuple(sorted(options.items())))
