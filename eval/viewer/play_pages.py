"""Pages on which a person plays: from the start of a task, or on from a state of a stored episode."""

from __future__ import annotations

import secrets
from typing import Any

from ...envs.errors import ConfigurationError
from ...envs.extras import optional_module
from ...envs.pictures.png import encode_png
from ...envs.registry import all_envs
from ...envs.rendering import PICTURE_MODE
from ...envs.user_code import USER_ERRORS, describe_failure
from ..options import parse_options
from ..suite import Entry, Suite
from .app import Site, absent
from .episode_pages import EMBEDDED
from .run_pages import parse_number
from .scene import look_of
from .sessions import EXPERT, Scenario, Session, posted_action
from .what_if import what_if

MANY = 14
"""Number of admissible actions beyond which their list scrolls."""


def register(app: Any, site: Site) -> None:
    """Add the routes of play to the application."""
    flask = optional_module("flask", "web", "the viewer")

    def session_or_404(key: str) -> Session:
        found = site.sessions.get(key)
        if found is None:
            absent()
        return found

    @app.get("/play")  # type: ignore[untyped-decorator]
    def choose() -> Any:
        return site.render("play.html", envs=all_envs(), error="", given={})

    @app.post("/play")  # type: ignore[untyped-decorator]
    def start() -> Any:
        form = flask.request.form
        given = {name: form.get(name, "").strip()[:500] for name in ("env", "task", "seed", "split", "options")}
        try:
            session = site.sessions.start(*_read_start(given))
        except USER_ERRORS as error:
            is_ours = isinstance(error, ConfigurationError)
            text = str(error) if is_ours else f"{describe_failure('opening the task', error)}."
            return site.render("play.html", envs=all_envs(), error=text, given=given), 400
        return flask.redirect(flask.url_for("session", key=session.key), 303)

    @app.get("/play/<key>")  # type: ignore[untyped-decorator]
    def session(key: str) -> Any:
        found = session_or_404(key)
        with found.lock:
            found.env.restore(found.now.snapshot)
            actions = found.env.admissible_actions()
            return site.render(
                "session.html",
                session=found,
                now=found.now,
                frames=found.frames,
                look=look_of(found.env),
                actions=actions,
                many=actions is not None and len(actions) > MANY,
                steps=found.env.steps,
                max_steps=found.env.max_steps,
                instructions=found.env.instructions,
                agents=site.sessions.agents,
                expert=EXPERT,
            )

    @app.post("/play/<key>")  # type: ignore[untyped-decorator]
    def act(key: str) -> Any:
        found = session_or_404(key)
        form = flask.request.form
        with found.lock:
            match form.get("do", "act"):
                case "act":
                    found.act(posted_action(form))
                case "undo":
                    found.undo()
                case "play":
                    turns = 1 if form.get("turns") == "1" else None
                    site.sessions.play(found, form.get("actor", ""), turns)
        return flask.redirect(flask.url_for("session", key=key), 303)

    @app.post("/play/<key>/again")  # type: ignore[untyped-decorator]
    def again(key: str) -> Any:
        found = session_or_404(key)
        first = found.frames[0]
        new = site.sessions.resume(found.scenario, first.snapshot, first.observation, found.seed)
        return flask.redirect(flask.url_for("session", key=new.key), 303)

    @app.get("/play/<key>/whatif")  # type: ignore[untyped-decorator]
    def session_alternatives(key: str) -> Any:
        found = session_or_404(key)
        with found.lock:
            alternatives = what_if(found.env, found.now.snapshot)
        return site.render(
            "whatif.html",
            found=alternatives,
            taken=None,
            picture=None,
            target=flask.url_for("act", key=key),
            fields={"do": "act"},
            swaps=True,
        )

    @app.get("/play/<key>/<int:number>.png")  # type: ignore[untyped-decorator]
    def session_picture(key: str, number: int) -> Any:
        found = session_or_404(key)
        with found.lock:
            if number >= len(found.frames) or PICTURE_MODE not in found.env.metadata["render_modes"]:
                absent()
            found.env.restore(found.frames[number].snapshot)
            pixels = found.env.picture()
        if pixels is None:
            absent()
        return app.response_class(encode_png(pixels), mimetype="image/png", headers={"Cache-Control": "no-store"})

    @app.get("/play/<key>/<int:number>.html")  # type: ignore[untyped-decorator]
    def session_page(key: str, number: int) -> Any:
        found = session_or_404(key)
        with found.lock:
            if number >= len(found.frames):
                absent()
            found.env.restore(found.frames[number].snapshot)
            text = found.env.page_html("/scene")
        if text is None:
            absent()
        return app.response_class(text, headers={"Content-Security-Policy": EMBEDDED})


def _read_start(given: dict[str, str]) -> tuple[Scenario, str | None, int]:
    """Return scenario, task and seed of the form of the start page.

    Raises:
        ConfigurationError: The environment or an option is unknown, or the seed is no number.
    """
    known = [spec.id for spec in all_envs()]
    if given["env"] not in known:
        raise ConfigurationError(f"there is no environment {given['env'][:80]!r}; choose one of the list.")
    if given["seed"] and parse_number(given["seed"], -1) < 0:
        raise ConfigurationError(f"the seed must be a non-negative integer, not {given['seed'][:80]!r}.")
    kwargs = parse_options(given["options"].split(), "options")
    entry = Entry(given["env"], given["env"], kwargs, split=given["split"] or None)
    seed = parse_number(given["seed"], 0) if given["seed"] else secrets.randbits(31)
    return Scenario(entry, Suite(given["env"], "", (entry,))), given["task"] or None, seed
