"""Pages of runs: the leaderboard, and a run with the list of its episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from ...agents.episode import Episode
from ...envs.errors import DataError
from ...envs.extras import optional_module
from ..episode_filter import SORT_KEYS, EpisodeFilter
from ..paper_text import make_grid
from ..provenance import describe_run
from ..store import Result
from ..summary import RANDOM
from .app import Site, absent
from .leaderboard import Board, boards, run_lines, suite_tables
from .library import EvaluationRun

PAGE = 50
"""Episodes on a page."""

_OUTCOMES = {"solved": (True, None), "unsolved": (False, None), "error": (None, True)}
"""Success and error of the outcomes that the list can be filtered by."""

_DESCENDING_FIRST = frozenset({"return", "success", "steps", "turns", "invalid", "seconds"})


class Query:
    """Filter, order and page of a list of episodes, as the address of its page names them.

    Args:
        values: Values of the address; unknown ones are ignored.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.agent, self.entry = values.get("agent", ""), values.get("entry", "")
        self.outcome = values.get("outcome", "") if values.get("outcome") in _OUTCOMES else ""
        self.task = values.get("task", "")[:200]
        sort = values.get("sort", "")
        self.descending = sort.startswith("-")
        self.sort = sort.removeprefix("-") if sort.removeprefix("-") in SORT_KEYS else "order"
        self.page = max(1, parse_number(values.get("page", ""), 1))

    @property
    def which(self) -> EpisodeFilter:
        """The filter."""
        success, error = _OUTCOMES.get(self.outcome, (None, None))
        agents, entries = ((name,) if name else () for name in (self.agent, self.entry))
        return EpisodeFilter(agents, entries, success, error, self.task)

    def address(self, **changed: Any) -> str:
        """Return the query string with changed values; the first page unless one is given."""
        sort = ("-" if self.descending else "") + self.sort
        values = {
            "agent": self.agent,
            "entry": self.entry,
            "outcome": self.outcome,
            "task": self.task,
            "sort": sort,
        }
        values |= changed
        kept = {name: value for name, value in values.items() if value not in ("", None, "order")}
        return "?" + urlencode(kept, errors="replace") if kept else "?"

    def sorted_by(self, key: str) -> str:
        """Return the query string of the list sorted by a key; in reverse if it is sorted by it already."""
        if key == self.sort:
            return self.address(sort=key if self.descending else f"-{key}")
        return self.address(sort=f"-{key}" if key in _DESCENDING_FIRST else key)


def parse_number(text: str, default: int) -> int:
    """Return a non-negative number of at most 15 digits in a text, or the default."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else default


def outcome_of(result: Result | Episode) -> str:
    """Return the outcome of an episode: "solved", "unsolved" or "error"."""
    return "error" if result.error is not None else "solved" if result.success else "unsolved"


def register(app: Any, site: Site) -> None:
    """Add the routes of the leaderboard and of runs to the application."""
    flask = optional_module("flask", "web", "the viewer")

    @app.get("/")  # type: ignore[untyped-decorator]
    def home() -> Any:
        found, damaged = _load_boards(site)
        others = [listing for extension in site.extensions for listing in extension.listings(site.library)]
        return site.render("home.html", boards=found, damaged=damaged, others=others, root=site.library.root)

    @app.get("/run/<path:name>")  # type: ignore[untyped-decorator]
    def run(name: str) -> Any:
        found = site.library.evaluation(name)
        if found is None:
            absent()
        query = Query(flask.request.args)
        total = found.episodes.count(query.which)
        pages = max(1, math.ceil(total / PAGE))
        page = min(query.page, pages)
        results = found.episodes.page(
            query.which, sort=query.sort, descending=query.descending, offset=(page - 1) * PAGE, limit=PAGE
        )
        return site.render(
            "run.html",
            run=found,
            query=query,
            results=[(place, outcome_of(one), one) for place, one in enumerate(results, (page - 1) * PAGE)],
            total=total,
            page=page,
            pages=pages,
            lines=run_lines(found),
            papers=[make_grid(table) for table in suite_tables(found)],
            played=sum(cell.episodes - cell.failed for cell in found.episodes.cells()),
            failed=sum(cell.failed for cell in found.episodes.cells()),
            problems=found.episodes.problems()[:20],
            facts=describe_run(found.manifest),
            random=RANDOM,
        )


def _load_boards(site: Site) -> tuple[list[Board], list[tuple[str, str]]]:
    """Return the boards of all runs, and name and fault of each run that cannot be read."""
    runs: list[EvaluationRun] = []
    damaged = []
    for name, found in site.library.found().items():
        if not found.is_evaluation:
            continue
        try:
            run = site.library.evaluation(name)
            if run is not None:
                run_lines(run)  # Which may find that the episodes cannot be read; they are read once.
                runs.append(run)
        except DataError as error:
            damaged.append((name, str(error)))
    return boards(runs), damaged
