"""What the tests of training share: a tiny model that has been shown how to act, once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DIALOGUE = {"max_turns": 3, "max_actions_per_turn": 2, "max_actions": 6, "show_reward": False}
ENV = "TextFrozenLake-v0"


def sft_config(model: Path, out: Path, **options: Any) -> Any:
    """A short warm start."""
    from arboretum.trainers.config.run import SFTConfig
    from arboretum.trainers.config.settings import (
        DialogueConfig,
        EnvConfig,
        ExpertConfig,
        HardwareConfig,
        SFTSettings,
    )

    settings: dict[str, Any] = {
        "dialogue": DialogueConfig("no_think", DIALOGUE),
        "hardware": HardwareConfig(device="cpu"),
        "expert": ExpertConfig(noise=0.5, keep="all"),
    }
    sft: dict[str, Any] = {"episodes": 160, "epochs": 2, "batch": 16, "lr": 3e-3, "warmup": 3}
    sft |= {name: options.pop(name) for name in [*options] if name in SFTSettings.__dataclass_fields__}
    return SFTConfig(EnvConfig(ENV), str(model), out, sft=SFTSettings(**sft), **{**settings, **options})


@pytest.fixture(scope="session")
def warm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random model after a few seconds of expert episodes on FrozenLake."""
    for module in ("torch", "transformers", "tokenizers", "accelerate"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum[lm]'")
    import torch

    from arboretum.eval.bench.tiny import make_tiny_model
    from arboretum.trainers.sft import SFTTrainer

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("warm")
    trainer = SFTTrainer(sft_config(make_tiny_model(root / "tiny"), root))
    for _ in trainer.run():
        pass
    return trainer.export()


@pytest.fixture
def run_of(warm_model: Path, tmp_path: Path) -> Callable[..., Any]:
    """Makes a `Run` of a recipe on a small world in `tmp_path`, with other settings where they are given."""
    from arboretum.trainers.algorithms.recipes import RECIPES
    from arboretum.trainers.config.run import TrainingConfig
    from arboretum.trainers.config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig

    def make(recipe: str, changes: dict[str, object] | None = None, **options: Any) -> TrainingConfig:
        small: dict[str, object] = {
            "sampler.prompts": 3,
            "sampler.rollouts": 4,
            "sampler.reply_tokens": 12,
            "sampler.max_turns": 3,
            "sampler.max_actions_per_turn": 2,
            "sampler.max_actions": 6,
            "sampler.think": None,
            "optimization.updates": 2,
            "optimization.warmup": 0,
            "optimization.lr": 3e-4,
            "optimization.episodes_per_step": 6,
        }
        settings: dict[str, Any] = {
            "model": str(warm_model),
            "out": tmp_path / "run",
            "env": EnvConfig(ENV),
            "dialogue": DialogueConfig("no_think", {"show_reward": False}),
            "hardware": HardwareConfig(device="cpu"),
            "validation": ValidationConfig(every=2, tasks=6),
        }
        return TrainingConfig(
            RECIPES[recipe].with_settings({**small, **(changes or {})}),
            **{**settings, **options},
        )

    return make
