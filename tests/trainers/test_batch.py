"""Layouts: nothing lost, nothing twice, within the memory bound, and without effect on what is learnt."""

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
from arboretum.trainers.data.microbatches import (
    MicroBatch,
    make_microbatches,
    optimizer_batches,
    shares,
    split_by_tokens,
)
from arboretum.trainers.data.rollouts import Rollouts, from_episodes

torch = pytest.importorskip("torch")

from arboretum.trainers.algorithms.objectives.logprobs import score_hidden, score_tokens
from arboretum.trainers.algorithms.objectives.loss import Tokens, metrics, policy_loss

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def random_rollouts(episodes: int = 12, seed: int = 0, vocabulary: int = 11) -> Rollouts:
    rng = np.random.default_rng(seed)
    played = []
    for _ in range(episodes):
        turns = []
        for number in range(int(rng.integers(1, 4))):
            given_, said = int(rng.integers(1, 9)), int(rng.integers(1, 7))
            turns.append(
                Turn(
                    "seen",
                    "said",
                    moves=[Move("go", float(rng.normal()), True, True)],
                    token_ids=rng.integers(0, vocabulary, given_ + said).tolist(),
                    logprobs=[0.0] * given_ + rng.normal(-2, 0.3, said).tolist(),
                    loss_mask=[0] * given_ + [1] * said,
                    restart=bool(rng.random() < 0.3) if number else None,
                )
            )
        turns[-1].token_ids += [1, 2, 3]  # the world's last word
        turns[-1].logprobs += [0.0] * 3
        turns[-1].loss_mask += [0] * 3
        played.append(Episode("World", "t", 0, "model", turns=turns))
    return from_episodes(played, [i // 3 for i in range(episodes)])


@settings(deadline=None)
@given(lengths, st.integers(8, 200), st.sampled_from(["padded", "packed"]), st.integers(1, 4))
def test_sets_hold_every_sequence_once_and_stay_within_the_bound(
    sizes: list[int], bound: int, layout: Any, multiple: int
) -> None:
    sets = split_by_tokens(sizes, bound, layout=layout, multiple_of=multiple)
    assert sorted(i for part in sets for i in part) == list(range(len(sizes)))
    for part in sets:
        used = [sizes[i] for i in part]
        cost = len(used) * max(used) if layout == "padded" else sum(used)
        assert cost <= bound or len(used) == 1
    assert len(sets) % multiple == 0 or all(len(part) == 1 for part in sets)


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40), st.integers(1, 6))
def test_shares_are_within_one_item_of_even(costs: list[float], ways: int) -> None:
    parts = shares(costs, ways)
    assert sorted(i for part in parts for i in part) == list(range(len(costs)))
    sum_by_group = [sum(costs[i] for i in part) for part in parts]
    assert max(sum_by_group) <= sum(costs) / ways + max(costs) + 1e-9


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_micro_batches_show_the_model_what_it_needs_and_no_more(layout: Any) -> None:
    rollouts = random_rollouts()
    parts = make_microbatches(rollouts, None, 64, layout=layout)
    seen = np.concatenate([part.actions for part in parts])
    assert sorted(seen.tolist()) == list(range(rollouts.actions))
    for part in parts:
        assert part.tokens.size <= 64
        tokens, positions, segments = (a.reshape(-1) for a in (part.tokens, part.positions, part.segments))
        for source, target, action, row in zip(part.sources, part.targets, part.actions, part.rows, strict=True):
            place = rollouts.action_position[action]
            sequence = rollouts.rows[rollouts.action_row[action]]
            assert target == sequence[place]
            assert positions[source] == place - 1 and segments[source] == row
            history = tokens[source - place + 1 : source + 1]
            assert history.tolist() == sequence[:place].tolist()
        for segment in range(int(segments.max()) + 1):  # ends where the last sampled token is predicted
            assert np.flatnonzero(segments == segment)[-1] == part.sources[part.rows == segment][-1]
        assert np.diff(part.boundaries).tolist() == np.bincount(segments[segments >= 0]).tolist()
    if layout == "packed":
        assert all(part.waste == 0.0 for part in parts)
    assert np.average([p.waste for p in parts], weights=[p.tokens.size for p in parts]) < 0.15


def test_optimizer_batches_deal_out_every_episode_once() -> None:
    rollouts = random_rollouts(13)
    parts = optimizer_batches(rollouts, 4, seed=5)
    assert sorted(np.concatenate(parts).tolist()) == list(range(13))
    assert {len(part) for part in parts} <= {4, 5}
    assert [p.tolist() for p in parts] == [p.tolist() for p in optimizer_batches(rollouts, 4, seed=5)]
    assert len(optimizer_batches(rollouts, None, seed=5)) == 1


def test_a_bound_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="positive number of tokens"):
        make_microbatches(random_rollouts(), None, 0)


