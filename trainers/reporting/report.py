"""`report.html` of a training run: settings, validations, metrics and sample episodes in one self-contained file.

It shares its style sheet and its episode viewer with the report of an evaluation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from jinja2 import PackageLoader

from ...envs.errors import ConfigurationError, DataError
from ...envs.files import read_jsonl, shown_path, write_atomic
from ...eval.page_data import encode_page, pack
from ...eval.report import make_templates, pack_cell
from ...eval.run_index import EPISODES_FILE
from ..checkpoints.run_folder import CHECKPOINTS_FOLDER, METRICS_FILE, SETTINGS_FILE
from ..checkpoints.store import Checkpoints
from ..config.serialize import flatten, to_plain
from ..config.task_data import describe_edits
from ..monitor import ROLLED_BACK, Monitor, current_lineage
from .charts import HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw_charts
from .result import Validation, read_validation
from .samples import read_samples
from .trees import pack_stored_trees

FAILED_METRICS = {"failed": "training", "validation/failed": "validation"}

_History = list[dict[str, float]]


def run_kind(folder: Path) -> Literal["training", "fine-tuning", "evaluation"] | None:
    """Return the kind of the run in a folder, told by its files; None if it holds no run."""
    try:
        settings = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    if isinstance(settings, dict) and "recipe" in settings:
        return "training"
    if isinstance(settings, dict) and "sft" in settings:
        return "fine-tuning"
    return "evaluation" if settings is not None or (folder / EPISODES_FILE).exists() else None


def is_training_run(folder: Path) -> bool:
    """Return True if a folder holds a run of `arboretum train`."""
    return run_kind(folder) == "training"


def write_report(folder: Path, path: Path | None = None) -> Path:
    """Write the report of a training run, finished or not.

    Args:
        folder: Folder of the run.
        path: HTML file to write; default `<folder>/report.html`.

    Returns:
        The HTML file.

    Raises:
        ConfigurationError: The folder holds no training run.
        DataError: The run's settings or metrics cannot be read.
    """
    page = make_templates(PackageLoader(__package__, "templates")).get_template("training.html")
    target = path or folder / "report.html"
    trees, left_out = pack_stored_trees(folder)
    text = page.render(
        **describe_training(folder),
        cells=pack_samples(folder),
        texts=pack({}),
        trees=trees,
        trees_left_out=left_out,
    )
    write_atomic(target, encode_page(text))
    return target


def describe_training(folder: Path) -> dict[str, Any]:
    """Return the variables of a page about a training run, without those of its sample episodes and trees.

    Args:
        folder: Folder of the run, finished or not.

    Raises:
        ConfigurationError: The folder holds no training run.
        DataError: The run's settings or metrics cannot be read.
    """
    if not is_training_run(folder):
        raise ConfigurationError(f"{folder}: holds no training run.")
    settings = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    history = read_history(folder / METRICS_FILE)
    try:
        recipe, env = settings["recipe"], name_environments(settings)
        heading = {"recipe": recipe["name"], "about": recipe["about"], "env": env}
        heading |= {"model": settings["model"], "seed": settings["seed"]}
        heading |= {"total": recipe["optimization"]["updates"]}
        marks = _collect_marks(history, Monitor(**settings["monitor"]))
    except (TypeError, KeyError) as error:
        raise DataError(
            folder / SETTINGS_FILE, f"was written by another version of Arboretum ({error})."
        ) from None
    best = Checkpoints(folder / CHECKPOINTS_FOLDER).index.best
    return {
        "folder": quote(str(shown_path(folder))),
        **heading,
        "done": int(history[-1]["update"]) if history else 0,
        "validations": _summarize_validations(history, best),
        "charts": draw_charts(history, marks) if history else [],
        "frame": {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "top": TOP},
        "alarms": [description for _, description in marks],
        "edits": describe_edits(settings),
        "skipped": int(max((record.get("steps_skipped_total", 0) for record in history), default=0)),
        "failed": {
            kind: int(sum(record.get(name, 0) for record in history)) for name, kind in FAILED_METRICS.items()
        },
        "changed": _changed_settings(settings["recipe"]),
        "settings": format_settings(settings),
    }


def read_history(path: Path) -> _History:
    """Return the metrics of a run from its file, oldest first; empty if there is no file.

    Raises:
        DataError: A line does not hold the metrics of an update.
    """
    history = read_jsonl(path)
    for number, record in enumerate(history, 1):
        if not isinstance(record, dict) or "update" not in record:
            raise DataError(path, "does not hold the metrics of an update.", number)
    return history


def _collect_marks(history: _History, monitor: Monitor) -> list[tuple[int, str]]:
    """Return the alarms and rollbacks of a run: update and description of each, in order."""
    updates = [record for record in history if record["update"]]
    marks = [(alarm.update, str(alarm)) for alarm in monitor.all_alarms(updates)]
    for record in history:
        if ROLLED_BACK in record:
            update, target = int(record["update"]), record[ROLLED_BACK]
            marks.append((update, f"update {update}: rolled back to the policy after update {target:g}"))
    return sorted(marks, key=lambda mark: mark[0])


def _summarize_validations(history: Sequence[Mapping[str, float]], best: int | None) -> list[dict[str, Any]]:
    """Return the rows of the validation table: before training, best, last; each in total and by environment.

    Args:
        history: Metrics of all records.
        best: Updates before the best checkpoint; None if there is none.
    """
    validated = {int(record["update"]): record for record in history if "validation/success" in record}
    if not validated:
        return []
    names: dict[int, list[str]] = {}
    current = [int(record["update"]) for record in current_lineage(history)]  # without updates that were undone
    last = max((update for update in current if update in validated), default=None)
    for update, name in ((0, "before training"), (best, "best"), (last, "last")):
        if update in validated:
            names.setdefault(update, []).append(name)
    first = read_validation(validated[min(validated)])
    assert first is not None
    rows = []
    for update in sorted(names):
        total = read_validation(validated[update])
        assert total is not None
        rows.append(_validation_row(", ".join(names[update]), total, first))
        rows += [
            {**_validation_row(env, one, first.by_env[env]), "part": True} for env, one in total.by_env.items()
        ]
    return rows


def _validation_row(name: str, validation: Validation, first: Validation) -> dict[str, Any]:
    return {
        "name": name,
        "part": False,
        "updates": validation.update,
        "success": validation.success,
        "mean_return": validation.mean_return,
        "gain": validation.success.value - first.success.value,
    }


def name_environments(settings: Mapping[str, Any]) -> str:
    """Return the names of the environments in a run's plain settings, for titles."""
    envs = [settings["env"], *settings.get("mixture", ())]
    return " + ".join(env.get("name") or env["id"] for env in envs)


