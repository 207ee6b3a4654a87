"""Identity of an evaluated agent: every setting that decides its episodes, stored in `run.json`.

A run is resumed only with agents of the same identity, so that the episodes of two models, or of two settings of
one model, are never shown as one result.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ..agents.dialogue import Dialogue
from ..agents.engines.shipped_models import CHECKSUMS_FIX, DIALOGUE_KEY, model_source
from ..agents.tokens.templates import shipped_templates
from ..envs.addresses import identifying_url
from ..envs.checks import first_difference
from ..envs.checksums import SUMS_FILE, read_checksums
from .plain import to_plain

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
_CONFIGURATION = ("*.json", "*.jinja", "*.model", "*.txt")
_SUITE_OPTIONS = (
    (r"seed", "--seed"),
    (r"entries\[\d+\]\.tasks", "--limit"),
    (r"entries\[\d+\]\.repeats", "--repeats"),
)
"""Keys of a suite, and the options that change them."""
_ENV_OPTIONS = ((r"entries\[1\]\.split", "--split"), (r"entries\[1\]\.kwargs\.(\w+)", r"--env-arg \1"))
"""Keys of the suite of one environment, and the options that set them."""
_METADATA = (DIALOGUE_KEY, "transformers_version")
"""Keys of `config.json` that do not change what a model replies."""
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
        identity["server"] = identifying_url(base_url)
    kept = {name: value for name, value in sorted(options.items()) if name not in _NEUTRAL_OPTIONS}
    if kept:
        identity["options"] = to_plain(kept)
        adapter = Path(str(kept.get("adapter") or ""))
        if kept.get("adapter") and adapter.is_dir():
            identity["adapter"] = digest_model(adapter)
    return identity


def suite_difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first difference of two suites as plain data, with the option that leads to it; None without one.

    Args:
        was: Suite of an existing run.
        now: Suite of a new run.
    """
    difference = first_difference(was, now)
    if difference is None:
        return None
    key, _, values = difference.partition(" was ")
    is_env = [now["name"]] == [entry["env"] for entry in now["entries"]]
    for pattern, option in (*_SUITE_OPTIONS, *(_ENV_OPTIONS if is_env else ())):
        if found := re.fullmatch(pattern, key):
            place = "" if is_env or key == "seed" else f", or {key} of the suite,"
            return f"{found.expand(option)}{place} was {values}"
    return difference


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
    identity = {**model, "sampling": to_plain(sampling), "settings": to_plain(settings)}
    template = settings.get("template")
    if template is not None and str(template) not in shipped_templates() and Path(template).is_file():
        identity["template"] = hashlib.sha256(Path(template).read_bytes()).hexdigest()
    if is_dataclass(dialogue) and not isinstance(dialogue, type):
        values = {field.name: getattr(dialogue, field.name) for field in fields(dialogue)}
        identity["dialogue"] = to_plain({"name": getattr(dialogue, "name", type(dialogue).__name__), **values})
    return identity


def digest_model(folder: Path) -> str:
    """Return a SHA-256 digest of a model's weights, configuration and tokenizer.

    Files that the folder's `SHA256SUMS` names are verified against it, which does not read large ones again.

    Raises:
        DataError: A file differs from its checksum.
    """
    model_source(folder)
    known = read_checksums(folder, CHECKSUMS_FIX) if (folder / SUMS_FILE).exists() else {}
    digest = hashlib.sha256()
    for pattern in (*_WEIGHTS, *_CONFIGURATION):
        for path in sorted(folder.glob(pattern)):
            digest.update(path.name.encode())
            if path.name == "config.json":
                digest.update(hashlib.sha256(_without_metadata(path.read_bytes())).digest())
            elif path.name in known:
                digest.update(bytes.fromhex(known[path.name]))
            else:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _without_metadata(config: bytes) -> bytes:
    try:
        values = json.loads(config)
    except ValueError:
        return config
    if not isinstance(values, dict):
        return config
    return json.dumps({k: v for k, v in values.items() if k not in _METADATA}, sort_keys=True).encode()


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