class Bigram(torch.nn.Module):  # type: ignore[misc]
    """The smallest policy that looks at its context: the running mean of the sequence's embeddings."""

    def __init__(self, vocabulary: int = 11, width: int = 6) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.nn.Parameter(
            torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
        )
        self.head = torch.nn.Linear(width, vocabulary, bias=False, dtype=torch.float64)
        torch.nn.init.normal_(self.head.weight, generator=generator)

    def states(self, part: MicroBatch) -> Any:
        """[n, D]: the mean of what the model saw in the same segment up to each source."""
        tokens, segments = torch.tensor(part.tokens).reshape(-1), torch.tensor(part.segments).reshape(-1)
        places = torch.arange(len(tokens))
        sources = torch.tensor(part.sources)
        visible = (segments[None] == segments[sources][:, None]) & (places[None] <= sources[:, None])
        weights = visible.double() / visible.sum(1, keepdim=True)
        return weights @ self.embedding[tokens]


OBJECTIVES = [
    Objective(aggregation="token-mean", entropy_coef=0.01, kl=Kl(coef=0.1)),
    *(Objective(aggregation=mode, norm_length=50, dual_clip=3.0) for mode in AGGREGATIONS),
    Objective(ratio="sequence", aggregation="seq-mean-token-mean", clip_low=3e-4, clip_high=4e-4),
    Objective(ratio="sequence-token", aggregation="seq-mean-token-mean", clip_low=0.2, clip_high=0.2),
    Objective(ratio="turn"),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.ratio}-{o.aggregation}")
def test_results_do_not_depend_on_how_a_batch_is_cut(objective: Objective) -> None:
    """Loss, gradient and metrics of every aggregation and ratio, over many cuts and both layouts."""
    rollouts = random_rollouts()
    episodes = np.array([0, 1, 2, 4, 5, 8, 9])
    inside = np.isin(rollouts.action_episode, episodes)
    advantages = np.random.default_rng(1).normal(size=rollouts.actions)
    weights = token_weights(
        objective.aggregation,
        rollouts.action_row,
        prompts=rollouts.group[rollouts.action_episode],
        norm_length=objective.norm_length,
        keep=inside,
    )

    def run(max_tokens: int, layout: Any) -> tuple[float, Any, dict[str, float]]:
        model = Bigram()
        total, sums = 0.0, []
        for part in make_microbatches(rollouts, episodes, max_tokens, layout=layout):
            logp, entropy = score_hidden(model.states(part), model.head, torch.tensor(part.targets))
            tokens = Tokens(
                logp=logp,
                advantages=torch.tensor(advantages[part.actions]),
                weights=torch.tensor(weights[part.actions]),
                rows=torch.tensor(part.rows),
                turns=torch.tensor(part.turns),
                old_logp=torch.tensor(rollouts.logprobs[part.actions]),
                ref_logp=torch.tensor(rollouts.logprobs[part.actions]) - 0.1,
                sampler_logp=torch.tensor(rollouts.logprobs[part.actions]) + 0.01,
                entropy=entropy,
            )
            loss, seen = policy_loss(objective, tokens)
            loss.backward()
            total += float(loss.detach())
            sums.append(seen)
        return total, model.embedding.grad, metrics(sums)

    whole, gradient, rollout_metrics = run(10**6, "padded")
    assert float(gradient.abs().max()) > 1e-4
    for max_tokens, layout in ((1, "padded"), (40, "padded"), (40, "packed"), (10**6, "packed")):
        value, other, seen = run(max_tokens, layout)
        assert value == pytest.approx(whole, abs=1e-10)
        torch.testing.assert_close(other, gradient, rtol=0, atol=1e-10)
        assert seen == pytest.approx(rollout_metrics, abs=1e-10)


@settings(deadline=None, max_examples=8)
@given(st.integers(1, 50), st.integers(5, 20))
def test_scores_do_not_depend_on_the_chunk(n: int, chunk: int) -> None:
    generator = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(4, 7, dtype=torch.float64)
    targets = torch.randint(0, 7, (n,), generator=generator)
    whole = score_tokens(head(hidden), targets, 0.7)
    distribution = torch.distributions.Categorical(logits=head(hidden) / 0.7)
    torch.testing.assert_close(whole.logp, distribution.log_prob(targets))
    torch.testing.assert_close(whole.entropy, distribution.entropy())
    cut = score_hidden(hidden, head, targets, 0.7, chunk=chunk)
    torch.testing.assert_close(cut.logp, whole.logp)
    (ours,) = torch.autograd.grad((cut.logp + cut.entropy).sum(), hidden)
    (theirs,) = torch.autograd.grad((whole.logp + whole.entropy).sum(), hidden)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("chunk", [4, 100])
def test_entropies_without_a_gradient_are_the_same_numbers(chunk: int) -> None:
    hidden = torch.randn(10, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    head = torch.nn.Linear(4, 7)
    targets = torch.arange(10) % 7
    bare = score_hidden(hidden, head, targets, 0.7, chunk=chunk, entropy_grad=False)
    whole = score_hidden(hidden, head, targets, 0.7, chunk=chunk)
    assert torch.equal(bare.entropy, whole.entropy) and torch.equal(bare.logp, whole.logp)
    assert whole.entropy.requires_grad and not bare.entropy.requires_grad
    assert float(torch.autograd.grad(whole.entropy.sum(), hidden, retain_graph=True)[0].abs().max()) > 0.01
    torch.testing.assert_close(
        *(torch.autograd.grad(scores.logp.sum(), hidden)[0] for scores in (bare, whole)), rtol=0, atol=1e-6
    )
