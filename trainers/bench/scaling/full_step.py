"""Prediction of a whole training step against a measured one, which the fit has not seen."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from ....agents.engines.shipped_models import SAPLING
from ....agents.engines.transformers import TransformersEngine
from ....agents.play import Job, play
from ....agents.registry import make_agent
from ....envs.registry import make_env
from ....eval.bench.threads import one_thread
from ...algorithms.recipes import RECIPES
from ...config.run import TrainingConfig
from ...config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig
from ...trainer import Trainer
from .cluster import Cluster
from .costs import Costs
from .episodes import Lengths, episode_lengths
from .fit import StepComparison
from .model_shape import find_shape
from .simulate import Schedule, simulate

_ENV = "TextSokoban-v0"
_PROMPTS, _ROLLOUTS, _TURNS, _REPLY = 4, 8, 5, 24


def compare_step(costs: Costs, updates: int = 6) -> StepComparison:
    """Train the sapling on one thread, simulate the same schedule, and return both times of an update.

    GRPO on 4 × 8 episodes of Sokoban with at most five turns. The simulation draws from episodes that the sapling
    plays in other levels, with the lengths of its replies.

    Args:
        costs: Fitted costs of this device.
        updates: Updates of the run, of which the first is not counted.
    """
    with one_thread():
        measured = _train(updates)
        lengths = _play()
    batch = _PROMPTS * _ROLLOUTS
    # The sampler's log-probabilities are used, so nothing is scored before the update.
    cluster = Cluster(find_shape(SAPLING), costs, microbatch_tokens=2048, scores=0)
    result = simulate(cluster, Schedule(batch, 1, slots=batch, rollouts=_ROLLOUTS, environments="inline"), lengths)
    return StepComparison(result.seconds, measured)


def _train(updates: int) -> float:
    recipe = RECIPES["grpo"].with_settings(
        {
            "sampler.prompts": _PROMPTS,
            "sampler.rollouts": _ROLLOUTS,
            "sampler.reply_tokens": _REPLY,
            "sampler.max_turns": _TURNS,
            "objective.kl.coef": 0.0,
            "optimization.updates": updates,
            "optimization.episodes_per_step": _PROMPTS * _ROLLOUTS,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            TrainingConfig(
                recipe,
                EnvConfig(_ENV),
                SAPLING,
                Path(folder) / "run",
                dialogue=DialogueConfig("no_think"),
                hardware=HardwareConfig(device="cpu"),
                validation=ValidationConfig(every=0),
            )
        )
        try:
            for _ in trainer.run():
                pass
        finally:
            trainer.close()
    return statistics.median(metrics["cpu_seconds"] for metrics in trainer.history[1:])


def _play() -> list[Lengths]:
    engine = TransformersEngine(SAPLING, device="cpu", max_batch=32)
    agent = make_agent(
        "no_think",
        engine=engine,
        sampling={"max_tokens": _REPLY, "temperature": 1.0},
        dialogue={"max_turns": _TURNS},
    )
    envs = [make_env(_ENV) for _ in range(32)]
    episodes = list(play(agent, envs, [Job(None, 10_000 + n) for n in range(64)]))
    engine.close()
    # The harness is measured with its environment; counting the environment again would count it twice.
    return [tuple(turn._replace(env_seconds=0.0) for turn in one) for one in episode_lengths(episodes)]
