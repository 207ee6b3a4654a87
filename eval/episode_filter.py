"""Filters and sort keys of a run's episodes, as conditions of SQL on the tables of the index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..envs.checks import integer
from ..envs.errors import ConfigurationError, unknown_name

SORT_KEYS = {
    "order": "episodes.id",
    "agent": "(SELECT agent FROM cells WHERE cells.cell = episodes.cell)",
    "entry": "(SELECT entry FROM cells WHERE cells.cell = episodes.cell)",
    "task": "task_order",
    "repeat": "repeat",
    "success": "success",
    "return": "total_reward",
    "steps": "steps",
    "turns": "turns",
    "invalid": "invalid",
    "seconds": "seconds",
    "error": "error",
}
"""Columns by which episodes can be sorted, by name. Tasks sort with the numbers in their names by value."""


@dataclass(frozen=True)
class EpisodeFilter:
    """Condition on episodes; without values it selects all.

    Attributes:
        agents: Names of agents; empty for all.
        entries: Names of entries; empty for all.
        success: Outcome of complete episodes; None for any, and for episodes that broke off.
        error: True for episodes that broke off, False for complete ones, None for both.
        task: Text that the task's name contains, regardless of case.
        min_steps: Least number of actions.
        max_steps: Greatest number of actions.

    Raises:
        ConfigurationError: `agents` or `entries` is a text, or a bound is no whole number.
    """

    agents: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    success: bool | None = None
    error: bool | None = None
    task: str = ""
    min_steps: int | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("agents", "entries"):
            if isinstance(getattr(self, name), str):
                raise ConfigurationError(f"{name} must be several names, such as ({getattr(self, name)!r},).")
        for name in ("min_steps", "max_steps"):
            integer(name, getattr(self, name))

    def sql(self) -> tuple[str, list[Any]]:
        """Return a condition of SQL on `episodes`, and its values."""
        conditions: list[str] = []
        values: list[Any] = []
        for column, names in (("agent", self.agents), ("entry", self.entries)):
            if names:
                marks = ", ".join("?" * len(names))
                conditions.append(f"cell IN (SELECT cell FROM cells WHERE {column} IN ({marks}))")
                values += names
        if self.success is not None:
            conditions.append("success = ? AND NOT failed")
            values.append(self.success)
        if self.error is not None:
            conditions.append("failed = ?")
            values.append(self.error)
        if self.task:
            conditions.append("task LIKE ? ESCAPE '\\'")
            text = self.task
            for special in "\\%_":
                text = text.replace(special, "\\" + special)
            values.append(f"%{text}%")
        for operator, bound in ((">=", self.min_steps), ("<=", self.max_steps)):
            if bound is not None:
                conditions.append(f"steps {operator} ?")
                values.append(int(bound))  # NumPy's integers are no numbers in SQL.
        return " AND ".join(conditions) or "1", values


ALL_EPISODES = EpisodeFilter()


def order_by(sort: str, descending: bool) -> str:
    """Return the ORDER BY clause of a sort key.

    Raises:
        ConfigurationError: There is no such key.
    """
    if sort not in SORT_KEYS:
        raise unknown_name("sort key", sort, SORT_KEYS)
    direction = " DESC" if descending else ""
    return f"ORDER BY {SORT_KEYS[sort]}{direction}, episodes.id{direction}"
