"""The viewer's web application: its pages, and the headers of every response.

All texts are escaped by Jinja, and symbols stand for control characters that are shown. Scripts and style sheets
are the viewer's own files; the Content-Security-Policy allows nothing else. Requests other than GET need the token
of the process, which no other site can read.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol
from urllib.parse import quote

from jinja2 import BaseLoader, Environment, PackageLoader, TemplateNotFound
from markupsafe import Markup, escape

from ...envs.checks import check_port
from ...envs.display import visible
from ...envs.errors import ConfigurationError, DataError
from ...envs.extras import optional_module
from ..report import make_templates
from .library import Library
from .replay import Bench
from .sessions import AgentMaker, Sessions

_PURPOSE = "the viewer"

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self';"
    " frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}"
)
"""Content-Security-Policy of the pages."""

_HEADERS = {
    "Content-Security-Policy": POLICY.format(ancestors="'none'"),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Listing(NamedTuple):
    """Line of the first page for a run of another kind than evaluations.

    Attributes:
        name: Name of the run.
        address: Address of its page.
        title: Title, such as recipe and environment.
        state: State in a few words, such as "120 of 200 updates".
        score: Success rate from 0 to 1; None if it has none.
    """

    name: str
    address: str
    title: str
    state: str
    score: float | None = None


class Extension(Protocol):
    """Pages for runs of another kind than evaluations, from a room above this one."""

    def loaders(self) -> Sequence[BaseLoader]:
        """Return the loaders of its templates."""
        ...

    def register(self, app: Any, site: Site) -> None:
        """Add its routes to the Flask application."""
        ...

    def listings(self, library: Library) -> list[Listing]:
        """Return the runs that it shows, the latest first."""
        ...


class Site:
    """Common parts of all pages.

    Args:
        library: Runs.
        agents: Makers of agents that may continue an episode, by name.
        extensions: Pages of further kinds of runs.

    Attributes:
        bench: Environments for replays.
        sessions: Episodes that are played in the browser.
        token: Secret of this process, which requests that change something must have.
    """

    def __init__(
        self, library: Library, agents: dict[str, AgentMaker], extensions: Sequence[Extension] = ()
    ) -> None:
        self.library = library
        self.extensions = extensions
        self.bench = Bench()
        self.sessions = Sessions(agents)
        self.token = secrets.token_urlsafe(32)
        loaders = [loader for extension in extensions for loader in extension.loaders()]
        shared = make_templates(*loaders, PackageLoader(__package__, "templates"))
        self._templates: Environment = shared.overlay(finalize=_visible)
        self._templates.filters |= {
            "address": lambda text: quote(str(text), safe="/"),
            "exact": exact,
            "signed": signed,
        }
        self._templates.globals["token"] = self.token

    def render(self, template: str, **values: Any) -> str:
        """Return a rendered template."""
        return self._templates.get_template(template).render(**values)

    def source(self, name: str) -> str:
        """Return the text of a template, unrendered."""
        loader = self._templates.loader
        assert loader is not None
        return loader.get_source(self._templates, name)[0]

    def message(self, title: str, text: str, status: int) -> Any:
        """Return the response of a page with a message."""
        return self.render("message.html", title=title, text=text), status


def _visible(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def exact(text: str) -> Markup:
    """Return a text for a form's field whose value comes back: escaped, but with its control characters."""
    return escape(text.encode("utf-8", "replace").decode())


def signed(value: float) -> str:
    """Format a number with its sign and at most four decimals."""
    text = f"{value:+.4f}".rstrip("0").rstrip(".")
    return text.replace("-", "\N{MINUS SIGN}")


def absent() -> NoReturn:
    """Answer the request in progress with 404."""
    optional_module("flask", "web", _PURPOSE).abort(404)
    raise AssertionError("unreachable: abort raises")


def create_app(site: Site) -> Any:
    """Return the Flask application.

    Args:
        site: What the pages share.

    Raises:
        ConfigurationError: Flask is not installed.
    """
    flask = optional_module("flask", "web", _PURPOSE)
    from . import episode_pages, play_pages, run_pages

    app = flask.Flask("arboretum.viewer", static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = 256 * 1024

    @app.after_request  # type: ignore[untyped-decorator]
    def add_headers(response: Any) -> Any:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @app.before_request  # type: ignore[untyped-decorator]
    def check_token() -> Any:
        request = flask.request
        if request.method in ("GET", "HEAD"):
            return None
        given = request.form.get("token", "")
        if secrets.compare_digest(given.encode("utf-8", "replace"), site.token.encode()):
            return None
        return site.message("Not accepted", "This page is of an earlier start of the viewer; load it again.", 403)

    @app.errorhandler(404)  # type: ignore[untyped-decorator]
    def not_found(error: Any) -> Any:
        return site.message("No such page", "There is no run, episode or session at this address.", 404)

    @app.errorhandler(405)  # type: ignore[untyped-decorator]
    def method_not_allowed(error: Any) -> Any:
        return site.message("Not that way", "This address takes another kind of request.", 405)

    @app.errorhandler(413)  # type: ignore[untyped-decorator]
    def too_large(error: Any) -> Any:
        return site.message("Too long", "This text is too long.", 413)

    @app.errorhandler(DataError)  # type: ignore[untyped-decorator]
    def damaged(error: DataError) -> Any:
        return site.message("Cannot be read", str(error), 500)

    @app.errorhandler(ConfigurationError)  # type: ignore[untyped-decorator]
    def refused(error: ConfigurationError) -> Any:
        return site.message("Not possible", str(error), 400)

    @app.errorhandler(500)  # type: ignore[untyped-decorator]
    def failed(error: Any) -> Any:
        return site.message("Failed", "The viewer failed to make this page; the terminal shows why.", 500)

    assets: dict[str, tuple[bytes, str]] = {}

    @app.get("/static/<name>")  # type: ignore[untyped-decorator]
    def asset(name: str) -> Any:
        suffix = Path(name).suffix
        if suffix not in _TYPES or "/" in name or "\\" in name:
            absent()
        if name not in assets:
            try:
                assets[name] = site.source(name).encode(), _TYPES[suffix]
            except TemplateNotFound:
                absent()
        body, kind = assets[name]
        return app.response_class(body, mimetype=kind)

    for pages in (run_pages, episode_pages, play_pages):
        pages.register(app, site)
    for extension in site.extensions:
        extension.register(app, site)
    return app


def serve(
    site: Site, host: str, port: int, *, threads: int = 8, ready: Callable[[str], None] | None = None
) -> None:
    """Serve the viewer until Ctrl-C or SIGTERM; see `envs.web_server`.

    Args:
        site: What the pages share.
        host: Address to bind.
        port: TCP port; 0 takes a free one.
        threads: Number of requests served at once.
        ready: Called with the address once the server accepts connections.

    Raises:
        ConfigurationError: The port is taken or invalid, or a package is missing.
    """
    optional_module("waitress", "web", _PURPOSE)
    from ...envs.web_server import WebServer

    check_port("--port", port)
    server = WebServer(create_app(site), "The viewer", host, port, threads=threads)
    if ready:
        ready(f"{server.url}/")
    server.run()
