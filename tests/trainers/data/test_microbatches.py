"""Micro-batches: complete, without duplicates, within the memory bound, and without effect on the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.algorithms.objectives.aggregate import token_weights
from arboretum.trainers.algorithms.objectives.settings import AGGREGATIONS, Kl, Objective
from arboretum.trainers.data.episodes import from_episodes
from arboretum.trainers.data.microbatches import (
    MicroBatch,
    make_microbatches,
    optimizer_batches,
    split_by_tokens,
)
from arboretum.trainers.data.rollouts import Rollouts

torch = pytest.importorskip("torch")

from arboretum.trainers.algorithms.objectives.logprobs import score_hidden, score_tokens
from arboretum.trainers.algorithms.objectives.loss import policy_loss, reduce_metrics
from arboretum.trainers.algorithms.objectives.tokens import Tokens

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def random_rollouts(episodes: int = 12, seed: int = 0, vocabulary: int = 11) -> Rollouts:
    """Return episodes of one to three turns with random tokens, some of which restart the conversation."""
    rng = np.random.default_rng(seed)
    sampled = []
    for _ in range(episodes):
        turns = []
        for number in range(int(rng.integers(1, 4))):
            prompt, reply = int(rng.integers(1, 9)), int(rng.integers(1, 7))
            turns.append(
                Turn(
                    "observation",
                    "reply",
                    moves=[Move("go", float(rng.normal()), True, True)],
                    token_ids=rng.integers(0, vocabulary, prompt + reply).tolist(),
                    logprobs=[0.0] * prompt + rng.normal(-2, 0.3, reply).tolist(),
                    loss_mask=[0] * prompt + [1] * reply,
                    restart=bool(rng.random() < 0.3) if number else None,
                )
            )
        turns[-1].token_ids += [1, 2, 3]  # the final observation
        turns[-1].logprobs += [0.0] * 3
        turns[-1].loss_mask += [0] * 3
        sampled.append(Episode("Env", "t", 0, "model", turns=turns))
    return from_episodes(sampled, [i // 3 for i in range(episodes)])


@settings(deadline=None)
@given(lengths, st.integers(8, 200), st.integers(1, 4))
def test_every_sequence_is_in_one_set_within_the_bound(sizes: list[int], bound: int, multiple: int) -> None:
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    sets = split_by_tokens(sizes, order, bound, multiple_of=multiple)
    assert sorted(i for part in sets for i in part) == list(range(len(sizes)))
    for part in sets:
        used = [sizes[i] for i in part]
        assert len(used) * max(used) <= bound or len(used) == 1
    assert len(sets) % multiple == 0 or all(len(part) == 1 for part in sets)


def histories(part: MicroBatch) -> list[list[int]]:
    """Return the tokens that each scored token is predicted from, as the layout defines them."""
    if part.paths is None or part.owners is None or part.positions is None:
        width = part.tokens.shape[1]
        lines = [divmod(source, width) for source in part.sources.tolist()]
        return [part.tokens[line, : place + 1].tolist() for line, place in lines]
    owners = [divmod(int(part.owners[source]), part.paths.shape[1]) for source in part.sources]
    assert [part.positions[0, source] for source in part.sources] == [place for _, place in owners]
    return [part.tokens[0, part.paths[line, : place + 1]].tolist() for line, place in owners]


@pytest.mark.parametrize("share_prefixes", [False, True])
def test_micro_batches_have_every_sampled_token_and_its_history_only(share_prefixes: bool) -> None:
    rollouts = random_rollouts()
    parts = make_microbatches(rollouts, None, 64, share_prefixes=share_prefixes)
    copies = np.concatenate([part.copies for part in parts])
    assert sorted(copies.tolist()) == list(range(rollouts.actions))
    for part in parts:
        assert part.tokens.size <= 64
        past = histories(part)
        for copy, source in zip(part.copies, part.copy_source, strict=True):
            action = rollouts.copies.action[copy]
            position = rollouts.action_position[action]
            sequence = rollouts.rows[rollouts.copies.row[copy]].tolist()
            assert part.targets[source] == sequence[position] == rollouts.action_tokens[action]
            assert past[source] == sequence[:position]


def test_common_prefixes_are_computed_once() -> None:
    turns = [
        Turn("", "", token_ids=[0, 1, 2, 3, 9, 5 + i // 2, 7, i], logprobs=[0.0] * 8, loss_mask=[0] * 4 + [1] * 4)
        for i in range(4)
    ]
    rollouts = from_episodes([Episode("Env", "t", 0, "model", turns=[turn]) for turn in turns], [0] * 4)
    (apart,) = make_microbatches(rollouts, None, 100)
    (tree,) = make_microbatches(rollouts, None, 100, share_prefixes=True)
    assert apart.tokens.size == 4 * 7  # The last token is only predicted.
    assert tree.tokens.tolist() == [[0, 1, 2, 3, 9, 5, 7, 6, 7]]
    assert tree.positions is not None and tree.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 5, 6]]
    assert len(apart.targets) == len(apart.copies) == len(tree.copies) == 16
    assert len(tree.targets) == 1 + 2 + 2 + 4  # 9; 5 or 6; 7 after either; four last tokens


def test_optimizer_batches_have_every_episode_once() -> None:
    rollouts = random_rollouts(13)
    parts = optimizer_batches(rollouts, 4, seed=5)
    assert sorted(np.concatenate(parts).tolist()) == list(range(13))
    assert {len(part) for part in parts} <= {4, 5}
    assert [p.tolist() for p in parts] == [p.tolist() for p in optimizer_batches(rollouts, 4, seed=5)]
    assert len(optimizer_batches(rollouts, None, seed=5)) == 1


def test_bound_of_zero_tokens_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="positive number of tokens"):
        make_microbatches(random_rollouts(), None, 0)


class Bigram(torch.nn.Module):  # type: ignore[misc]
    """Minimal policy that depends on its context: its states are running means of the sequence's embeddings."""

    def __init__(self, vocabulary: int = 11, width: int = 6) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.nn.Parameter(
            torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
        )
        self.head = torch.nn.Linear(width, vocabulary, bias=False, dtype=torch.float64)
        torch.nn.init.normal_(self.head.weight, generator=generator)

    def states(self, part: MicroBatch) -> Any:
        """Return the mean embedding of the history of each scored token, [n, D]."""
        return torch.stack([self.embedding[torch.tensor(history)].mean(0) for history in histories(part)])


