"""Schemas of the files in the folder of an evaluation run, for the reference pages."""

from __future__ import annotations

from collections.abc import Mapping

from ..agents.episode import Episode
from ..envs.docstrings import fields_of, meanings
from .store import EpisodeKey, Result

RUN_FILE: Mapping[str, str] = {
    "schema": "Version of the files of a run; 1 where it is absent. Runs of older versions are migrated when"
    " they are read, and runs of newer versions are refused.",
    "suite": "The suite with all its settings, in the form of its YAML file; settings with their default are"
    " left out.",
    "data": "By entry that generates its data in the place of a benchmark's files: the name of that data.",
    "agents": "Names of the agents, in the order of playing.",
    "identities": "By agent: everything that decides its episodes (engine, model with a digest of its files,"
    " server, sampling, dialogue with its settings, template, examples); for agents without a model, their"
    " settings other than secrets. A run is resumed only with the same.",
    "settings": "By language agent and entry: sampling, dialogue and number of examples.",
    "budgets": "By agent and entry: the agent's own limits, `max_turns` and `max_actions`, where it has any.",
    "uses_success_labels": "Names of the agents that use the success reported by the environment, for example"
    " to retry.",
    "uses_simulator": "Names of the agents that search with the environment as a simulator.",
    "expected": "By entry: number of episodes per agent.",
    "tasks": "By entry: digest of its tasks. A run is resumed only with the same.",
    "sessions": "Calls that played episodes: date and command, without credentials, and the versions, if they are"
    " not those of the first call.",
    "versions": "Versions of Arboretum, Python, Gymnasium and NumPy in the first call, and digests of the code of"
    " users' environments.",
    "entries": "By entry: limits of steps (`by task` if they depend on it) and turns, origin of the tasks, and"
    " split. A run is resumed only with the same limits. `live` is true if opening a task twice gives different"
    " observations. If a replacement was played because files were missing: its note (`replaced`) and the files"
    " (`missing`).",
}
"""Keys of `run.json`."""

EXCHANGE: Mapping[str, str] = {
    "turn": "Index of the turn in which the request was made.",
    "purpose": "Purpose of a separate request, such as `reflection`. Absent in the episode's own conversation.",
    "keep": "`[m, n]`: the request begins with the first m and then the last n messages of the request of the same"
    " purpose before it. Absent if it begins with all of them.",
    "add": "Further messages, as `[role, content]`. The content is a text; a list of texts and of indices of turns"
    " whose observations stand there; `null` for the reply of the request before; or `{text, after}`: the text of"
    " that digest in `texts.jsonl`, then the rest.",
    "prefill": "Forced beginning of the reply. Absent if it is that of the request before.",
    "reply": "Reply. Absent if it is that of the turn.",
    "finish": 'Reason for the end of the reply. Absent for "stop".',
}
"""Keys of an entry of `exchanges`; see `pack_exchanges`."""

_HEAD = {"return": "total_reward", "turn_count": "turns"}
"""Keys of a line's head whose attributes of `Result` have other names."""

_CHECKSUM = "CRC-32 of all bytes of the line before this key, as eight hexadecimal digits."


def episode_keys() -> dict[str, str]:
    """Return the keys of a line of `episodes.jsonl` in their order, with their meanings."""
    key, head, episode = meanings(EpisodeKey), meanings(Result), meanings(Episode)
    names = ("success", "return", "steps", "turn_count", "invalid", "truncated", "seconds", "error", "details")
    found = {name: key[name] for name in EpisodeKey._fields}
    found["seed"] = head["seed"]
    found |= {name: head[_HEAD.get(name, name)] for name in names}
    found |= {field.name: episode[field.name] for field in fields_of(Episode) if field.name not in found}
    found["turns"] = f"{episode['turns']} See below."
    found["trials"] = f"{episode['trials']} Absent if there are none."
    found["exchanges"] = f"{episode['exchanges']} See below. Absent for agents without a model."
    found["trace"] = f"{episode['trace']} Absent if there is none."
    return {**found, "crc": _CHECKSUM}
