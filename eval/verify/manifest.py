"""Manifests of OpenEnv for verified environments: `openenv.yaml`, and the state of a solved episode.

They describe an environment with the rewards of `reward_mode="sparse"`: 1.0 at a successful end and 0.0 otherwise,
so that the maximum, which the oracle reaches, is the same everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ...envs.errors import ConfigurationError
from ...envs.registry import make_env
from ...envs.seeding import stable_seed
from .checks import FLOOR_MARGIN, Finding
from .episodes import record

MANIFEST, ORACLE = "openenv.yaml", "oracle.json"

_ATTEMPTS = 100
"""Seeds that are tried for a success of the expert, which chance can prevent."""


def write_manifest(folder: Path, env: str, kwargs: Mapping[str, Any], findings: Mapping[str, Finding]) -> None:
    """Write the manifest of an environment and the oracle that it names.

    Args:
        folder: Folder of the two files; it is created.
        env: Id of the environment.
        kwargs: Its arguments.
        findings: Findings of a verification that passed, by the names of the checks.

    Raises:
        ConfigurationError: The expert succeeds with none of the seeds.
    """
    from ... import __version__

    pinned = findings["static.task_distribution_pinning"].measured
    manifest = {
        "spec_version": 1,
        "name": env,
        "version": __version__,
        "validation": {
            "reward": {"range": [0.0, 1.0], "oracle_tolerance": 0.0, "floor_margin": FLOOR_MARGIN},
            "resources": {"cpu": 1.0, "memory_mb": 1024, "disk_mb": 512, "episode_timeout_s": 600.0},
            "capabilities": {
                "oracle": {"form": "injected_state", "location": ORACLE},
                "verifier": {"kind": "reward_channel"},
                "set_state": True,
                "task_api": True,
                "declared_task_count": {str(kwargs.get("split") or "all"): pinned["tasks"]},
            },
            "task_distribution": {"dataset_version": pinned["pin"]},
            "network": {"mode": "no-network"},
            "types": {"tags": ["text"]},
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    oracle = json.dumps(solved_state(env, kwargs), indent=1)
    (folder / ORACLE).write_text(oracle + "\n", encoding="utf-8")


def solved_state(env: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of an episode that the expert solved, as `reset(injected_state=…)` takes it.

    Raises:
        ConfigurationError: The expert succeeds with none of the seeds.
    """
    made = make_env(env, **kwargs)
    for number in range(_ATTEMPTS):
        seed = stable_seed("oracle", number) >> 33
        made.reset(seed=seed)
        played = record(made, made.task, seed, lambda env: (env.expert_actions() or [""])[0])
        if dict(played.steps[-1].info)["success"]:
            return {"env": env, "task": played.task, "seed": seed, "actions": list(played.actions)}
    raise ConfigurationError(f"{env}: the expert solves none of {_ATTEMPTS} episodes, so there is no oracle.")
