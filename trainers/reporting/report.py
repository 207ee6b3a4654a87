"""`report.html` of a training run: what was asked for, how it went, and what the policy says, in one file.

It shares its style and its viewer of episodes with the report of an evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import PackageLoader

from ...envs.errors import ConfigurationError, DataError
from ...envs.files import write_atomic
from ...eval.report import make_templates, pack_cell
from ...eval.statistics import Interval
from ..checkpoints.run_folder import SETTINGS_FILE
from ..checkpoints.store import Checkpoints
from ..config.serialize import flatten, to_plain
from ..monitor import ROLLED_BACK, Monitor
from .charts import HEIGHT, LEFT, RIGHT, TOP, WIDTH, drawn
from .samples import read_samples

History = list[dict[str, float]]


def is_training_run(folder: Path) -> bool:
    """Whether a folder holds a run of `arboretum train`."""
    try:
        return "recipe" in json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def write_report(folder: Path, path: Path | None = None) -> Path:
    """Write the report of a training run, finished or not.

    Args:
        folder: of the run.
        path: the HTML file; default `<folder>/report.html`.

    Returns:
        The file.

    Raises:
        ConfigurationError: the folder holds no training run.
        DataError: what it holds cannot be read.
    """
    if not is_training_run(folder):
        raise ConfigurationError(f"{folder}: holds no training run.")
    settings = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    history = _history(folder / "metrics.jsonl")
    try:
        marks = _marks(history, Monitor(**settings["monitor"]))
    except (TypeError, KeyError) as error:
        raise DataError(folder / SETTINGS_FILE, f"is of another version of Arboretum ({error}).") from None
    best = Checkpoints(folder / "checkpoints").index.best
    total = settings["recipe"]["optimization"]["updates"]
    page = make_templates(PackageLoader(__package__, "templates")).get_template("training.html")
    target = path or folder / "report.html"
    text = page.render(
        recipe=settings["recipe"]["name"],
        about=settings["recipe"]["about"],
        env=settings["env"]["id"],
        model=settings["model"],
        seed=settings["seed"],
        done=int(history[-1]["update"]) if history else 0,
        total=total,
        looks=_looks(history, best),
        charts=drawn(history, marks) if history else [],
        frame={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP},
        alarms=[text for _, text in marks],
        skipped=int(max((record.get("steps_skipped_total", 0) for record in history), default=0)),
        changed=_changed(settings["recipe"]),
        settings=_written(settings),
        cells=_cells(folder),
    )
    write_atomic(target, text)
    return target


def _history(path: Path) -> History:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            if number < len(lines):  # the last one may have been cut off by a kill
                raise DataError(path, f"line {number} holds no metrics ({error}).") from None
    return found


def _marks(history: History, monitor: Monitor) -> list[tuple[int, str]]:
    """What the monitor saw and did: the update, and a sentence."""
    found = [(alarm.update, str(alarm)) for alarm in monitor.all_alarms([r for r in history if r["update"]])]
    for record in history:
        if ROLLED_BACK in record:
            update = int(record["update"])
            found.append(
                (update, f"update {update}: went back to the policy after update {record[ROLLED_BACK]:g}")
            )
    return sorted(found, key=lambda mark: mark[0])


def _looks(history: Sequence[Mapping[str, float]], best: int | None) -> list[dict[str, Any]]:
    """The validations worth a line: before training, the best, the last."""
    seen = {int(record["update"]): record for record in history if "validation/success" in record}
    if not seen:
        return []
    names: dict[int, list[str]] = {}
    for update, name in ((0, "before training"), (best, "best, kept"), (max(seen), "last")):
        if update in seen:
            names.setdefault(update, []).append(name)
    return [
        {
            "name": ", ".join(names[update]),
            "after": update,
            "success": Interval(*(seen[update][f"validation/{key}"] for key in ("success", "low", "high"))),
            "mean_return": seen[update]["validation/return"],
            "gain": seen[update]["validation/success"] - seen[min(seen)]["validation/success"],
        }
        for update in sorted(names)
    ]


def _written(settings: Any) -> dict[str, str]:
    """Settings by their path, as a person would write them."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in flatten(settings).items()
    }


def _changed(recipe: dict[str, Any]) -> list[dict[str, str]]:
    """The recipe's settings that are not the published ones."""
    from ..algorithms.recipes import RECIPES

    if recipe["name"] not in RECIPES:
        return []
    published, own = _written(json.loads(json.dumps(to_plain(RECIPES[recipe["name"]])))), _written(recipe)
    return [
        {"name": name, "value": value, "published": published.get(name, "–")}
        for name, value in own.items()
        if published.get(name) != value
    ]


def _cells(folder: Path) -> list[dict[str, Any]]:
    """The sample episodes by the validation that they are of."""
    found: dict[int, list[dict[str, Any]]] = {}
    for sample in read_samples(folder):
        found.setdefault(int(sample["update"]), []).append(sample)
    name = {0: "before training"}
    return [
        pack_cell(
            name.get(update, f"after update {update}"),
            "policy",
            [{"repeat": 0, **e} for e in episodes],
            len(episodes),
        )
        for update, episodes in sorted(found.items())
    ]
