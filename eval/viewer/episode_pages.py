"""Pages of stored episodes: replay, alternatives in a state, and two episodes side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...agents.episode import Episode
from ...agents.execution import trial_seed
from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError, DataError
from ...envs.extras import optional_module
from ...envs.pictures.png import encode_png
from ...envs.rendering import PICTURE_MODE
from ...envs.snapshots import Snapshot
from ...envs.user_code import describe_failure
from ..store import Result, read_episode
from ..suite import Entry
from .app import POLICY, Site, absent
from .decisions import UNMARKED, Marks, mark_decisions
from .library import EvaluationRun
from .replay import LeastRecent, Replay, replay_episode, stored_replay
from .run_pages import Query, outcome_of, parse_number
from .scene import TEXT_ONLY, Look, look_of
from .sessions import Scenario, posted_action
from .what_if import what_if

EMBEDDED = POLICY.format(ancestors="'self'").replace("frame-src 'self'", "frame-src 'none'")
"""Policy of the pages of a shop, which stand in a frame of an episode's page."""


MAX_RIVAL_RUNS, MAX_RIVALS = 12, 40
"""Number of runs that are searched for other episodes of a task, and of episodes that are listed."""


class Opened(NamedTuple):
    """A stored episode with its states.

    Attributes:
        run: Run of the episode.
        result: Head of the episode.
        episode: The trial that is shown.
        trials: Number of trials.
        entry: Entry of the suite.
        replay: Its states.
        seed: Seed with which the trial began.
    """

    run: EvaluationRun
    result: Result
    episode: Episode
    trials: int
    entry: Entry
    replay: Replay
    seed: int


