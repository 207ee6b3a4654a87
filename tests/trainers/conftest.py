"""Fixtures that the tests of training share: a small warm-started model, and configurations of small runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from support.sessions import session_folder

ENV = "TextFrozenLake-v0"
DIALOGUE = {"max_turns": 3, "max_actions_per_turn": 2, "max_actions": 6, "show_reward": False}
SMALL_RUN: dict[str, object] = {
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
"""Settings of every recipe, by path; recipes that sample trees have no `sampler.rollouts`."""


@pytest.fixture(scope="session")
def warm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model, fine-tuned from random weights on expert episodes of FrozenLake.

    The folder of the fine-tuning run is its parent. One worker of a test session makes it for all, and tests must
    not write into it. They are skipped where the extra `lm` is not installed.
    """
    for module in ("torch", "transformers", "tokenizers", "accelerate"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")
    import torch

    torch.set_num_threads(1)
    root = session_folder(tmp_path_factory) / "warm"
    with FileLock(f"{root}.lock"):
        if not (root / "model").exists():
            _fine_tune(root)
    return root / "model"


def _fine_tune(root: Path) -> None:
    from arboretum.eval.bench.tiny import make_tiny_model
    from arboretum.trainers.config.run import SFTConfig
    from arboretum.trainers.config.settings import (
        DialogueConfig,
        EnvConfig,
        ExpertConfig,
        HardwareConfig,
        SFTSettings,
    )
    from arboretum.trainers.sft import SFTTrainer

    config = SFTConfig(
        EnvConfig(ENV),
        str(make_tiny_model(root / "tiny")),
        root,
        dialogue=DialogueConfig("no_think", DIALOGUE),
        hardware=HardwareConfig(device="cpu"),
        expert=ExpertConfig(noise=0.5, keep="all"),
        sft=SFTSettings(episodes=160, epochs=2, batch=16, lr=3e-3, warmup=3),
    )
    trainer = SFTTrainer(config)
    for _ in trainer.run():
        pass
    trainer.export()


@pytest.fixture
def run_of(warm_model: Path, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that makes the `TrainingConfig` of a small run of a recipe, in `tmp_path / "run"`.

    Its arguments are the recipe's name, settings of the recipe by path, and fields of `TrainingConfig`.
    """
    from arboretum.trainers.algorithms.recipes import RECIPES
    from arboretum.trainers.algorithms.samplers import Trees
    from arboretum.trainers.config.run import TrainingConfig
    from arboretum.trainers.config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig

    def make(recipe: str, changes: dict[str, object] | None = None, **options: Any) -> TrainingConfig:
        settings: dict[str, Any] = {
            "model": str(warm_model),
            "out": tmp_path / "run",
            "env": EnvConfig(ENV),
            "dialogue": DialogueConfig("no_think", {"show_reward": False}),
            "hardware": HardwareConfig(device="cpu"),
            "validation": ValidationConfig(every=2, tasks=6),
        }
        small = dict(SMALL_RUN)
        if isinstance(RECIPES[recipe].sampler, Trees):
            del small["sampler.rollouts"]
        return TrainingConfig(
            RECIPES[recipe].with_settings({**small, **(changes or {})}), **{**settings, **options}
        )

    return make


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute on one thread, so that results do not depend on the number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
