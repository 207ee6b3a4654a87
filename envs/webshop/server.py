"""Web server of the shop: Flask pages on the same `Shop` as the text environment, on waitress (extra `web`).

Every customer has a cookie with a random key and can open only his or her own pages. All text is escaped, the only
script is the shop's own, and the server is reachable from this machine only unless `host` is changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checks import check_port
from ..extras import optional_module
from .html import TEMPLATES, page_html, render, score_html
from .shop import Shop, Turn, Unanswerable, open_shop
from .visits import Stop, Visits

COOKIE = "webshop_customer"
QUERY_LENGTH = 500
"""Maximum number of characters of a search; the rest is cut off."""

_PURPOSE = "the shop's web server"

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' https: data:; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_FILES = {"shop.css": "text/css", "shop.js": "text/javascript"}


def create_app(shop: Shop, visits: Visits | None = None) -> Any:
    """Return the Flask application of a shop.

    Routes:
        `/`: Redirects to the customer's latest page, or starts a visit; `?goal=n` starts a visit with goal n.
        `/new` (POST): Starts a visit of a new customer.
        `/visit/<page>`: Shows a page (GET), or clicks or searches on it (POST).
        `/visit/<page>/item/<asin>`: Opens a product.
        `/visit/<page>/option` (POST): Chooses option values.
        `/shop.css`, `/shop.js`, `/health`: Style sheet, script and health report.

    Args:
        shop: Shop.
        visits: Store of visits; None creates one.

    Raises:
        ConfigurationError: Flask is not installed.
    """
    flask = optional_module("flask", "web", _PURPOSE)
    app = flask.Flask("arboretum.webshop", static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = 64 * 1024
    visits = visits or Visits(shop)
    rng = random.SystemRandom()

    def current_stop() -> tuple[str, Stop | None]:
        """Return the customer's key and the page that the request's address names."""
        key = flask.request.cookies.get(COOKIE, "")
        return key, visits.stop(key, flask.request.view_args["number"])

    def redirect_to_start() -> Any:
        return flask.redirect("/", 303)

    def follow(key: str, stop: Stop, turn: Turn) -> Any:
        """Redirect to the page after a turn, or back to the current page if the turn changed nothing."""
        if turn.session is stop.session:
            return flask.redirect(f"/visit/{flask.request.view_args['number']}", 303)
        added = visits.add(key, Stop(turn.session, turn.purchase))
        return redirect_to_start() if added is None else flask.redirect(f"/visit/{added}", 303)

    def message(title: str, text: str, status: int) -> Any:
        return render("message.html", title=title, text=text), status

    @app.after_request  # type: ignore[untyped-decorator]
    def add_headers(response: Any) -> Any:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @app.errorhandler(404)  # type: ignore[untyped-decorator]
    def not_found(error: Any) -> Any:
        return message("No such page", "This address leads nowhere in the shop.", 404)

    @app.errorhandler(405)  # type: ignore[untyped-decorator]
    def method_not_allowed(error: Any) -> Any:
        return message("Not that way", "This address takes another kind of request.", 405)

    @app.get("/health")  # type: ignore[untyped-decorator]
    def health() -> Any:
        return {"status": "ok", "products": len(shop.catalog), "goals": len(shop.goals)}

    @app.get("/<any('shop.css', 'shop.js'):name>")  # type: ignore[untyped-decorator]
    def asset(name: str) -> Any:
        body = (TEMPLATES / name).read_bytes()
        headers = {"Cache-Control": "public, max-age=3600"}
        return app.response_class(body, mimetype=_FILES[name], headers=headers)

    def enter(goal: int | None) -> Any:
        response = flask.redirect("/visit/0", 303)
        secure_only = flask.request.is_secure
        response.set_cookie(COOKIE, visits.enter(goal), httponly=True, samesite="Lax", secure=secure_only)
        return response

    @app.get("/")  # type: ignore[untyped-decorator]
    def home() -> Any:
        wanted = flask.request.args.get("goal")
        if wanted is not None:
            is_number = wanted.isascii() and wanted.isdecimal() and len(wanted) <= 12
            if not is_number or int(wanted) >= len(shop.goals):
                return message("No such goal", f"Goals are numbered 0 to {len(shop.goals) - 1}.", 404)
            return enter(int(wanted))
        latest = visits.latest(flask.request.cookies.get(COOKIE, ""))
        return enter(None) if latest is None else flask.redirect(f"/visit/{latest}", 303)

    @app.post("/new")  # type: ignore[untyped-decorator]
    def new() -> Any:
        return enter(None)

    @app.get("/visit/<int:number>")  # type: ignore[untyped-decorator]
    def show(number: int) -> Any:
        _, stop = current_stop()
        if stop is None:
            return redirect_to_start()
        page = shop.page(stop.session)
        if stop.purchase is not None:
            assert stop.session.product is not None
            price = float(shop.prices[stop.session.product])
            return score_html(page, stop.purchase.parts, shop.tagger.name, price)
        return page_html(page, here=f"/visit/{number}", message=flask.request.args.get("message", "")[:200])

    @app.post("/visit/<int:number>")  # type: ignore[untyped-decorator]
    def act(number: int) -> Any:
        key, stop = current_stop()
        if stop is None:
            return redirect_to_start()
        query = flask.request.form.get("search_query")
        if query is None:
            name = flask.request.form.get("action", "").lower()
            return follow(key, stop, shop.click(stop.session, name, rng))
        words = " ".join(query[:QUERY_LENGTH].split())
        if not words:
            return flask.redirect(f"/visit/{number}", 303)
        try:
            return follow(key, stop, shop.search(stop.session, words, rng))
        except Unanswerable:  # For example `<c>` without a category.
            hint = "This search cannot be answered; try other words."
            return flask.redirect(flask.url_for("show", number=number, message=hint), 303)

    @app.get("/visit/<int:number>/item/<asin>")  # type: ignore[untyped-decorator]
    def item(number: int, asin: str) -> Any:
        key, stop = current_stop()
        if stop is None:
            return redirect_to_start()
        name = asin.lower()
        target = shop.page(stop.session).clickables().get(name)
        is_product = target is not None and target.kind == "link"  # Browsers may follow links ahead of a click.
        return follow(key, stop, shop.click(stop.session, name, rng) if is_product else Turn(stop.session, False))

    @app.post("/visit/<int:number>/option")  # type: ignore[untyped-decorator]
    def option(number: int) -> Any:
        key, stop = current_stop()
        if stop is None:
            return redirect_to_start()
        turn = Turn(stop.session, False)
        for name, value in flask.request.form.items():
            turn = shop.choose(turn.session, name, value)
        return follow(key, stop, turn)

    return app


def serve(
    host: str = "127.0.0.1",
    port: int = 3000,
    *,
    data: str | Path | None = None,
    num_products: int | None = None,
    human_goals: bool = False,
    show_attrs: bool = False,
    load_seed: int = 0,
    tagger: str = "auto",
    search: str = "bm25",
    threads: int = 8,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the shop until Ctrl-C or SIGTERM; see `envs.web_server`.

    Args:
        host: Address to bind; the default, loopback, is reachable from this machine only.
        port: TCP port; 0 takes a free one.
        data: Folder of WebShop's files, its parent, or the product file; see `shop.open_shop`.
        num_products: Number of products to load; None for all.
        human_goals: Use crowd-sourced instructions instead of synthetic ones.
        show_attrs: Add an "Attributes" button to item pages.
        load_seed: Seed of prices and price limits.
        tagger: Name of the noun tagger; see `tagger.make_tagger`.
        search: Name of the search engine; see `search.make_engine`.
        threads: Number of requests served at once.
        ready: Called with the shop's address once the server accepts connections.

    Raises:
        ConfigurationError: An option cannot work, the port is taken, or a package is missing.
    """
    optional_module("waitress", "web", _PURPOSE)
    from ..web_server import WebServer

    check_port("port", port)
    shop = open_shop(
        data,
        num_products,
        human_goals=human_goals,
        show_attrs=show_attrs,
        load_seed=load_seed,
        tagger=tagger,
        search=search,
    )
    server = WebServer(create_app(shop), "The shop", host, port, threads=threads)
    if ready:
        ready(f"{server.url}/")
    server.run()
