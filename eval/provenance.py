"""Provenance of a run: the commands that played it, and the settings of its agents, for the head of a report."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..agents.dialogue import Dialogue
from ..agents.dialogue.registry import dialogue_path
from ..agents.engines.base import Sampling
from .manifest import BY_TASK
from .plain import hide_secrets_in_text

_ADDRESS = re.compile(r"([a-z][\w+.-]*://)(?:[^/\s]*@)?([^\s?#]*)(?:[?#]\S*)?", re.IGNORECASE)


def describe_session(arguments: Sequence[str] | None) -> dict[str, str]:
    """Return the time and the command of a call that plays a run, as plain data without secrets.

    Args:
        arguments: Arguments of the `arboretum` command; None if the call came from Python.
    """
    session = {"started": datetime.now(UTC).isoformat(timespec="seconds")}
    if arguments is not None:
        session["command"] = shlex.join(["arboretum", *map(remove_secrets, arguments)])
    return session


def remove_secrets(argument: str) -> str:
    """Return an argument without keys, and without user names, queries and fragments of addresses."""
    return _ADDRESS.sub(r"\1\2", hide_secrets_in_text(argument))


def describe_settings(dialogue: Dialogue, sampling: Sampling, examples: int) -> dict[str, Any]:
    """Return the settings of a language agent in an entry as plain data.

    Args:
        dialogue: The dialogue.
        sampling: The sampling settings, without the dialogue's stop texts.
        examples: Number of solved tasks in the system message.
    """
    path = dialogue_path(dialogue)
    return {
        "dialogue": {
            "name": dialogue.name,
            **({} if path is None else {"class": path}),
            **dataclasses.asdict(dialogue),
        },
        "sampling": dataclasses.asdict(sampling),
        "examples": examples,
    }


CODE = "code"
"""Word before the digest of a class's code, its version."""


def edited_code(manifest: Mapping[str, Any]) -> list[str]:
    """Return the names of the users' classes whose code differed between the calls that played a run."""
    versions = played_versions(manifest)
    return [name for name, version in versions.items() if version.count(f"{CODE} ") > 1]


def edited_since(manifest: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Return the names of the users' classes whose code is none of those that played a run.

    Args:
        manifest: Content of `run.json`.
        now: Versions of today, by name.
    """
    before = played_versions(manifest)
    return [
        name
        for name, version in now.items()
        if version.startswith(f"{CODE} ") and version not in before.get(name, version)
    ]


def played_versions(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions with which a run was played, by name; several are joined by "and".

    Args:
        manifest: Content of `run.json`.
    """
    of_calls = [one.get("versions", {}) for one in (manifest, *manifest.get("sessions", ()))]
    names = dict.fromkeys(name for versions in of_calls for name in versions)
    return {
        name: " and ".join(dict.fromkeys(versions[name] for versions in of_calls if name in versions))
        for name in names
    }


def describe_run(manifest: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the facts of a run that the head of a report shows: label and lines of each.

    Args:
        manifest: Content of `run.json`. Facts that it lacks, because an older version wrote it, are left out.
    """
    facts: list[tuple[str, list[str]]] = []
    for name, identity in manifest.get("identities", {}).items():
        if identity:
            facts.append((name, _model_lines(identity)))
        settings = manifest.get("settings", {}).get(name, {})
        if settings:
            facts.append(("sampling", _by_entry(settings, lambda one: _sampling_line(one["sampling"]))))
            facts.append(("dialogue", _by_entry(settings, _dialogue_line)))
    entries = manifest.get("entries", {})
    if entries:
        facts.append(("limits of an episode", _by_entry(entries, _limits_line)))
        facts.append(("data", _by_entry(entries, _data_line)))
    sessions = manifest.get("sessions", [])
    facts.append(
        ("played", [session["started"].replace("T", " ").replace("+00:00", " UTC") for session in sessions])
    )
    facts.append(("command", list(dict.fromkeys(s["command"] for s in sessions if "command" in s))))
    facts.append(
        ("versions", [", ".join(f"{name} {version}" for name, version in played_versions(manifest).items())])
    )
    return [(label, [line for line in lines if line]) for label, lines in facts if any(lines)]


def _model_lines(identity: Mapping[str, Any]) -> list[str]:
    lines = []
    if "engine" in identity:
        place = f" at {identity['server']}" if "server" in identity else ""
        lines.append(f"model {identity.get('model')}, engine {identity['engine']}{place}")
    elif "class" in identity:  # An agent without a model, which the caller has made.
        lines.append(f"class {identity['class']}")
    lines += [f"{part}: SHA-256 {identity[part][:16]}…" for part in ("weights", "adapter") if part in identity]
    for key in ("options", "settings"):
        if identity.get(key):
            lines.append(", ".join(f"{name} {value}" for name, value in identity[key].items()))
    return lines


def _sampling_line(sampling: Mapping[str, Any]) -> str:
    words = ["greedy" if sampling["temperature"] == 0 else f"temperature {sampling['temperature']:g}"]
    if sampling["top_p"] != 1:
        words.append(f"top-p {sampling['top_p']:g}")
    if sampling["top_k"]:
        words.append(f"top-k {sampling['top_k']}")
    words.append(f"at most {sampling['max_tokens']} tokens a reply")
    if sampling["stop"]:
        words.append("stop texts " + " ".join(repr(text) for text in sampling["stop"]))
    return ", ".join(words)


def _dialogue_line(settings: Mapping[str, Any]) -> str:
    dialogue = settings["dialogue"]
    history = dialogue["history"]
    words = [
        dialogue["name"],
        "whole history" if history == "full" else f"history {history} of {dialogue['window']}",
    ]
    for key in ("max_turns", "max_actions"):
        if dialogue[key] is not None:
            words.append(f"at most {count_words(dialogue[key], key)}")
    count = dialogue["max_actions_per_turn"]
    words.append("one action a turn" if count == 1 else f"at most {count} actions a turn")
    if settings["examples"]:
        words.append(count_words(settings["examples"], "solved examples"))
    return ", ".join(words)


def count_words(count: int, name: str) -> str:
    """Return a limit such as `max_turns` in words: "5 turns" or "1 turn"."""
    words = name.removeprefix("max_")
    return f"{count} {words.removesuffix('s') if count == 1 else words}"


def _limits_line(entry: Mapping[str, Any]) -> str:
    limits = {key: entry[key] for key in ("max_steps", "max_turns") if entry.get(key)}
    found = ["steps by task" if limit == BY_TASK else count_words(limit, key) for key, limit in limits.items()]
    return " and ".join(found) or "none"


def _data_line(entry: Mapping[str, Any]) -> str:
    split = f", split {entry['split']}" if entry.get("split") else ""
    return f"{entry['tasks']}{split}"


def _by_entry(values: Mapping[str, Any], describe: Callable[[Any], str]) -> list[str]:
    """Return the distinct descriptions of all entries, each with the names of its entries if there are several."""
    entries: dict[str, list[str]] = {}
    for entry, value in values.items():
        entries.setdefault(describe(value), []).append(entry)
    if len(entries) == 1:
        return list(entries)
    return [f"{text} ({', '.join(names)})" for text, names in entries.items()]
