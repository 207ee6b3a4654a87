"""Identity of agents and engines that the caller has made: their class and everything that decides their replies.

An object may name what decides its replies in an attribute `identity`, as plain data. Without it, an object whose
state is plain data is identified by it, counters and caches included; any other object has a random identity, so
that a stored run is resumed only with that same object.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from ..agents.base import Agent
from ..agents.dialogue.registry import dialogue_path
from ..agents.engines.base import Engine
from ..agents.engines.shipped_models import model_source
from ..agents.language import LanguageAgent
from .identity import identify_agent, identify_model
from .plain import object_id, to_plain

_LANGUAGE_STATE = {"name", "engine", "dialogue", "sampling", "demonstrations", "chat", "hold", "_held"}
"""Attributes of every language agent, which its identity describes by other means."""


def identify_given_agent(agent: Agent) -> dict[str, Any]:
    """Return what determines the episodes of an agent, as plain data; hashes the weights of a local model."""
    if not isinstance(agent, LanguageAgent):
        return _identify_object(agent, set())
    settings: dict[str, Any] = {"examples": agent.demonstrations.count if agent.demonstrations else 0}
    if agent.chat is not None:
        settings["template"] = hashlib.sha256(agent.chat.template_text.encode()).hexdigest()[:16]
    identity = identify_agent(
        agent.dialogue, identify_given_engine(agent.engine), dataclasses.asdict(agent.sampling), settings
    )
    path = dialogue_path(agent.dialogue)
    if path is not None:
        identity["dialogue"]["class"] = path
    return identity | _identify_object(agent, _LANGUAGE_STATE)


def identify_given_engine(engine: Engine) -> dict[str, Any]:
    """Return what determines the replies of an engine, as plain data; hashes the weights of a local model."""
    name = engine.name.partition(":")[2] or engine.name
    kind = type(engine).__name__
    identity: dict[str, Any] = {"engine": kind, "model": name}
    if not _is_shipped(engine):
        return identity | _identify_object(engine, set())
    model = getattr(engine, "model", None)
    if hasattr(model, "state_dict"):
        options = {"context": engine.context, "processed_logprobs": getattr(engine, "_processed_logprobs", False)}
        return identity | {"weights": _digest_weights(model), "options": options}
    if hasattr(engine, "base_url"):
        options = {
            key: value
            for key, attribute in (("extra", "_extra"), ("continue_prefill", "_continue_prefill"))
            if (value := getattr(engine, attribute, None))
        }
        address = f"{engine.base_url}{getattr(engine, 'query_mark', '')}"
        return identity | identify_model(kind, str(model), address, options)
    if Path(model_source(name)).is_dir():
        return identify_model(kind, name, None, {"context": engine.context})
    return identity | _identify_object(engine, set())


def _is_shipped(engine: Engine) -> bool:
    """Return True if the class of an engine is one of the package's."""
    return type(engine).__module__.startswith(Engine.__module__.rpartition(".")[0] + ".")


def _identify_object(value: object, described: set[str]) -> dict[str, Any]:
    """Return the class of an object and its `identity` or its attributes; a random value if they are not plain.

    Args:
        value: The object.
        described: Names of attributes to leave out.
    """
    kind = type(value)
    identity: dict[str, Any] = {"class": f"{kind.__module__}.{kind.__qualname__}"}
    own = getattr(value, "identity", None)
    if own is not None:
        return {**identity, "identity": to_plain(own)}
    state = {name: one for name, one in getattr(value, "__dict__", {}).items() if name not in described}
    try:
        if state:
            json.dumps(state)
            identity["state"] = to_plain(state)
    except (TypeError, ValueError, RecursionError):
        identity["object"] = object_id(value)
    return identity


def _digest_weights(model: Any) -> str:
    """Return a SHA-256 digest of the weights of a PyTorch model."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


__all__ = ["identify_given_agent", "identify_given_engine"]
