"""Gradients of several credit rules on the same episodes of a warm start; runs in a worker process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from ...agents.forks import Keep
from ...envs.files import write_atomic
from ..algorithms.credit.base import Credit
from ..algorithms.credit.group import Group
from ..algorithms.objectives.penalties import apply_overlong_penalty
from ..algorithms.schedules import Linear
from ..algorithms.selectors import select_groups
from ..checkpoints.components import Components, build_components
from ..config.run import TrainingConfig
from ..data.rollouts import Rollouts
from ..learning.learner import Learner
from ..learning.optimizer import PolicyOptimizer, Step
from ..sampling.policy_probe import LearnerProbe
from ..state import TrainerState
from .definition import Study, Trial

COUNTER_FILE = "batches.txt"


@dataclass(frozen=True)
class _KeepAll(Group):
    """Credit rule of a run whose episodes several rules read: records what any of them needs."""

    kept: frozenset[Keep] = frozenset()
    drawn: int = 0

    @property
    def keep(self) -> frozenset[Keep]:
        return self.kept

    @property
    def redraws(self) -> int:
        return self.drawn


class GradientRecorder(PolicyOptimizer):
    """Optimizer that records the gradient of each step, flat and in float32, and leaves the weights alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._recorded: list[Tensor] = []

    def step(self) -> Step:
        parameters = [weight for group in self.param_groups for weight in group["params"]]
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        self._recorded.append(torch.cat([part.flatten().float() for part in parts]))
        self.torch_optimizer.zero_grad()
        return Step(0.0, 0.0, False)

    def take(self) -> Tensor:
        """Return the gradient of the step since the last call; zeros if there was none."""
        if self._recorded:
            return self._recorded.pop()
        return torch.zeros(sum(one.numel() for group in self.param_groups for one in group["params"]))


def measure_gradients(study: Study, env: str, credits: Mapping[str, Credit], batches: int, path: Path) -> None:
    """Write the dot products [rules, rules, batches, batches] of all gradients to a JSON file.

    Every batch has as many episodes as an update of the study's first recipe, and all of them are in one step. The
    gradient is the loss's, without clipping: that of the recipe's objective before its first step.

    Args:
        study: Study whose warm start plays, under the settings of its first recipe.
        env: Environment of the study.
        credits: Credit rules by name.
        batches: Number of batches.
        path: File to write. Until it is complete, a file beside it has the number of batches so far.
    """
    torch.set_num_threads(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    counter = path.with_name(COUNTER_FILE)
    with TemporaryDirectory() as folder:
        config = study.config(Trial(env, next(iter(study.recipes)), seed=0), Path(folder))
        keep = _KeepAll(
            kept=frozenset[Keep]().union(*(credit.keep for credit in credits.values())),
            drawn=max(credit.redraws for credit in credits.values()),
        )
        one_step = replace(config.recipe.optimization, passes=1, episodes_per_step=None)
        recipe = replace(config.recipe, credit=keep, critic=None, optimization=one_step)
        config = replace(config, recipe=recipe)
        components = build_components(config, TrainerState(), None)
        try:
            gradients = []
            for row in _gradients(config, components, list(credits.values()), batches):
                gradients.append(row)
                write_atomic(counter, f"{len(gradients)}\n")
        finally:
            components.sampler.engine.close()
            counter.unlink(missing_ok=True)
    stacked = torch.stack([torch.stack(row) for row in zip(*gradients, strict=True)])
    products = sum(
        torch.einsum("anw,bmw->abnm", part, part) for part in map(Tensor.double, stacked.split(1 << 16, dim=-1))
    )
    found = {
        "rules": {name: str(credit) for name, credit in credits.items()},
        "products": torch.as_tensor(products).tolist(),
    }
    write_atomic(path, json.dumps(found))


def read_products(path: Path, credits: Mapping[str, Credit], batches: int) -> np.ndarray | None:
    """Return the dot products of a file of `measure_gradients`; None if it has none of these rules and batches."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        products = np.asarray(found["products"], dtype=np.float64)
        rules = list(found["rules"].items())  # The products are in their order.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_same = rules == [(name, str(credit)) for name, credit in credits.items()]
    return products if is_same and products.shape == (*[len(credits)] * 2, *[batches] * 2) else None


def read_counter(folder: Path) -> int:
    """Return the number of batches of a measurement in progress; 0 before the first."""
    try:
        return int((folder / COUNTER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0


def _gradients(
    config: TrainingConfig, components: Components, credits: list[Credit], batches: int
) -> Iterator[list[Tensor]]:
    """Yield the gradient of each rule for one batch after the other."""
    recipe, original = components.learner.recipe, components.optimizer
    recorder = GradientRecorder(original.accelerator, original.policy, original.optimization)
    learners = [
        Learner(
            replace(recipe, credit=credit),
            recorder,
            components.learner.reference,
            microbatch_tokens=config.hardware.microbatch_tokens,
            seed=config.seed,
            reuse_sampler_logprobs=components.learner.reuse_sampler_logprobs,
            share_prefixes=config.hardware.share_prefixes,
        )
        for credit in credits
    ]
    scheduled = recipe.sampler.temperature
    temperature = scheduled.at(0, 1) if isinstance(scheduled, Linear) else scheduled
    for number in range(batches):
        collected = components.collector.collect(temperature)
        if not collected.kept:
            yield [recorder.take() for _ in learners]
            continue
        selected = select_groups(collected.batches, collected.kept)
        selected = recipe.rewards.apply(apply_overlong_penalty(selected, recipe.overlong))
        row = []
        for learner in learners:
            credit = learner.recipe.credit
            probe = LearnerProbe(learner, components.sampler, temperature) if credit.needs_policy else None
            learner.update(
                _with_redraws(selected, credit.redraws),
                update=number,
                temperature=temperature,
                scale=collected.scale,
                policy=probe,
            )
            row.append(recorder.take())
        yield row


def _with_redraws(rollouts: Rollouts, count: int) -> Rollouts:
    """Return rollouts with the first `count` redrawn outcomes of each turn, as if no more had been drawn."""
    if rollouts.turn_redraws is None:
        return rollouts
    kept = tuple(redraws[:count] for redraws in rollouts.turn_redraws) if count else None
    return replace(rollouts, turn_redraws=kept)
