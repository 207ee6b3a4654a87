"""Result of a training run, for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ...envs.errors import ConfigurationError
from ...eval.statistics import Interval
from .env_metrics import env_names


class Validation(NamedTuple):
    """Validation of a policy on held-out tasks.

    Attributes:
        update: Updates before it.
        success: Rate of solved tasks, with its 95 % interval.
        mean_return: Mean undiscounted return.
        by_env: Validation in each environment by its name; empty in a run on a single one. The other fields are
            means over the environments by their weights.
    """

    update: int
    success: Interval
    mean_return: float
    by_env: Mapping[str, Validation] = MappingProxyType({})


@dataclass(frozen=True)
class TrainingResult:
    """Result of `arboretum.train`.

    Attributes:
        folder: Folder of the run; holds `run.json`, `metrics.jsonl`, `report.html` and checkpoints.
        model: Folder of the best model by validation (of the last one without validation), as `transformers` loads
            it.
        metrics: Metrics of the validation before training and of every update, in order.
        stopped: Reason why the run ended before its last update; None if it did not.
    """

    folder: Path
    model: Path
    metrics: Sequence[Mapping[str, float]]
    stopped: str | None = None

    @property
    def validations(self) -> list[Validation]:
        """All validations that have a score, in order."""
        return [validation for record in self.metrics if (validation := read_validation(record)) is not None]

    def to_dataframe(self) -> Any:
        """Return the metrics as a pandas DataFrame: one row per record, indexed by `update`; NaN where missing.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise ConfigurationError("a DataFrame needs pandas: pip install pandas") from None
        return pandas.DataFrame(list(self.metrics)).astype({"update": int}).set_index("update")


def read_validation(record: Mapping[str, float]) -> Validation | None:
    """Return the validation in a record of metrics; None if it has none with a score."""
    if "validation/success" not in record:
        return None
    by_env = {
        name: _read(record, f"/{name}") for name in env_names([record]) if f"validation/low/{name}" in record
    }
    return _read(record)._replace(by_env=by_env)


def _read(record: Mapping[str, float], suffix: str = "") -> Validation:
    success = Interval(*(record[f"validation/{name}{suffix}"] for name in ("success", "low", "high")))
    return Validation(int(record["update"]), success, record[f"validation/return{suffix}"])