class Opener:
    """Stored episodes by run and place in the file, with the most recent replays.

    Args:
        site: What the pages share.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._opened: LeastRecent[Opened | None] = LeastRecent(48)
        self._marks: LeastRecent[Marks] = LeastRecent(256)

    def open(self, name: str, offset: int, trial: int | None = None) -> Opened | None:
        """Return an episode; None if there is no such run, episode or trial.

        Args:
            name: Name of the run.
            offset: Place of the episode in the run's file, in bytes.
            trial: Index of the trial; None for the last one.

        Raises:
            DataError: The run or the episode is damaged.
        """
        run = self._site.library.evaluation(name)
        if run is None:
            return None
        result = run.episodes.at(offset)
        if result is None:
            return None
        key = name, offset, trial, result.key, result.seed, run.version[:2]
        return self._opened.get(key, lambda: self._open(run, result, trial))

    def _open(self, run: EvaluationRun, result: Result, trial: int | None) -> Opened | None:
        last = read_episode(run.folder, result)
        trials = [*last.trials, last]
        index = len(trials) - 1 if trial is None else trial
        if not 0 <= index < len(trials):
            return None
        entry = next(one for one in run.suite.entries if one.name == result.key.entry)
        shown, seed = trials[index], trial_seed(last.seed, index)
        try:
            with self._site.bench.env(entry) as env:
                replay = replay_episode(env, shown, seed)
        except ConfigurationError as error:
            replay = stored_replay(shown, str(error).rstrip("."))
        except Exception as error:  # Environments may come from plug-ins.
            replay = stored_replay(shown, describe_failure("the environment", error))
        return Opened(run, result, shown, len(trials), entry, replay, seed)

    def marks(self, opened: Opened, key: Any) -> Marks:
        """Return the quality of each decision of an episode."""

        def compute() -> Marks:
            if not opened.replay.snapshots:
                return Marks([UNMARKED] * opened.replay.end, "")
            with self._site.bench.env(opened.entry, is_slow=True) as env:
                return mark_decisions(env, opened.episode, opened.replay, opened.seed)

        return self._marks.get(key, compute)

    def look(self, opened: Opened, position: int) -> Look:
        """Return the look of the state at a position."""
        snapshot = opened.replay.snapshot(position)
        if snapshot is None:
            return TEXT_ONLY
        try:
            with self.state(opened, snapshot) as env:
                return look_of(env)
        except ConfigurationError:
            return TEXT_ONLY

    @contextmanager
    def state(self, opened: Opened, snapshot: Snapshot, *, is_slow: bool = False) -> Iterator[TextEnv[Any]]:
        """Context with the environment of an episode in one of its states.

        Args:
            opened: The episode; it has no states any more if the environment does not restore them.
            snapshot: The state.
            is_slow: See `Bench.env`.

        Raises:
            ConfigurationError: The environment does not restore its own states.
        """
        with self._site.bench.env(opened.entry, is_slow=is_slow) as env:
            try:
                env.restore(snapshot)
            except Exception as error:  # Environments may come from plug-ins.
                fault = (
                    f"{type(env).__name__} does not restore its own states; its _open must not draw random numbers"
                    f" ({str(error).rstrip('.')})"
                )
                opened.replay.snapshots, opened.replay.fault = [], fault
                raise ConfigurationError(f"{fault}.") from error
            yield env


def register(app: Any, site: Site) -> None:
    """Add the routes of episodes to the application."""
    flask = optional_module("flask", "web", "the viewer")
    opener = Opener(site)

    def opened_or_404(name: str, offset: int) -> Opened:
        trial = flask.request.args.get("trial", "")
        found = opener.open(name, offset, parse_number(trial, 0) if trial else None)
        if found is None:
            absent()
        return found

    def state(opened: Opened, position: int) -> Any:
        """Return the snapshot at a position, or answer that there is none."""
        snapshot = opened.replay.snapshot(position)
        if snapshot is None:
            absent()
        return snapshot

    @app.get("/episode/<int:offset>/<path:name>")  # type: ignore[untyped-decorator]
    def episode(offset: int, name: str) -> Any:
        opened = opened_or_404(name, offset)
        replay = opened.replay
        position = min(parse_number(flask.request.args.get("at", ""), 0), replay.end)
        query = Query(flask.request.args)
        number = parse_number(flask.request.args.get("n", ""), -1)
        return site.render(
            "episode.html",
            opened=opened,
            view=_view(opener, opened, position),
            base=flask.request.path,
            trial=flask.request.args.get("trial", ""),
            query=query,
            number=number,
            neighbors=_neighbors(opened.run, query, number),
            rivals=_rivals(site, opened),
            agents=site.sessions.agents,
            kind=outcome_of(opened.episode),
            kind_of=outcome_of,
        )

    @app.get("/marks/<int:offset>/<path:name>")  # type: ignore[untyped-decorator]
    def marks(offset: int, name: str) -> Any:
        opened = opened_or_404(name, offset)
        key = name, offset, flask.request.args.get("trial", ""), opened.result.seed, opened.run.version
        return opener.marks(opened, key)._asdict()

    @app.get("/whatif/<int:offset>/<path:name>")  # type: ignore[untyped-decorator]
    def alternatives(offset: int, name: str) -> Any:
        opened = opened_or_404(name, offset)
        position = parse_number(flask.request.args.get("at", ""), 0)
        trial = flask.request.args.get("trial") or None
        snapshot = state(opened, position)
        with opener.state(opened, snapshot, is_slow=True) as env:
            found = what_if(env, snapshot)
            env.restore(snapshot)
            has_pictures = look_of(env).has_picture and any(not one.is_random for one in found.consequences)
        decisions = opened.replay.decisions
        taken = decisions[position].move if position < len(decisions) else None
        return site.render(
            "whatif.html",
            found=found,
            taken=taken.action if taken else None,
            picture=f"/picture/{offset}/{position}/" if has_pictures and len(found.consequences) <= 8 else None,
            name=name,
            trial=trial,
            target=flask.url_for("play_on", offset=offset, name=name, trial=trial),
            fields={"at": position},
        )

    @app.get("/picture/<int:offset>/<int:position>/<path:name>")  # type: ignore[untyped-decorator]
    def picture(offset: int, position: int, name: str) -> Any:
        opened = opened_or_404(name, offset)
        snapshot = state(opened, position)
        with opener.state(opened, snapshot) as env:
            if PICTURE_MODE not in env.metadata["render_modes"]:
                absent()
            if "then" in flask.request.args:
                env.step(flask.request.args["then"])
            pixels = env.picture()
        if pixels is None:
            absent()
        return app.response_class(
            encode_png(pixels), mimetype="image/png", headers={"Cache-Control": "private, max-age=60"}
        )

    @app.get("/page/<int:offset>/<int:position>/<path:name>")  # type: ignore[untyped-decorator]
    def page(offset: int, position: int, name: str) -> Any:
        opened = opened_or_404(name, offset)
        snapshot = state(opened, position)
        with opener.state(opened, snapshot) as env:
            text = env.page_html("/scene")
        if text is None:
            absent()
        return app.response_class(text, headers={"Content-Security-Policy": EMBEDDED})

    @app.get("/scene/shop.css")  # type: ignore[untyped-decorator]
    def shop_style() -> Any:
        from ...envs.webshop.html import TEMPLATES

        # A frame in a sandbox has an origin of its own.
        headers = {"Cross-Origin-Resource-Policy": "cross-origin"}
        return app.response_class((TEMPLATES / "shop.css").read_bytes(), mimetype="text/css", headers=headers)

    @app.post("/continue/<int:offset>/<path:name>")  # type: ignore[untyped-decorator]
    def play_on(offset: int, name: str) -> Any:
        opened = opened_or_404(name, offset)
        position = parse_number(flask.request.form.get("at", ""), 0)
        snapshot = state(opened, position)
        trial = flask.request.args.get("trial", "")
        origin = f"{flask.url_for('episode', offset=offset, name=name)}?at={position}" + (
            f"&trial={trial}" if trial else ""
        )
        title = f"{opened.result.key.agent} in {name}, step {position}"
        scenario = Scenario(opened.entry, opened.run.suite, origin, title)
        session = site.sessions.resume(
            scenario, snapshot, opened.replay.observations[position], opened.result.seed
        )
        if "action" in flask.request.form:
            session.act(posted_action(flask.request.form))
        return flask.redirect(flask.url_for("session", key=session.key), 303)

    @app.get("/pair/<path:name>")  # type: ignore[untyped-decorator]
    def pair(name: str) -> Any:
        arguments = flask.request.args
        other = arguments.get("other") or name
        sides = [
            opener.open(name, parse_number(arguments.get("a", ""), 0)),
            opener.open(other, parse_number(arguments.get("b", ""), 0)),
        ]
        if None in sides:
            absent()
        found = [side for side in sides if side is not None]
        end = max(side.replay.end for side in found)
        at = min(parse_number(arguments.get("at", ""), 0), end)
        views = [_view(opener, side, min(at, side.replay.end)) for side in found]
        return site.render("pair.html", sides=list(zip(found, views, strict=True)), at=at, end=end, name=name,
                           other=arguments.get("other", ""), kind_of=outcome_of)  # fmt: skip


class View(NamedTuple):
    """Content of an episode's page at a position.

    Attributes:
        position: Position.
        observation: Observation before the decision.
        look: Look of the state.
        has_state: True if the state could be repeated.
        turn: The turn of the decision; None at the end.
        number: Index of the turn.
        place: Index of the action within the turn.
        is_first: True if the decision is the first one of its turn.
    """

    position: int
    observation: str
    look: Look
    has_state: bool
    turn: Any
    number: int
    place: int
    is_first: bool


def _view(opener: Opener, opened: Opened, position: int) -> View:
    replay, turns = opened.replay, opened.episode.turns
    look = opener.look(opened, position)
    has_state = replay.snapshot(position) is not None
    observation = replay.observations[position]
    if position == replay.end:
        return View(position, observation, look, has_state, None, len(turns), 0, True)
    turn, place, _ = replay.decisions[position]
    return View(position, observation, look, has_state, turns[turn], turn, place, place == 0)


def _neighbors(run: EvaluationRun, query: Query, number: int) -> tuple[Result | None, Result | None]:
    """Return the episodes before and after one in the list from which it was opened."""
    if number < 0:
        return None, None
    first = max(0, number - 1)
    found = run.episodes.page(
        query.which, sort=query.sort, descending=query.descending, offset=first, limit=number - first + 2
    )
    before = found[0] if number > 0 and found else None
    after = found[number - first + 1] if len(found) > number - first + 1 else None
    return before, after


def _rivals(site: Site, opened: Opened) -> list[tuple[str, Result]]:
    """Return the other episodes on the same task: of the run, and of the latest runs with the same entry."""
    run, key = opened.run, opened.result.key
    names = [run.name, *(name for name, found in site.library.found().items() if found.is_evaluation)]
    rivals: list[tuple[str, Result]] = []
    for name in list(dict.fromkeys(names))[:MAX_RIVAL_RUNS]:
        try:
            other = site.library.evaluation(name)
        except DataError:
            continue
        if other is None or not any(_is_same(entry, opened.entry) for entry in other.suite.entries):
            continue
        found = other.episodes.of_task(key.entry, key.task)
        rivals += [(name, one) for one in found if (name, one.offset) != (run.name, opened.result.offset)]
    return rivals[:MAX_RIVALS]


def _is_same(one: Entry, other: Entry) -> bool:
    """Return True if two entries have the same name and the same tasks of an environment."""
    return (one.name, one.env, one.kwargs, one.split) == (other.name, other.env, other.kwargs, other.split)
