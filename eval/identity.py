"""Identity of an evaluated agent: every setting that decides its episodes, stored in `run.json`.

A run is resumed only with agents of the same identity, so that the episodes of two models, or of two settings of
one model, are never shown as one result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ..agents.dialogue import Dialogue
from ..agents.engines.shipped_models import model_source
from ..envs.http_client import public_url

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
_CONFIGURATION = ("*.json", "*.jinja", "*.model", "*.txt")
_NEUTRAL_OPTIONS = {
    *("api_key", "attempts", "concurrency", "deadline", "headers", "timeout"),
    *("cache", "cost_limit", "prices"),
    *("cache_tokens", "device", "gpu_memory_utilization", "max_batch", "max_num_seqs", "name"),
}
"""Options of engines that change cost, speed or error handling, but not what a model replies."""


def identify_model(engine: str, model: str, base_url: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what determines the replies of a model, as plain data.

    Args:
        engine: Name of the engine.
        model: Folder of the model, or its name.
        base_url: Address of the model's server; None for the engine's default.
        options: Further options of the engine; those that cannot change replies are left out.
    """
    identity: dict[str, Any] = {"engine": engine, "model": model}
    folder = Path(model_source(model))
    if folder.is_dir():
        identity["model"] = os.path.normpath(model)
        identity["weights"] = digest_model(folder)
    if base_url is not None:
        identity["server"] = public_url(base_url)
    kept = {name: value for name, value in sorted(options.items()) if name not in _NEUTRAL_OPTIONS}
    if kept:
        identity["options"] = _plain(kept)
        adapter = Path(str(kept.get("adapter") or ""))
        if kept.get("adapter") and adapter.is_dir():
            identity["adapter"] = digest_model(adapter)
    return identity


def identify_agent(
    dialogue: Dialogue, model: Mapping[str, Any], sampling: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what determines the episodes of a language agent, as plain data.

    Args:
        dialogue: The agent's dialogue, with the settings of no suite.
        model: Result of `identify_model`.
        sampling: Sampling settings of the command line.
        settings: Further settings of the command line, such as the chat template and the number of examples.
    """
    identity = {**model, "sampling": _plain(sampling), "settings": _plain(settings)}
    if is_dataclass(dialogue) and not isinstance(dialogue, type):
        values = {field.name: getattr(dialogue, field.name) for field in fields(dialogue)}
        identity["dialogue"] = _plain({"name": getattr(dialogue, "name", type(dialogue).__name__), **values})
    return identity


def digest_model(folder: Path) -> str:
    """Return a SHA-256 digest of a model's weights, configuration and tokenizer."""
    digest = hashlib.sha256()
    for pattern in (*_WEIGHTS, *_CONFIGURATION):
        for path in sorted(folder.glob(pattern)):
            digest.update(path.name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def model_label(model: str) -> str:
    """Return a short name of a model for tables: the last part of its path or name.

    The folder that training writes is called `model`, so the name of its run stands in its place.
    """
    parts = [part for part in model.replace("\\", "/").split("/") if part not in ("", ".")]
    if len(parts) > 1 and parts[-1] == "model":
        return parts[-2]
    return parts[-1] if parts else model


def short_digest(identity: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits that tell identities apart in the names of folders."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str, sort_keys=True))
