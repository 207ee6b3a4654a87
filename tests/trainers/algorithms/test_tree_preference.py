"""Tree-GRPO's intra-tree objective is a step-level preference objective (arXiv:2509.21240), on a small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.eval.bench.tiny import make_tiny_model
from arboretum.trainers.algorithms.credit.tree import TreeCredit
from arboretum.trainers.algorithms.objectives.aggregate import token_weights
from arboretum.trainers.algorithms.objectives.loss import policy_loss
from arboretum.trainers.algorithms.objectives.settings import Objective
from arboretum.trainers.algorithms.objectives.surgical import surgical_losses, surgical_margins
from arboretum.trainers.algorithms.objectives.tokens import Tokens
from arboretum.trainers.data.episodes import Branch, from_episodes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoModelForCausalLM

    folder: Path = make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=32)
    return AutoModelForCausalLM.from_pretrained(folder).double().eval()


def turn(rng: np.random.Generator, prompt: int, reply: int, reward: float = 0.0) -> Turn:
    return Turn(
        "",
        "reply",
        moves=[Move("go", reward, True, True)],
        token_ids=rng.integers(0, 200, prompt + reply).tolist(),
        logprobs=[0.0] * (prompt + reply),
        loss_mask=[0] * prompt + [1] * reply,
    )


@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.parametrize("lengths", [(4, 4), (3, 6)])
def test_intra_tree_gradient_is_that_of_dpo_up_to_its_weight(
    lengths: tuple[int, int], beta: float, model: Any
) -> None:
    """Two leaves of a step with rewards 1 and 0 have A = ±1/√2, so the loss's gradient is

        -1/√2 · w · (∇ log π(y⁺|s) - ∇ log π(y⁻|s)),

    with the weight w of a token: the shared turns cancel. DPO's is -β σ(-βΔ) · (∇ log π(y⁺|s) - ∇ log π(y⁻|s)).
    """
    rng = np.random.default_rng(0)
    shared = [turn(rng, 5, 3), turn(rng, 2, 3)]
    won, lost = (turn(rng, 2, n, reward) for n, reward in zip(lengths, (1.0, 0.0), strict=True))
    lost.token_ids = [*(won.token_ids or [])[:2], *(lost.token_ids or [])[2:]]  # the same observation
    episodes = [Episode("Env", "t", i, "m", turns=[*shared, last]) for i, last in enumerate((won, lost))]
    rollouts = from_episodes(episodes, [0, 0], trees=[0, 0], branches=[None, Branch(0, 2)])
    credit = TreeCredit(estimator="intra", eps=0.0).assign(rollouts)
    weights = token_weights("token-mean", rollouts.copies.episode)
    parameters = list(model.parameters())

    def logps() -> Any:
        """Return the log-probability of every copy of a sampled token."""
        scores = [torch.log_softmax(model(torch.tensor(row)[None]).logits[0], -1) for row in rollouts.rows]
        positions = rollouts.action_position[rollouts.copies.action]
        return torch.stack(
            [scores[r][p - 1, rollouts.rows[r][p]] for r, p in zip(rollouts.copies.row, positions, strict=True)]
        )

    def gradient(loss: Any) -> Any:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, allow_unused=False)])

    logp = logps()
    tokens = Tokens(
        logp=logp,
        advantages=torch.tensor(credit.advantages),
        weights=torch.tensor(weights),
        rows=torch.tensor(rollouts.copies.episode),
    )
    ours = gradient(policy_loss(Objective(aggregation="token-mean"), tokens)[0])

    logp = logps()
    last = torch.tensor(rollouts.paths.turn[rollouts.copies.path] >= 2)
    episode = torch.tensor(rollouts.copies.episode)
    chosen, rejected = (logp[last & (episode == i)].sum() for i in (0, 1))
    ref_chosen, ref_rejected = chosen.detach() - 0.7, rejected.detach() + 0.4
    margin = surgical_margins(chosen, ref_chosen, rejected, ref_rejected)
    theirs = gradient(surgical_losses(margin, beta))

    copies = len(weights)
    factor = (1 / np.sqrt(2) / copies) / (beta / (1 + np.exp(beta * 1.1)))
    assert ours.norm() > 1e-3
    assert (ours - factor * theirs).norm() < 1e-5 * ours.norm()  # Norms and rotations are float32 in any case.