OBJECTIVES = [
    Objective(aggregation="token-mean", entropy_coef=0.01, kl=Kl(coef=0.1)),
    *(Objective(aggregation=mode, norm_length=50, dual_clip=3.0) for mode in AGGREGATIONS),
    Objective(ratio="sequence", aggregation="seq-mean-token-mean", clip_low=3e-4, clip_high=4e-4),
    Objective(ratio="sequence-token", aggregation="seq-mean-token-mean", clip_low=0.2, clip_high=0.2),
    Objective(ratio="turn"),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.ratio}-{o.aggregation}")
def test_loss_gradient_and_metrics_do_not_depend_on_the_cut(objective: Objective) -> None:
    """For every aggregation and ratio, several cuts, with and without shared prefixes."""
    rollouts = random_rollouts()
    episodes = np.array([0, 1, 2, 4, 5, 8, 9])
    inside = np.isin(rollouts.copies.episode, episodes)
    advantages = np.random.default_rng(1).normal(size=rollouts.actions)
    weights = token_weights(
        objective.aggregation,
        rollouts.copies.row,
        prompts=rollouts.group[rollouts.copies.episode],
        norm_length=objective.norm_length,
        keep=inside,
    )

    def run(max_tokens: int, share_prefixes: bool) -> tuple[float, Any, dict[str, float]]:
        model = Bigram()
        total, sums = 0.0, []
        for part in make_microbatches(rollouts, episodes, max_tokens, share_prefixes=share_prefixes):
            scores = score_hidden(model.states(part), model.head, torch.tensor(part.targets))
            logp, entropy = (score[torch.tensor(part.copy_source)] for score in scores)
            tokens = Tokens(
                logp=logp,
                advantages=torch.tensor(advantages[part.copies]),
                weights=torch.tensor(weights[part.copies]),
                rows=torch.tensor(part.rows),
                turns=torch.tensor(part.turns),
                old_logp=torch.tensor(rollouts.logprobs[part.copies]),
                ref_logp=torch.tensor(rollouts.logprobs[part.copies]) - 0.1,
                sampler_logp=torch.tensor(rollouts.logprobs[part.copies]) + 0.01,
                entropy=entropy,
            )
            loss, part_sums = policy_loss(objective, tokens)
            loss.backward()
            total += float(loss.detach())
            sums.append(part_sums)
        return total, model.embedding.grad, reduce_metrics(sums)

    expected, gradient, metrics = run(10**6, False)
    assert float(gradient.abs().max()) > 1e-4
    for max_tokens, share_prefixes in ((1, False), (40, False), (1, True), (40, True), (10**6, True)):
        value, other, other_metrics = run(max_tokens, share_prefixes)
        assert value == pytest.approx(expected, abs=1e-10)
        torch.testing.assert_close(other, gradient, rtol=0, atol=1e-10)
        assert other_metrics == pytest.approx(metrics, abs=1e-10)


@settings(deadline=None, max_examples=8)
@given(st.integers(1, 50), st.integers(5, 20))
def test_scores_do_not_depend_on_the_chunk_size(n: int, chunk: int) -> None:
    generator = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(4, 7, dtype=torch.float64)
    targets = torch.randint(0, 7, (n,), generator=generator)
    expected = score_tokens(head(hidden), targets, 0.7)
    distribution = torch.distributions.Categorical(logits=head(hidden) / 0.7)
    torch.testing.assert_close(expected.logp, distribution.log_prob(targets))
    torch.testing.assert_close(expected.entropy, distribution.entropy())
    chunked = score_hidden(hidden, head, targets, 0.7, chunk=chunk)
    torch.testing.assert_close(chunked.logp, expected.logp)
    (ours,) = torch.autograd.grad((chunked.logp + chunked.entropy).sum(), hidden)
    (theirs,) = torch.autograd.grad((expected.logp + expected.entropy).sum(), hidden)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("chunk", [4, 100])
def test_entropies_without_gradient_have_the_same_values(chunk: int) -> None:
    hidden = torch.randn(10, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    head = torch.nn.Linear(4, 7)
    targets = torch.arange(10) % 7
    without = score_hidden(hidden, head, targets, 0.7, chunk=chunk, entropy_grad=False)
    with_gradient = score_hidden(hidden, head, targets, 0.7, chunk=chunk)
    assert torch.equal(without.entropy, with_gradient.entropy)
    assert torch.equal(without.logp, with_gradient.logp)
    assert with_gradient.entropy.requires_grad and not without.entropy.requires_grad
    assert float(torch.autograd.grad(with_gradient.entropy.sum(), hidden, retain_graph=True)[0].abs().max()) > 0.01
    torch.testing.assert_close(
        *(torch.autograd.grad(scores.logp.sum(), hidden)[0] for scores in (without, with_gradient)),
        rtol=0,
        atol=1e-6,
    )
