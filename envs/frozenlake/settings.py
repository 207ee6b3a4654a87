"""Settings of a frozen lake: those of published experiments, and a user's changes to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..checks import fraction
from ..errors import ConfigurationError, unknown_name
from .lake import ANYWHERE, CORNERS, Map, validate_map
from .render import FORMATS


class Settings(NamedTuple):
    """Settings of the maps, of the ice and of the observations.

    Attributes:
        size: Rows and columns of a random map.
        p_frozen: Probability that a cell of a random map is ice.
        success_rate: Probability that a step goes in the chosen direction.
        start_goal: Placement of start and goal, "corners" or "random".
        observation_format: "grid", "grid_coord" or "coord".
        map: The only map, or None for random maps.
    """

    size: int
    p_frozen: float
    success_rate: float
    start_goal: str
    observation_format: str
    map: Map | None = None


PRESETS = {
    "ragen": Settings(4, 0.9, 0.8, ANYWHERE, "grid_coord"),
    "ragen-v1": Settings(4, 0.8, 1.0 / 3.0, ANYWHERE, "grid"),
    "gymnasium": Settings(4, 0.8, 1.0 / 3.0, CORNERS, "grid", ("SFFF", "FHFH", "FFFH", "HFFG")),
}
"""Settings of published experiments."""


def resolve_settings(
    preset: str,
    *,
    size: int | None,
    p_frozen: float | None,
    success_rate: float | None,
    start_goal: str | None,
    map: Sequence[str] | None,
    observation_format: str | None,
) -> Settings:
    """Return the settings of a preset with a user's in their place, after validating them.

    An argument of None keeps the setting of the preset. A setting of random maps removes the map of the preset.

    Args:
        preset: Name in `PRESETS`.
        size: Number of rows and of columns, 2 to 32.
        p_frozen: Probability that a cell other than start and goal is ice.
        success_rate: Probability that a step goes in the chosen direction.
        start_goal: "corners" or "random".
        map: Rows of S, F, H and G.
        observation_format: "grid", "grid_coord" or "coord".

    Raises:
        ConfigurationError: The preset is unknown, a value is invalid, or `map` is given with a setting of random
            maps.
    """
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    published = PRESETS[preset]
    random_map_options = {"size": size, "p_frozen": p_frozen, "start_goal": start_goal}
    given = [name for name, value in random_map_options.items() if value is not None]
    desc = validate_map(map) if map is not None else None if given else published.map
    if desc is not None and given:
        raise ConfigurationError(f"{given[0]} applies to random maps only; omit it when map= is given.")
    settings = Settings(
        size=published.size if size is None else size,
        p_frozen=_check_rate("p_frozen", published.p_frozen if p_frozen is None else p_frozen),
        success_rate=_check_rate("success_rate", published.success_rate if success_rate is None else success_rate),
        start_goal=published.start_goal if start_goal is None else start_goal,
        observation_format=observation_format or published.observation_format,
        map=desc,
    )
    if isinstance(settings.size, bool) or not isinstance(settings.size, int) or not 2 <= settings.size <= 32:
        raise ConfigurationError(f"size must be an integer from 2 to 32, not {settings.size!r}.")
    if settings.start_goal not in (CORNERS, ANYWHERE):
        raise unknown_name("start_goal", settings.start_goal, (CORNERS, ANYWHERE))
    if settings.observation_format not in FORMATS:
        raise unknown_name("observation_format", settings.observation_format, FORMATS)
    return settings


def _check_rate(name: str, rate: float) -> float:
    """Return a probability as a float: maps are drawn from its `repr`, in which 1 differs from 1.0."""
    fraction(name, rate)
    return float(rate)
