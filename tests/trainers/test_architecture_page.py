"""The numbers of one token that docs/architecture.md follows are those of the run that it names."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

for module in ("torch", "transformers", "accelerate"):
    pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")

import tyro

from arboretum.trainers.config.cli_options import TrainOptions

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
EPISODE, TOKEN = 62, 1015


def page() -> str:
    """Return the text of the page without line breaks, with the minus sign of code."""
    return " ".join(PAGE.read_text(encoding="utf-8").replace("−", "-").split())


def command() -> list[str]:
    """Return the arguments after `arboretum train` of the page's command."""
    found = re.search(r"\$ arboretum train (.*?) --out", page())
    assert found is not None
    return found[1].replace("\\ ", "").split()


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_page_follows_a_token_of_the_run_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arboretum.trainers.learning import token_loss
    from arboretum.trainers.learning.learner import Learner
    from arboretum.trainers.learning.optimizer import PolicyOptimizer
    from arboretum.trainers.trainer import Trainer

    prepared: list[tuple[Any, Any]] = []
    steps: list[list[Any]] = [[]]
    norms: list[float] = []
    prepare, policy_loss, step = Learner.prepare, token_loss.policy_loss, PolicyOptimizer.step

    def recording_prepare(self: Learner, rollouts: Any, **options: Any) -> Any:
        prepared.append((rollouts, prepare(self, rollouts, **options)))
        return prepared[-1][1]

    def recording_loss(objective: Any, tokens: Any, *rest: Any) -> Any:
        steps[-1].append(tokens)
        return policy_loss(objective, tokens, *rest)

    def recording_step(self: PolicyOptimizer) -> Any:
        taken = step(self)
        norms.append(taken.grad_norm)
        steps.append([])
        return taken

    monkeypatch.setattr(Learner, "prepare", recording_prepare)
    monkeypatch.setattr(token_loss, "policy_loss", recording_loss)
    monkeypatch.setattr(PolicyOptimizer, "step", recording_step)
    recipe, *arguments = command()
    options = ["--out", str(tmp_path), "--validation.every", "0"]
    trainer = Trainer(tyro.cli(TrainOptions, args=[*arguments, *options]).config(recipe))
    trainer.optimizer.policy.model.double()
    next(iter(trainer.run()))
    trainer.close()

    ((rollouts, made),) = prepared
    returns = rollouts.returns(penalties=True)
    group = returns[rollouts.group == rollouts.group[EPISODE]]
    mean, deviation, advantage = group.mean(), group.std(ddof=1), made.credit.advantages[TOKEN]
    assert advantage == pytest.approx((returns[EPISODE] - mean) / deviation, abs=1e-3)
    # The token is the one of its micro-batch with its log-probability before the update.
    batch = steps[2][2]
    (place,) = (abs(batch.old_logp - made.old_logprobs[TOKEN]) < 1e-6).nonzero()[:, 0].tolist()
    before, now = float(batch.old_logp[place]), float(batch.logp[place].detach())
    length = rollouts.episode_lengths[EPISODE]
    assert float(batch.weights[place]) == pytest.approx(1 / (32 * length))
    assert float(batch.advantages[place]) == pytest.approx(advantage)

    text = page()
    for written in (
        f"E = {rollouts.episodes} episodes in G = {rollouts.groups} groups",
        f"S = {rollouts.turns} turns, N = {rollouts.actions:,} sampled tokens",
        f"of {sum(len(row) for row in rollouts.rows):,} tokens in all",
        f"The token is number {TOKEN:,}: `Rollouts.action_turn` [N] is {rollouts.action_turn[TOKEN]}, a turn",
        f"`Rollouts.action_position` {rollouts.action_position[TOKEN]} of row {EPISODE}",
        f"with the log-probabilities {before:.3f} and",
        f"{len(group)} returns of group 3 have the mean {mean:.3f} and the standard deviation {deviation:.3f}",
        f"({returns[EPISODE]:.1f} - {mean:.3f}) / {deviation:.3f} = {advantage:.3f}",
        f"1 / (32 episodes × {length} tokens of this one) = {1 / (32 * length):.6f}",
        f"with n = {len(batch.logp)} sampled tokens",
        f"log-probability has fallen to {now:.3f}",
        f"exp({now:.3f} + {-before:.3f}) = {math.exp(now - before):.3f}",
        f"its norm, {norms[2]:.3f}, is above the limit",
    ):
        assert written in text, written
