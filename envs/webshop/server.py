"""The shop in the browser: Flask pages over the same engine as the text world, served by waitress (extra `web`).

Every customer has a cookie with a key that cannot be guessed, and sees only his or her own pages. All text is
escaped, the only script is the shop's own, and the server listens on this machine alone unless told otherwise.
"""

from __future__ import annotations

import importlib
import ipaddress
import logging
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from .html import TEMPLATES, page_html, render, score_html
from .shop import Shop, Turn, open_shop
from .visits import Stop, Visits

_log = logging.getLogger(__name__)

COOKIE = "webshop_customer"
QUERY_LENGTH = 500

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


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigurationError(f"the shop's web server needs {name}: pip install 'arboretum[web]'.") from None


def create_app(shop: Shop, visits: Visits | None = None) -> Any:
    """The Flask application of a shop.

    Routes: `/` (a customer's latest page; strangers become customers, `?goal=n` picks the goal), `/new` (POST: the
    next customer), `/visit/<page>` (GET shows, POST clicks or searches), `/visit/<page>/item/<asin>`,
    `/visit/<page>/option` (POST), `/shop.css`, `/shop.js`, `/health`.
    """
    flask = _library("flask")
    app = flask.Flask("arboretum.webshop", static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = 64 * 1024
    visits = visits or Visits(shop)
    rng = random.SystemRandom()

    def here() -> tuple[str, Stop | None]:
        key = flask.request.cookies.get(COOKIE, "")
        return key, visits.stop(key, flask.request.view_args["number"])

    def gone() -> Any:
        return flask.redirect("/", 303)

    def follow(key: str, stop: Stop, turn: Turn) -> Any:
        """To the page an action led to; to the same page where it led nowhere."""
        if turn.session is stop.session:
            return flask.redirect(f"/visit/{flask.request.view_args['number']}", 303)
        return flask.redirect(f"/visit/{visits.add(key, Stop(turn.session, turn.purchase))}", 303)

    def message(title: str, text: str, status: int) -> Any:
        return render("message.html", title=title, text=text), status

    @app.after_request  # type: ignore[untyped-decorator]
    def secure(response: Any) -> Any:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @app.errorhandler(404)  # type: ignore[untyped-decorator]
    def missing(error: Any) -> Any:
        return message("No such page", "This address leads nowhere in the shop.", 404)

    @app.errorhandler(405)  # type: ignore[untyped-decorator]
    def wrong_method(error: Any) -> Any:
        return message("Not that way", "This address takes another kind of request.", 405)

    @app.get("/health")  # type: ignore[untyped-decorator]
    def health() -> Any:
        return {"status": "ok", "products": len(shop.catalogue), "goals": len(shop.goals)}

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
    def door() -> Any:
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
        _, stop = here()
        if stop is None:
            return gone()
        page = shop.page(stop.session)
        if stop.purchase is not None:
            assert stop.session.product is not None
            price = float(shop.prices[stop.session.product])
            return score_html(page, stop.purchase.parts, shop.tagger.name, price)
        return page_html(page, here=f"/visit/{number}", message=flask.request.args.get("message", "")[:200])

    @app.post("/visit/<int:number>")  # type: ignore[untyped-decorator]
    def act(number: int) -> Any:
        key, stop = here()
        if stop is None:
            return gone()
        query = flask.request.form.get("search_query")
        if query is None:
            name = flask.request.form.get("action", "").lower()
            return follow(key, stop, shop.click(stop.session, name, rng))
        words = " ".join(query[:QUERY_LENGTH].split())
        if not words:
            return flask.redirect(f"/visit/{number}", 303)
        try:
            return follow(key, stop, shop.search(stop.session, words, rng))
        except (IndexError, TypeError, ValueError):  # `<c>` without a category, and its like
            hint = "This search cannot be answered; try other words."
            return flask.redirect(flask.url_for("show", number=number, message=hint), 303)

    @app.get("/visit/<int:number>/item/<asin>")  # type: ignore[untyped-decorator]
    def item(number: int, asin: str) -> Any:
        key, stop = here()
        if stop is None:
            return gone()
        return follow(key, stop, shop.click(stop.session, asin.lower(), rng))

    @app.post("/visit/<int:number>/option")  # type: ignore[untyped-decorator]
    def option(number: int) -> Any:
        key, stop = here()
        if stop is None:
            return gone()
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
    """Serve the shop until interrupted.

    Args:
        host: where to listen; the default, loopback, is reachable from this machine only.
        port: TCP port; 0 takes a free one.
        threads: requests answered at once.
        ready: called with the shop's address once it can be visited.
        data, num_products, human_goals, show_attrs, load_seed, tagger, search: see `shop.open_shop`.

    Raises:
        ConfigurationError: an option that cannot work, or a port that is taken.
    """
    waitress = _library("waitress")
    if not 0 <= port < 65536:
        raise ConfigurationError(f"port must lie between 0 and 65535, not {port}.")
    shop = open_shop(
        data,
        num_products,
        human_goals=human_goals,
        show_attrs=show_attrs,
        load_seed=load_seed,
        tagger=tagger,
        search=search,
    )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port} ({error.strerror or error}); choose another one."
        ) from error
    # Its queue has something to say about every request that waits for a thread.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = waitress.create_server(create_app(shop), sockets=[listening], threads=threads, ident=None)
    if not _is_loopback(host):
        _log.warning("The shop on %s can be visited from other machines.", host)
    if ready:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listening.getsockname()[1]}/")
    try:
        server.run()
    finally:
        server.close()
        listening.close()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