def format_settings(settings: Any) -> dict[str, str]:
    """Return settings by path, with strings unquoted and all other values as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in flatten(settings).items()
    }


def _changed_settings(recipe: dict[str, Any]) -> list[dict[str, str]]:
    """Return the settings of a recipe that differ from the published ones."""
    from ..algorithms.recipes import RECIPES

    if recipe["name"] not in RECIPES:
        return []
    published = format_settings(json.loads(json.dumps(to_plain(RECIPES[recipe["name"]]))))
    return [
        {"name": name, "value": value, "published": published.get(name, "–")}
        for name, value in format_settings(recipe).items()
        if published.get(name) != value
    ]


def pack_samples(folder: Path) -> list[dict[str, Any]]:
    """Return the sample episodes as cells of the episode viewer, one cell per validation and environment."""
    stored = read_samples(folder)
    several = len({sample.get("env") for sample in stored}) > 1
    episodes: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for sample in stored:
        episodes.setdefault((int(sample["update"]), str(sample.get("env", "")) if several else ""), []).append(
            sample
        )
    return [
        pack_cell(
            (f"after update {update}" if update else "before training") + (f", {env}" if env else ""),
            "policy",
            [_index_row(sample) for sample in samples],
            samples,
            sys.maxsize,
        )
        for (update, env), samples in sorted(episodes.items())
    ]


def _index_row(sample: Mapping[str, Any]) -> list[Any]:
    moves = [move for turn in sample["turns"] for move in turn["moves"]]
    outcome = "solved" if sample["success"] else "unsolved"
    total_reward = sum(move["reward"] for move in moves)
    return [outcome, sample["task"], 0, total_reward, len(moves), len(sample["turns"])]
