"""What the tests of training share: a tiny model that has been shown how to act, once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DIALOGUE = {"max_turns": 3, "max_actions_per_turn": 2, "max_actions": 6, "show_reward": False}
WORLD = "TextFrozenLake-v0"


def lesson(model: Path, out: Path, **options: Any) -> Any:
    """A short warm start."""
    from arboretum.trainers.config.run import Lesson
    from arboretum.trainers.config.settings import Hardware, Speech, World
    from arboretum.trainers.sampling.demonstrations import Expert

    settings: dict[str, Any] = {
        "speech": Speech("no_think", DIALOGUE),
        "hardware": Hardware(device="cpu"),
        "expert": Expert(noise=0.5, keep="all"),
        "episodes": 160,
        "epochs": 2,
        "batch": 16,
        "lr": 3e-3,
        "warmup": 3,
    }
    return Lesson(World(WORLD), str(model), out, **{**settings, **options})


@pytest.fixture(scope="session")
def warm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random model after a few seconds of expert episodes on FrozenLake."""
    for module in ("torch", "transformers", "tokenizers", "accelerate"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum[lm]'")
    import torch

    from arboretum.eval.bench.tiny import make_tiny_model
    from arboretum.trainers.sft import Tuning

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("warm")
    tuning = Tuning(lesson(make_tiny_model(root / "tiny"), root))
    for _ in tuning.go():
        pass
    return tuning.export()


@pytest.fixture
def run_of(warm_model: Path, tmp_path: Path) -> Callable[..., Any]:
    """Makes a `Run` of a recipe on a small world in `tmp_path`, with other settings where they are given."""
    from arboretum.trainers.algorithms.recipes import RECIPES
    from arboretum.trainers.config.run import Run
    from arboretum.trainers.config.settings import Hardware, Speech, Validation, World

    def make(recipe: str, changes: dict[str, object] | None = None, **options: Any) -> Run:
        small: dict[str, object] = {
            "sampler.prompts": 3,
            "sampler.rollouts": 4,
            "sampler.reply_tokens": 12,
            "sampler.max_turns": 3,
            "sampler.max_actions_per_turn": 2,
            "sampler.max_actions": 6,
            "sampler.think": None,
            "optimisation.updates": 2,
            "optimisation.warmup": 0,
            "optimisation.lr": 3e-4,
            "optimisation.episodes_per_step": 6,
        }
        settings: dict[str, Any] = {
            "model": str(warm_model),
            "out": tmp_path / "run",
            "world": World(WORLD),
            "speech": Speech("no_think", {"show_reward": False}),
            "hardware": Hardware(device="cpu"),
            "validation": Validation(every=2, tasks=6),
        }
        return Run(
            RECIPES[recipe].changed({**small, **(changes or {})}),
            **{**settings, **options},
        )

    return make
