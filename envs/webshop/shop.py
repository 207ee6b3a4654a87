"""The shop: catalog, search, goals, and the original's page transitions as a pure function of a session.

`Shop.act` gives the result of every action as the original does, including edge cases and exceptions. The
environment `env.WebShop` and the web site `server` are built on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..data import data_file_or_folder
from ..errors import ConfigurationError
from ..retrieval.progress import progress_bar
from .goals import Goal, Goals, draw_prices
from .pages import PRODUCTS_PER_PAGE, SUB_PAGES, Clickable, Page
from .product import Product
from .product_catalog import ProductCatalog
from .reward import Purchase, score_purchase
from .search import make_engine
from .session import Session, has_field_types
from .sources import builtin_catalog, find_sources, open_catalog
from .tagger import make_tagger

MAX_RESULTS = 50
"""Maximum number of products that a search returns."""

BAR_DELAY = 2.0
"""Seconds before a progress bar appears; most catalogs open sooner."""


class Unanswerable(Exception):
    """Search that the shop cannot answer, because the original fails here.

    Args:
        original: Exception of the original.
    """

    def __init__(self, original: Exception) -> None:
        super().__init__(str(original))
        self.original = original


class _NoDraws(random.Random):
    """Generator that refuses to draw products."""

    def sample(self, *args: Any, **options: Any) -> Any:
        raise Unanswerable(ValueError("the products of a search for <r> are drawn anew on every page"))


UNUSED_RNG = _NoDraws()
"""Generator for actions that draw nothing; a search for `<r>`, which draws, is `Unanswerable` with it."""

_SUB_PAGE = {name.lower(): name for name in SUB_PAGES}
_PAGE_NAMES = ("search_results", "item_page", "item_sub_page", "done")


class Turn(NamedTuple):
    """Result of an action.

    Attributes:
        session: Session after the action.
        valid: True for a search, and for a click on something on the page.
        purchase: Reward and its parts if the action was a purchase, else None.
    """

    session: Session
    valid: bool
    purchase: Purchase | None = None


def parse_action(action: str) -> tuple[str, str | None]:
    """Parse `name[argument]` as the original does: greedily, ignoring text after the last bracket.

    Returns:
        The name and the argument in lower case; or the whole text and None if the text has another form.
    """
    # Equal to a match of (.+)\[(.+)\], but in linear time; no part of it contains a line break.
    line = action.partition("\n")[0]
    closing = line.rfind("]")
    opening = line.rfind("[", 1, closing - 1) if closing >= 3 else -1
    return (action, None) if opening < 0 else (line[:opening], line[opening + 1 : closing].lower())


class Shop:
    """Catalog with goals, prices and a search engine.

    A shop holds no session, so any number of customers can share it.

    Args:
        catalog: Products.
        human_goals: Use crowd-sourced instructions instead of synthetic ones.
        show_attrs: Add an "Attributes" button to item pages.
        load_seed: Seed of the prices drawn from price ranges and of the price limits.
        tagger: Noun tagger of the reward; see `tagger.make_tagger`.
        search: Name of the search engine; see `search.make_engine`.
        filter_goals: Function that selects goals; see `goals.Goals`.
        limit_goals: Number of goals to draw; see `goals.Goals`.

    Raises:
        ConfigurationError: An option has an unknown value or needs a missing package, or there are no goals.
    """

    def __init__(
        self,
        catalog: ProductCatalog,
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
        self.catalog = catalog
        self.show_attrs = show_attrs
        self.tagger = make_tagger(tagger)
        self.prices = draw_prices(catalog, rng)
        self.goals = Goals(
            catalog, self.prices, rng, human=human_goals, filter_goals=filter_goals, limit_goals=limit_goals
        )
        self._engine = make_engine(search, catalog)
        self.goal = lru_cache(maxsize=1024)(self.goals.__getitem__)
        """Return the goal with an index, from a cache of recent goals."""
        self._cached_search = lru_cache(maxsize=1024)(self._search)

    # ------------------------------------------------------------------ pages

    def page(self, session: Session) -> Page:
        """Return the page that is open in a session."""
        product = self.catalog.product
        return Page(
            session,
            self.goal(session.goal),
            None if session.product is None else product(session.product),
            [product(number) for number in session.results] if session.kind == "results" else (),
            self.show_attrs,
        )

    def product(self, session: Session) -> Product:
        """Return the product that is open in a session."""
        assert session.product is not None
        return self.catalog.product(session.product)

    def has(self, session: object, task: str) -> bool:
        """Return True if a value is a session of the goal with index `task` in this shop."""
        if type(session) is not Session or not has_field_types(session) or session[:2] != (task, int(task)):
            return False
        kind, product = session.kind, session.product
        numbers = (*session.results, *session.visited, *(() if product is None else (product,)))
        if numbers and (min(numbers) < 0 or max(numbers) >= len(self.catalog)):
            return False
        offered = self.product(session).options if session.options and product is not None else {}
        return (
            (product is not None) == (kind in ("item", "sub", "done"))
            and (session.keywords is None) == (session.page is None) == (kind == "start")
            and (kind == "results" or not session.results)
            and (session.sub in SUB_PAGES if kind == "sub" else not session.sub)
            and (0.0 <= session.reward <= 1.0 if kind == "done" else session.reward == 0.0)
            and all(value in offered.get(name, ()) for name, value in session.options)
        )

    # ------------------------------------------------------------------ actions

    def act(self, session: Session, action: str, rng: random.Random) -> Turn:
        """Return the result of an action.

        Args:
            session: Session before the action.
            action: `search[words]` or `click[name]`; any other text is an invalid action without effect.
            rng: Draws the products of a search for `<r>`, the only random transition.

        Raises:
            Unanswerable: A search for `<c>` without a category, for `<a>`, or for `<r>` in a shop of fewer than 50
                products.
        """
        name, argument = parse_action(action)
        if name == "search" and argument:
            return self.search(session, argument, rng)
        if name == "click" and argument is not None:
            return self.click(session, argument, rng)
        return Turn(session, False)

    def search(self, session: Session, words: str, rng: random.Random) -> Turn:
        """Return the result of a search, which every page allows."""
        return Turn(self._results(session, tuple(words.lower().split(" ")), 1, rng), True)

    def click(self, session: Session, name: str, rng: random.Random) -> Turn:
        """Return the result of a click on a name in lower case."""
        clickable = self.page(session).clickables().get(name) if name != "search" else None
        if clickable is None:
            return Turn(session, False)
        return self._click(session, name, clickable, rng)

    def choose(self, session: Session, option: str, value: str) -> Turn:
        """Choose a value of a named option; unlike a click, this is unambiguous if two options share a value."""
        if session.kind != "item" or value not in self.product(session).options.get(option, ()):
            return Turn(session, False)
        options = session.choose_option(option, value)
        return Turn(session._replace(options=options, actions=session.count_action("options")), True)

    def _click(self, session: Session, name: str, clickable: Clickable, rng: random.Random) -> Turn:
        if name == "buy now":
            return self._buy(session)
        if name == "back to search":
            return Turn(Session(session.id, session.goal), True)
        words, page = session.keywords or (), session.page or 0
        if name in ("next >", "< prev"):
            # The original identifies the page by the first name in its address, which also contains the search.
            asin = "" if session.product is None else self.product(session).asin
            url = session.url(asin)
            kind = next((kind for kind in _PAGE_NAMES if kind in url), "")
            if kind == "search_results":
                return Turn(self._results(session, words, page + (1 if name == "next >" else -1), rng), True)
            if name == "< prev" and kind == "item_page":
                return Turn(self._results(session, words, page, rng), True)
        elif name in _SUB_PAGE:
            sub = _SUB_PAGE[name]
            return Turn(session._replace(kind="sub", sub=sub, actions=session.count_action(sub)), True)
        if clickable.kind == "link":
            session = session._replace(
                product=clickable.product,
                visited=session.visited | {clickable.product},
                actions=session.count_action("asin"),
                results=(),
                total=0,
            )
        elif clickable.kind == "option":
            session = session._replace(
                options=session.choose_option(clickable.option, name), actions=session.count_action("options")
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
        bought = session._replace(
            kind="done", sub="", reward=purchase.reward, actions=session.count_action("purchase")
        )
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
            actions=session.count_action("search"),
        )

    # ------------------------------------------------------------------ searching

    def find(self, words: tuple[str, ...], rng: random.Random) -> Sequence[int]:
        """Return the numbers of the products that match a search, best first.

        The words `<r>` draw 50 random products, `<c> name` lists a category, and `<q> words` lists the products
        that were collected under a query.

        Raises:
            Unanswerable: See `act`.
        """
        if words[0] == "<r>":
            try:
                return rng.sample(range(len(self.catalog)), k=MAX_RESULTS)
            except ValueError as error:
                raise Unanswerable(error) from None
        if words[0] == "<c>":
            try:
                return self.catalog.in_category(words[1].strip())
            except IndexError as error:
                raise Unanswerable(error) from None
        if words[0] == "<q>":
            return self.catalog.with_query(" ".join(words[1:]).strip())
        if words[0] == "<a>":
            raise Unanswerable(TypeError("the text environment has no table of attributes to search for <a>"))
        return self._cached_search(" ".join(words))

    def clear_search_cache(self) -> None:
        """Clear the cache of search results, for benchmarks."""
        self._cached_search.cache_clear()

    def _search(self, query: str) -> tuple[int, ...]:
        return tuple(self._engine(query, MAX_RESULTS))


@lru_cache(maxsize=16)
def _shared_catalog(path: Path | None, num_products: int | None) -> ProductCatalog:
    with progress_bar(delay=BAR_DELAY, transient=True) as progress:
        if path is None:
            return builtin_catalog(num_products, progress)
        return open_catalog(find_sources(path), num_products, progress)


@lru_cache(maxsize=16)
def _shared_shop(catalog: ProductCatalog, options: tuple[tuple[str, Any], ...]) -> Shop:
    return Shop(catalog, **dict(options))


def open_shop(
    data: str | Path | None = None, num_products: int | None = None, *, generated: bool = False, **options: Any
) -> Shop:
    """Open a shop on real data if there is any, else on the generated catalog.

    Equal calls in one process return the same object, so any number of environments share one catalog. The first
    call for a large catalog takes minutes, with a progress bar on a terminal; later calls take milliseconds.

    Args:
        data: Folder of WebShop's files, its parent, or the product file; None uses `ARBORETUM_DATA`.
        num_products: Number of products to load, in file order; None for all.
        generated: Take the generated catalog even if there are files.
        options: Options of `Shop`.

    Raises:
        ConfigurationError: An option cannot work.
        DataError: A data file is missing or malformed.
    """
    if num_products is not None and (type(num_products) is not int or num_products < 1):
        raise ConfigurationError(f"num_products must be a positive integer or None, not {num_products!r}.")
    if generated and data is not None:
        raise ConfigurationError("generated=True and data= exclude each other; give only one of them.")
    path = None if generated else data_file_or_folder("webshop", data)
    return _shared_shop(_shared_catalog(path, num_products), tuple(sorted(options.items())))
