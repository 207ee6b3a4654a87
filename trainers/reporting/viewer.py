"""Pages of training runs in `arboretum view`: charts that follow a run in progress, trees and sample episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import BaseLoader, PackageLoader

from ...envs.errors import ConfigurationError, DataError
from ...envs.extras import optional_module
from ...eval.page_data import pack
from ...eval.viewer.app import POLICY, Listing, Site, absent
from ...eval.viewer.library import Library, file_version
from ...eval.viewer.replay import LeastRecent
from ..checkpoints.run_folder import METRICS_FILE, SETTINGS_FILE, read_run_settings
from .report import describe_training, is_training_run, name_environments, pack_samples, read_history
from .result import read_validation
from .samples import FILE as SAMPLES_FILE
from .trees import FILE as TREES_FILE
from .trees import pack_stored_trees

# Charts and trees set colors in attributes of their elements.
_POLICY = POLICY.format(ancestors="'none'") + "; style-src-attr 'unsafe-inline'"


class TrainingPages:
    """Extension of the viewer by runs of `arboretum train`."""

    def __init__(self) -> None:
        self._listings: LeastRecent[Listing | None] = LeastRecent(512)
        self._values: LeastRecent[Mapping[str, Any]] = LeastRecent(8)
        self._details: LeastRecent[Mapping[str, Any]] = LeastRecent(4)

    def loaders(self) -> Sequence[BaseLoader]:
        """Return the loader of the templates of training reports."""
        return [PackageLoader(__package__, "templates")]

    def listings(self, library: Library) -> list[Listing]:
        """Return the training runs, the latest first."""
        found = []
        for name, run in library.found().items():
            if not run.is_evaluation:
                version = file_version(run.folder, SETTINGS_FILE, METRICS_FILE)
                found.append(self._listings.get((str(run.folder), version), partial(_describe, name, run.folder)))
        return [listing for listing in found if listing is not None]

    def register(self, app: Any, site: Site) -> None:
        """Add the routes of training runs to the application."""
        flask = optional_module("flask", "web", "the viewer")

        @app.get("/training/<path:name>")  # type: ignore[untyped-decorator]
        def training(name: str) -> Any:
            run = site.library.found().get(name)
            if run is None or run.is_evaluation or not is_training_run(run.folder):
                absent()
            folder = run.folder
            version = file_version(folder, SETTINGS_FILE, METRICS_FILE)
            values = self._values.get((str(folder), version), lambda: describe_training(folder))
            details: Mapping[str, Any] = {"cells": [], "trees": [], "trees_left_out": 0}
            if "live" not in flask.request.args:
                version = file_version(folder, SAMPLES_FILE, TREES_FILE)
                details = self._details.get((str(folder), version), lambda: _read_details(folder))
            page = site.render("training_page.html", name=name, texts=pack({}), **values, **details)
            return app.response_class(page, headers={"Content-Security-Policy": _POLICY})


def _read_details(folder: Path) -> dict[str, Any]:
    """Return the variables of sample episodes and trees."""
    trees, left_out = pack_stored_trees(folder)
    return {"cells": pack_samples(folder), "trees": trees, "trees_left_out": left_out}


def _describe(name: str, folder: Path) -> Listing | None:
    """Return the line of a run on the first page; None if it is no training run."""
    if not is_training_run(folder):
        return None
    address = f"/training/{quote(name)}"
    try:
        settings = read_run_settings(folder) or {}
        history = read_history(folder / METRICS_FILE)
        recipe = settings["recipe"]
        title = f"{recipe['name']} on {name_environments(settings)}"
        total = recipe["optimization"]["updates"]
    except (ConfigurationError, KeyError, TypeError) as error:
        reason = error.problem if isinstance(error, DataError) else "written by another version of Arboretum"
        return Listing(name, address, "training run", f"cannot be read: {reason}")
    done = int(history[-1]["update"]) if history else 0
    validations = [one for one in map(read_validation, history) if one is not None]
    scores = [one.success.value for one in validations if one.update]  # not of the untrained model
    return Listing(name, address, title, f"{done} of {total} updates", max(scores, default=None))
