"""Settings in which the recipes of a study differ, beside what defines them."""

from __future__ import annotations

from collections.abc import Mapping

from ..config.serialize import to_plain
from ..reporting.report import format_settings
from .definition import Study

_OWN = ("about", "name", "credit.name", "sampler.name", "objective.terms")
"""Settings that define a recipe."""


def differing_settings(study: Study) -> list[str]:
    """Return the settings, by path, that all recipes of a study have and that differ between them.

    A comparison of recipes is about their credit and sampler only as far as these are alike. A setting that is
    tuned is left out, and so are those of parts that only some recipes have.
    """
    env = next(iter(study.envs))
    settings = [format_settings(to_plain(study.recipe(name, env))) for name in study.recipes]
    tuned = study.tuning.setting if study.tuning is not None else None
    paths = dict.fromkeys(path for one in settings for path in one)
    values = {path: [_value(one, path) for one in settings] for path in paths if path not in (*_OWN, tuned)}
    return [path for path, found in values.items() if all(found) and len(set(found)) > 1]


def _value(settings: Mapping[str, str], path: str) -> str:
    """Return a setting, or those of which it consists in one of several recipes, such as a schedule's."""
    parts = [f"{name} {value}" for name, value in settings.items() if f"{name}.".startswith(f"{path}.")]
    return ", ".join(parts)
