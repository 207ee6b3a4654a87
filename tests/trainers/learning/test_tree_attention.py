"""Updates on prefix trees: scores, losses and gradients are those of the same episodes as separate chains."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
for module in ("transformers", "accelerate"):
    pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.credit.tree import TreeCredit
from arboretum.trainers.algorithms.objectives.settings import Objective, Ratio
from arboretum.trainers.algorithms.recipe import Optimization, Recipe
from arboretum.trainers.config.settings import LoraConfig
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.data.microbatches import MicroBatch, make_microbatches
from arboretum.trainers.data.prefix_trees import TreeLayout
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.learning.learner import Learner
from arboretum.trainers.learning.policy import _add_adapters
from arboretum.trainers.learning.segment_attention import segment_attention
from support.forests import (
    forest_and_chains,
    forest_learner,
    ppo_recipe,
    step_gradients,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("one_thread")

LAYOUTS: list[TreeLayout] = ["segments", "paths"]


def update(learner: Learner, rollouts: Rollouts) -> tuple[dict[str, float], list[dict[str, Any]]]:
    steps = step_gradients(learner)
    return learner.update(rollouts, update=0, temperature=0.9), steps


def use_layout(learner: Learner, layout: TreeLayout | None) -> None:
    assert learner.optimizer.policy.tree_layout == "segments"
    learner.optimizer.policy.tree_layout = layout


def assert_gradients_close(found: list[dict[str, Any]], expected: list[dict[str, Any]], tolerance: float) -> None:
    """Compare the gradients of all steps; the tolerance is relative to the largest entry where that exceeds 1."""
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        largest = max(float(gradient.abs().max()) for gradient in theirs.values())
        assert largest > 1e-3
        for name, gradient in theirs.items():
            torch.testing.assert_close(
                ours[name], gradient, rtol=0, atol=tolerance * max(1.0, largest), msg=lambda m, n=name: f"{n}: {m}"
            )


def computed_tokens(rollouts: Rollouts, layout: TreeLayout | None) -> int:
    return sum(part.tokens.size for part in make_microbatches(rollouts, None, 400, tree=layout))


# ---------------------------------------------------------------------- equality with chains


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt2"])
@pytest.mark.parametrize("seed", [0, 1])
def test_update_on_a_forest_equals_the_update_on_its_chains(
    architecture: str, layout: TreeLayout, seed: int
) -> None:
    """With clipping, KL and entropy terms, a critic, and two passes of two steps; GPT-2 has learned positions."""
    forest, chains = forest_and_chains(seed)
    assert computed_tokens(forest, layout) < 0.8 * computed_tokens(chains, None)
    learner = forest_learner(ppo_recipe(), tiny_model(architecture))
    use_layout(learner, layout)
    report, gradients = update(learner, forest)
    expected, expected_gradients = update(
        forest_learner(ppo_recipe(), tiny_model(architecture), share_prefixes=False), chains
    )
    assert len(gradients) == 4 and expected["clip_upper"] > 0.05 and expected["clip_lower"] > 0.05
    assert report == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_gradients_close(gradients, expected_gradients, 1e-5)


@pytest.mark.parametrize("layout", [*LAYOUTS, None])
def test_scores_of_a_forest_are_those_of_its_chains(layout: TreeLayout | None) -> None:
    forest, chains = forest_and_chains(3)
    learner = forest_learner(ppo_recipe())
    use_layout(learner, layout)
    for reference in (False, True):
        options = {"reference": reference, "use_critic": not reference}
        found, values = learner.scorer.score(forest, 0.8, **options)
        expected, expected_values = learner.scorer.score(chains, 0.8, **options)
        assert len(found) < len(expected)
        np.testing.assert_allclose(found[forest.copies.action], expected, atol=1e-5)
        np.testing.assert_allclose(values[forest.copies.action], expected_values, atol=1e-5)


def test_each_shared_token_is_scored_once() -> None:
    forest, _ = forest_and_chains(0)
    learner = forest_learner(ppo_recipe())
    for layout in ("segments", None):
        learner.optimizer.policy.tree_layout = layout
        scored: list[int] = []
        hook = learner.optimizer.policy.register_forward_hook(
            lambda _, args, kwargs, out, scored=scored: scored.append(len(out[0])), with_kwargs=True
        )
        learner.scorer.score(forest, 1.0)
        hook.remove()
        assert sum(scored) == forest.actions < len(forest.copies.action)


def test_prompts_of_chains_are_shared_on_request_only() -> None:
    """The layout of chains stays what it was unless `share_prefixes` is set; the gradient is the same."""
    prompt = list(range(30))
    turns = [
        Turn(
            "",
            "",
            moves=[Move("go", float(i % 2), True, True)],
            token_ids=[*prompt, 31 + i, i],
            logprobs=[0.0] * 30 + [-2.0] * 2,
            loss_mask=[0] * 30 + [1] * 2,
        )
        for i in range(4)
    ]
    chains = from_episodes([Episode("Env", "t", 0, "model", turns=[turn]) for turn in turns], [0] * 4)
    sizes, found = [], []
    for share in (None, True):
        learner = forest_learner(ppo_recipe(with_critic=False), share_prefixes=share)
        learner.optimizer.policy.register_forward_pre_hook(
            lambda _, args, kwargs: sizes.append(tuple(kwargs["tokens"].shape)), with_kwargs=True
        )
        found.append(update(learner, chains)[1])
    # Four rows of 31 tokens, since the last one is only predicted; or a tree that shares 16 of 30 common tokens.
    assert set(sizes) == {(4, 31), (1, 16 + 4 * 15)}
    assert_gradients_close(found[1], found[0], 1e-5)


@pytest.mark.parametrize(
    ("architecture", "sizes"), [("mistral", {"sliding_window": 8}), ("gemma3_text", {"head_dim": 8})]
)
def test_model_with_sliding_windows_repeats_shared_prefixes(architecture: str, sizes: dict[str, Any]) -> None:
    forest, chains = forest_and_chains(0)
    recipe = ppo_recipe(with_critic=False)
    learner = forest_learner(recipe, tiny_model(architecture, **sizes))
    assert learner.optimizer.policy.tree_layout is None
    assert learner.optimizer.policy.model.config._attn_implementation == "sdpa"
    report, gradients = update(learner, forest)
    expected, expected_gradients = update(forest_learner(recipe, tiny_model(architecture, **sizes)), chains)
    assert report == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_gradients_close(gradients, expected_gradients, 1e-5)


# ---------------------------------------------------------------------- attention by segments


def masked_attention(query: Any, key: Any, value: Any, segments: list[tuple[int, int, int]]) -> Any:
    """Return attention by its definition: a softmax over the ancestors of each token."""
    size = query.shape[2]
    allowed = torch.zeros(size, size, dtype=torch.bool)
    for first, end, last in segments:
        allowed[first:end, first:end] = torch.ones(end - first, end - first).tril().bool()
        allowed[end:last, first:end] = True
    repeated = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(repeated, dim=1) for states in (key, value))
    scores = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(~allowed, -math.inf)
    return (torch.softmax(scores, -1) @ value).transpose(1, 2)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_attention_by_segments_is_a_softmax_over_ancestors(
    heads: tuple[int, int], precision: str, tolerance: float
) -> None:
    forest, _ = forest_and_chains(5, episodes=12)
    (part,) = make_microbatches(forest, None, 10**6, tree="segments")
    assert part.segments is not None and part.positions is not None and len(part.segments) > 8
    size = part.tokens.shape[1]
    segments = [tuple(segment) for segment in part.segments.tolist()]
    generator, dtype = torch.Generator().manual_seed(0), getattr(torch, precision)
    inputs = [
        torch.randn(1, count, size, 8, generator=generator, dtype=dtype, requires_grad=True)
        for count in (heads[0], heads[1], heads[1])
    ]
    found, expected = segment_attention(*inputs, segments), masked_attention(*inputs, segments)
    weights = torch.randn(found.shape, generator=generator, dtype=dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    gradients, expected_gradients = (
        torch.autograd.grad((output * weights).sum(), inputs) for output in (found, expected)
    )
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


# ---------------------------------------------------------------------- memory and precision


def test_gradient_checkpointing_changes_nothing() -> None:
    forest, chains = forest_and_chains(0)
    recipe = ppo_recipe(with_critic=False)
    model = tiny_model()
    model.activation_checkpointing_enable({"use_reentrant": False})
    _, gradients = update(forest_learner(recipe, model), forest)
    _, expected = update(forest_learner(recipe, share_prefixes=False), chains)
    assert_gradients_close(gradients, expected, 1e-5)


def test_adapters_get_the_gradients_of_chains() -> None:
    pytest.importorskip("peft", reason="needs peft: pip install 'arboretum-rl[lm]'")
    forest, chains = forest_and_chains(0)
    found = []
    for rollouts, share in ((forest, None), (chains, False)):
        model = _add_adapters(tiny_model(), LoraConfig(rank=4, alpha=8))
        with torch.no_grad():  # They begin at 0, where half of the gradients vanish.
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(torch.linspace(-0.2, 0.2, parameter.numel()).view_as(parameter))
        learner = forest_learner(ppo_recipe(with_critic=False), model, share_prefixes=share)
        assert learner.optimizer.policy.tree_layout == "segments"
        found.append(update(learner, rollouts))
    (report, gradients), (expected, expected_gradients) = found
    assert all("lora" in name for name in gradients[0])
    assert report == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_gradients_close(gradients, expected_gradients, 1e-5)


def test_bfloat16_update_is_finite_and_near_that_of_chains() -> None:
    forest, chains = forest_and_chains(0)
    recipe = dataclasses.replace(ppo_recipe(), optimization=Optimization(lr=1e-4, max_grad_norm=1e6))
    found = []
    for rollouts, share, precision in (
        (forest, None, "bfloat16"),
        (chains, False, "bfloat16"),
        (chains, False, "float32"),
    ):
        _, (gradients,) = update(forest_learner(recipe, precision=precision, share_prefixes=share), rollouts)
        found.append(torch.cat([gradient.flatten() for gradient in gradients.values()]))
    tree, chain, exact = found
    assert tree.isfinite().all()
    # Both differ from float32 by the rounding of bfloat16 (2⁻⁸), the tree by no more than the chains.
    assert float((tree - exact).norm()) < 1.5 * float((chain - exact).norm()) < 0.1 * float(exact.norm())


# ---------------------------------------------------------------------- preferences at a branching


def test_gradient_at_a_branching_is_that_of_step_level_preferences() -> None:
    """Tree-GRPO's gradient within a tree is that of step-level DPO up to its weight (arXiv:2509.21240).

    Assumptions: two branches, of which one succeeds; the policy is the sampler and DPO's reference, so that ratios
    are 1 and σ(β·0) = 1/2; and a loss that sums over the tokens of a branch. The advantages are then ±1/√2, the
    tokens before the branching cancel, and

        ∇L_GRPO = -(1/√2) / 2 · (∇ log π(y⁺) - ∇ log π(y⁻)),    ∇L_DPO = -(β/2) · (∇ log π(y⁺) - ∇ log π(y⁻)).
    """
    beta, rng = 0.1, np.random.default_rng(0)

    def turn(reward: float) -> Turn:
        ids = rng.integers(0, 40, 30).tolist()
        return Turn(
            "",
            "",
            moves=[Move("go", reward, True, True)],
            token_ids=ids,
            logprobs=[0.0] * 20 + [-3.0] * 10,
            loss_mask=[0] * 20 + [1] * 10,
        )

    stem = [turn(0.0), turn(0.0)]
    won, lost = [*stem, turn(1.0), turn(0.0)], [*stem, turn(0.0)]
    episodes = [Episode("Env", "t", 0, "model", turns=turns) for turns in (won, lost)]
    forest = from_episodes(episodes, [0, 0], branches=[None, Branch(0, 2)])
    recipe = Recipe(
        name="tree",
        about="Intra-tree group advantages.",
        credit=Group(eps=0.0),
        objective=Objective(aggregation="seq-mean-token-sum"),
        optimization=Optimization(lr=1e-6, max_grad_norm=1e9),
    )
    learner = forest_learner(recipe)
    _, (gradients,) = update(learner, forest)

    model = tiny_model()

    def logprob(turns: list[Turn]) -> Any:
        """Return the log-probability of all sampled tokens after the branching."""
        ids = torch.tensor([token for turn in turns for token in turn.token_ids or ()])
        mask = torch.tensor([mark for turn in turns for mark in turn.loss_mask or ()], dtype=torch.bool)
        mask[:60] = False
        logp = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1] / 0.9, -1)
        return logp.gather(1, ids[1:, None])[:, 0][mask[1:]].sum()

    margin = logprob(won) - logprob(lost)
    dpo = -torch.nn.functional.logsigmoid(beta * (margin - margin.detach()))
    weight = (1 / math.sqrt(2) / 2) / (beta / 2)
    for (name, parameter), gradient in zip(
        model.named_parameters(), torch.autograd.grad(dpo, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(gradients[f"model.{name}"], weight * gradient, rtol=1e-3, atol=1e-5)
        assert parameter.shape == gradient.shape


@pytest.mark.parametrize("ratio", ["sequence", "sequence-token"])
def test_ratio_of_a_sequence_is_that_of_all_its_tokens_where_shared_ones_count_once(ratio: Ratio) -> None:
    """At the first step the gradient of a sequence's ratio is that of the mean of log π over the sequence."""
    rollouts, _ = forest_and_chains(3)
    credit = TreeCredit(prefix_weighting="once")
    recipe = Recipe("x", "GSPO.", credit, Objective(ratio=ratio), optimization=Optimization(max_grad_norm=1e6))
    learner = forest_learner(recipe)
    model, copies = learner.optimizer.policy.model, rollouts.copies
    assigned = credit.assign(rollouts)
    assert assigned.multiplicity is not None and (assigned.multiplicity == 0).any()
    weights = torch.tensor(assigned.advantages * assigned.multiplicity / assigned.multiplicity.sum()).float()
    loss = torch.zeros(())
    for row, ids in enumerate(rollouts.rows):
        logp = torch.log_softmax(model(input_ids=torch.tensor(ids)[None]).logits[0] / 0.9, -1)
        for episode in np.unique(copies.episode[copies.row == row]):
            own = np.flatnonzero((copies.row == row) & (copies.episode == episode))
            places = rollouts.action_position[copies.action[own]]
            scores = logp[places - 1, ids[places]]
            loss = loss - (weights[own] * (scores.mean() if ratio == "sequence" else scores)).sum()
    names, parameters = zip(*learner.optimizer.policy.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    assert_gradients_close(update(learner, rollouts)[1], [expected], 1e-5)


def test_longest_trees_come_first_and_stay_within_the_bound() -> None:
    forest, _ = forest_and_chains(2, episodes=24)
    for layout in LAYOUTS:
        parts: list[MicroBatch] = make_microbatches(forest, None, 400, tree=layout, multiple_of=3)
        sizes = [part.tokens.size for part in parts]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] <= 400 and len(parts) % 3 == 0
