"""Learning curves of a study's runs: success on validation tasks over updates and over generated tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...envs.files import read_jsonl
from ..checkpoints.run_folder import METRICS_FILE
from .definition import Study, Trial

VALIDATION = "validation/success"
_KEPT = ("success", VALIDATION, "validation/low", "validation/high")


@dataclass(frozen=True)
class Curve:
    """Learning curve of one training run.

    Attributes:
        env, recipe: Names of environment and recipe in the study.
        seed: Seed of the run.
        points: Points in order: `update`, `generated_tokens` (since the start of the run), and where they were
            measured `success` of the training episodes and `validation/success`, `validation/low`,
            `validation/high`.
    """

    env: str
    recipe: str
    seed: int
    points: Sequence[Mapping[str, float]]

    @property
    def tokens(self) -> float:
        """Tokens generated up to the last validation; 0 without one."""
        return max((point["generated_tokens"] for point in self.points if VALIDATION in point), default=0.0)

    def area(self, tokens: float) -> float:
        """Return the mean success on validation tasks from the start of the run to a number of generated tokens.

        Success is linear between two validations, and constant after the last one.

        Args:
            tokens: Generated tokens, more than 0.
        """
        measured = [point for point in self.points if VALIDATION in point]
        x = np.asarray([point["generated_tokens"] for point in measured])
        y = np.asarray([point[VALIDATION] for point in measured])
        inner = (x > 0) & (x < tokens)
        places = np.concatenate([[0.0], x[inner], [tokens]])
        return float(np.trapezoid(np.interp(places, x, y), places) / tokens)

    def to_dict(self) -> dict[str, object]:
        """Return the curve as plain data."""
        return {"env": self.env, "recipe": self.recipe, "seed": self.seed, "points": list(self.points)}


def common_tokens(curves: Sequence[Curve]) -> float:
    """Return the generated tokens that every curve reaches; 0 without curves."""
    return min((curve.tokens for curve in curves), default=0.0)


def read_curve(trial: Trial, out: Path) -> Curve:
    """Return the learning curve of a run, finished or not.

    Args:
        trial: Trial of the study.
        out: Folder of the study.
    """
    tokens, points = 0.0, []
    path = out / trial.folder / METRICS_FILE
    for record in read_jsonl(path, damaged="skip") if path.exists() else ():
        tokens += record.get("sampled_tokens", 0.0)
        values = {key: record[key] for key in _KEPT if key in record}
        points.append({"update": record["update"], "generated_tokens": tokens, **values})
    return Curve(trial.env, trial.recipe, trial.seed, points)


def read_curves(study: Study, out: Path) -> list[Curve]:
    """Return the learning curves of all runs so far, finished or not, without those that tuned a setting."""
    curves = [read_curve(trial, out) for trial in study.trials()]
    return [curve for curve in curves if curve.points]
