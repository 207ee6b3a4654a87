"""Reference page of the settings of recipes and runs, generated from their classes."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ...envs.docstrings import fields_of, fields_table, markdown_table, summary_of
from ...eval.options import option_name
from ..algorithms.grafting import Grafting
from ..algorithms.objectives.settings import Kl, Mismatch, Objective, Overlong
from ..algorithms.recipe import Critic, Optimization
from ..algorithms.recipes import RECIPES
from ..algorithms.registry import CREDITS, SAMPLERS, SELECTORS, TERMS
from ..algorithms.rewards import Rewards
from ..algorithms.schedules import Linear
from ..config.cli_options import SFTHardware
from ..config.serialize import flatten, to_plain
from ..config.settings import (
    ExpertConfig,
    HardwareConfig,
    LoraConfig,
    SFTSettings,
    SteppingConfig,
    ValidationConfig,
)
from ..monitor import Monitor
from .recipe_pages import PARTS


def settings_page() -> str:
    """Return the page of the settings of recipes and runs."""
    parts = [
        "`arboretum train RECIPE --set path=value` changes a setting of a recipe, and may be repeated. Values"
        " are YAML: numbers, `true`, `null`, lists. A part is exchanged by its name, such as `--set"
        " selector.name=uncertainty`; it then has its own defaults. The defaults below are those of the classes;"
        " what a recipe changes is listed at the end.\n",
        "## `optimization`: optimizer of the policy\n",
        fields_table(fields_of(Optimization), "optimization."),
    ]
    for part, kinds in (("sampler", SAMPLERS), ("selector", SELECTORS), ("credit", CREDITS)):
        parts.append(f"## `{part}`: one of {', '.join(f'`{name}`' for name in kinds)}\n")
        for name, cls in kinds.items():
            fields = fields_of(cls)
            parts.append(f"### `{part}.name={name}`\n\n{summary_of(cls)}\n")
            parts.append(fields_table(fields, f"{part}.") if fields else "It has no settings.\n")
    nested = {
        "rewards": (Rewards, "rewards of training"),
        "objective": (Objective, "loss of the policy"),
        "objective.kl": (Kl, "KL penalty"),
        "objective.mismatch": (Mismatch, "correction for the sampler's probabilities"),
        "overlong": (Overlong, "episodes that are too long"),
        "grafting": (Grafting, "preference pairs made at divergences"),
        "critic": (Critic, "value model, for credits that need one; `critic=null` removes it"),
    }
    for path, (kind, title) in nested.items():
        parts += [f"## `{path}`: {title}\n", fields_table(fields_of(kind), f"{path}.")]
    parts.append(
        "## `objective.terms`: further terms of the loss\n\nA list of names, or of mappings with settings:"
        " `--set 'objective.terms=[{name: surgical, weight: 0.3}]'`.\n"
    )
    for name, term in TERMS.items():
        parts += [f"### `{name}`\n\n{summary_of(term)}\n", fields_table(fields_of(term), heading="key")]
    parts += [
        "## Schedules\n\n`sampler.temperature` is a number, or changes linearly over the run:"
        " `--set sampler.temperature.start=1.0 --set sampler.temperature.end=0.7`.\n",
        fields_table(fields_of(Linear), "sampler.temperature."),
        "## Settings that recipes change\n",
        markdown_table(("recipe", "settings"), _recipe_rows()),
        "## Options beside `--set`\n\nThese are options of their own of `arboretum train` and `arboretum sft`.\n",
    ]
    options = [
        ("Hardware", HardwareConfig, "--", "train, sft"),
        ("Low-rank adapters, with `--lora`", LoraConfig, "--lora.", "train, sft"),
        ("Processes of environments", SteppingConfig, "--", "train"),
        ("Validation", ValidationConfig, "--validation.", "train"),
        ("Monitor", Monitor, "--monitor.", "train"),
        ("Supervised fine-tuning", SFTSettings, "--", "sft"),
        ("Expert", ExpertConfig, "--expert.", "sft"),
    ]
    for title, cls, prefix, commands in options:
        fields = [
            field._replace(name=field.name.replace("_", "-")) for field in fields_of(cls) if field.name != "lora"
        ]
        parts += [f"### {title} ({commands})\n", fields_table(fields, prefix, "option")]
        if title == "Hardware":
            absent = [f"`{option_name(name)}`" for name in SFTHardware.__annotations__]
            parts.append(f"`arboretum sft` samples no replies, and has no {', '.join(absent)}.\n")
    return "\n".join(parts)


def _recipe_rows() -> Iterator[tuple[str, str]]:
    """Yield the settings in which each recipe differs from the defaults of its parts."""
    for name, recipe in RECIPES.items():
        changed = []
        for part in PARTS:
            value = getattr(recipe, part)
            if value is None:
                continue
            default = flatten(to_plain(type(value)()), part)
            plain = flatten(to_plain(value), part)
            shown = {
                path: one for path, one in plain.items() if one != default.get(path) or path == f"{part}.name"
            }
            changed += [f"`{path}={json.dumps(one)}`" for path, one in shown.items()]
        yield f"`{name}`", f"{recipe.about} {', '.join(changed)}"
