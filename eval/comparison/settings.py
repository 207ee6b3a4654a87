"""Settings in which the agents of a comparison differ: model, sampling, dialogue, limits, seeds and versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..provenance import played_versions
from ..suite import Suite
from .participants import Participant

MISSING = "–"
_DIGEST = 12
"""Digits of a digest that tables show."""
_OF_ENTRIES = ("dialogue", "sampling", "examples")
"""Parts of an agent's identity that its settings on each entry contain in full."""


def differing_settings(participants: Sequence[Participant]) -> dict[str, list[str]]:
    """Return the settings that are not the same for all agents: name, and the value of each agent.

    A setting that depends on the entry has a row for each entry where it differs, or one row if its values are
    the same on all entries.
    """
    found = [_merge(dict(_settings(one))) for one in participants]
    names = dict.fromkeys(name for values in found for name in values)
    rows: dict[str, list[str]] = {}
    for name in names:
        entries = dict.fromkeys(entry for values in found for entry in values.get(name, {}))
        by_entry = {entry: [_lookup(values.get(name, {}), entry) for values in found] for entry in entries}
        differing = {entry: row for entry, row in by_entry.items() if len(set(row)) > 1}
        if len(differing) == len(by_entry) and len({tuple(row) for row in differing.values()}) == 1:
            differing = {"": next(iter(differing.values()))}
        rows |= {f"{name} ({entry})" if entry else name: row for entry, row in differing.items()}
    return rows


def _merge(values: Mapping[tuple[str, str], str]) -> dict[str, dict[str, str]]:
    """Group values by setting and entry."""
    merged: dict[str, dict[str, str]] = {}
    for (name, entry), value in values.items():
        merged.setdefault(name, {})[entry] = value
    return merged


def _lookup(by_entry: Mapping[str, str], entry: str) -> str:
    return by_entry.get(entry, MISSING)


def _settings(participant: Participant) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the settings of an agent as name and entry ("" for all entries), and value."""
    agent, manifests = participant.agent, [source.run.manifest for source in participant.sources]
    manifest = manifests[0]
    yield ("agent", ""), agent
    identity = manifest.get("identities", {}).get(agent, {})
    for name, value in _flatten({key: identity[key] for key in identity if key not in _OF_ENTRIES}):
        if name != "settings.examples":
            is_digest = name in ("weights", "adapter", "template") and len(value) == 64
            yield (name, ""), value[:_DIGEST] if is_digest else value
    for entry, settings in manifest.get("settings", {}).get(agent, {}).items():
        for name, value in _flatten(settings):
            yield (name, entry), value
    for entry, facts in manifest.get("entries", {}).items():
        for name in ("max_steps", "max_turns", "tasks"):
            if name in facts:
                yield ("data" if name == "tasks" else f"limits.{name}", entry), _text(facts[name])
    suites = [source.run.suite for source in participant.sources]
    yield ("seed", ""), ", ".join(str(suite.seed) for suite in suites)
    for entry_ in suites[0].entries:
        yield ("repeats", entry_.name), str(sum(_repeats(suite, entry_.name) for suite in suites))
    played = [played_versions(one) for one in manifests]
    for name in dict.fromkeys(name for one in played for name in one):
        versions = dict.fromkeys(one.get(name, MISSING) for one in played)
        yield (f"version of {name}", ""), ", ".join(versions)


def _repeats(suite: Suite, entry: str) -> int:
    return sum(one.repeats for one in suite.entries if one.name == entry)


def _flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _flatten(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _text(item)


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
