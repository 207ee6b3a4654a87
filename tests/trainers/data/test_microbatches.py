"""Micro-batches: complete, without duplicates, within the memory bound, and without effect on the gradient."""

from __future__ import annotations

import itertools
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
from arboretum.trainers.data.prefix_trees import (
    TreeLayout,
    lexicographic_order,
    merge_prefixes,
    shared_lengths,
    split_tree,
    tree_size,
)
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.data.sequences import from_sequences

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
    if part.positions is None:
        width = part.tokens.shape[1]
        lines = [divmod(source, width) for source in part.sources.tolist()]
        return [part.tokens[line, : place + 1].tolist() for line, place in lines]
    if part.segments is not None:
        found = []
        for source in part.sources.tolist():
            ancestors = [range(first, min(end, source + 1)) for first, end, last in part.segments if source < last]
            places = [place for run in ancestors for place in run]
            assert places[-1] == source and part.positions[0, source] == len(places) - 1
            found.append(part.tokens[0, places].tolist())
        return found
    assert part.paths is not None and part.owners is not None
    owners = [divmod(int(part.owners[source]), part.paths.shape[1]) for source in part.sources]
    assert [part.positions[0, source] for source in part.sources] == [place for _, place in owners]
    return [part.tokens[0, part.paths[line, : place + 1]].tolist() for line, place in owners]


@pytest.fixture
def any_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share prefixes of any length, however little they save."""
    for name in ("MIN_SEGMENT", "MIN_SHARED"):
        monkeypatch.setattr(f"arboretum.trainers.data.microbatches.{name}", 1 if name == "MIN_SEGMENT" else 0)


@pytest.mark.usefixtures("any_prefix")
@pytest.mark.parametrize("tree", [None, "segments", "paths"])
def test_micro_batches_have_every_sampled_token_and_its_history_only(tree: TreeLayout | None) -> None:
    rollouts = random_rollouts()
    parts = make_microbatches(rollouts, None, 64, tree=tree)
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


@pytest.mark.usefixtures("any_prefix")
@pytest.mark.parametrize("layout", ["segments", "paths"])
def test_common_prefixes_are_computed_once(layout: TreeLayout) -> None:
    turns = [
        Turn("", "", token_ids=[0, 1, 2, 3, 9, 5 + i // 2, 7, i], logprobs=[0.0] * 8, loss_mask=[0] * 4 + [1] * 4)
        for i in range(4)
    ]
    rollouts = from_episodes([Episode("Env", "t", 0, "model", turns=[turn]) for turn in turns], [0] * 4)
    (apart,) = make_microbatches(rollouts, None, 100)
    (tree,) = make_microbatches(rollouts, None, 100, tree=layout)
    assert apart.tokens.size == 4 * 7  # The last token is only predicted.
    assert tree.tokens.tolist() == [[0, 1, 2, 3, 9, 5, 7, 6, 7]]
    assert tree.positions is not None and tree.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 5, 6]]
    assert len(apart.targets) == len(apart.copies) == len(tree.copies) == 16
    assert len(tree.targets) == 1 + 2 + 2 + 4  # 9; 5 or 6; 7 after either; four last tokens
    if layout == "segments":
        assert tree.segments is not None and tree.segments.tolist() == [[0, 5, 9], [5, 7, 7], [7, 9, 9]]
    else:
        assert (
            tree.paths is not None
            and tree.paths.tolist() == [[0, 1, 2, 3, 4, 5, 6]] * 2 + [[0, 1, 2, 3, 4, 7, 8]] * 2
        )


def test_rows_that_share_little_are_laid_out_side_by_side() -> None:
    """A tree must save 5 % of the tokens, in segments of at least 16."""
    for own, is_tree in ((400, False), (180, True)):
        prompts = [np.array([*range(17), *[i] * (own - 1)]) for i in range(20, 24)]
        rollouts = from_sequences(prompts, [np.array([1])] * 4)
        (part,) = make_microbatches(rollouts, None, 10**4, tree="segments")
        # Three of four rows share 16 tokens: 2.9 % of 4 · 416, or 6.1 % of 4 · 196.
        assert part.tokens.shape == ((1, 4 * 196 - 3 * 16) if is_tree else (4, 416))
        assert (part.segments is not None) == is_tree


sequences = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=8)


@given(sequences, st.integers(1, 3))
def test_segments_of_a_tree_are_the_ancestors_of_every_token(lists: list[list[int]], multiple: int) -> None:
    arrays = [np.array(ids) for ids in lists]
    arrays = [arrays[i] for i in lexicographic_order(arrays)]
    tree = merge_prefixes(arrays, shared_lengths(arrays, multiple))
    size = len(tree.tokens)
    expected, found = np.zeros((size, size), dtype=int), np.zeros((size, size), dtype=int)
    for path, ids in zip(tree.paths, arrays, strict=True):
        assert tree.tokens[path].tolist() == ids.tolist()
        assert tree.positions[path].tolist() == list(range(len(ids)))
        for place in range(len(path)):
            expected[path[place], path[: place + 1]] = 1
    for first, end, last in tree.segments.tolist():
        for token in range(first, end):
            found[token, first : token + 1] += 1
        found[end:last, first:end] += 1
    assert found.tolist() == expected.tolist()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=9), st.integers(1, 30))
def test_trees_are_cut_where_they_share_least(shape: list[tuple[int, int]], bound: int) -> None:
    """No other cut into consecutive sets within the bound has fewer tokens, or as many in fewer sets."""
    lengths = [length for length, _ in shape]
    shared = [0, *(min(share, a, b) for (a, share), (b, _) in itertools.pairwise(shape))]

    def cost(parts: list[list[int]]) -> tuple[int, int]:
        return sum(tree_size(part, lengths, shared) for part in parts), len(parts)

    def allowed(parts: list[list[int]]) -> bool:
        return all(len(part) == 1 or tree_size(part, lengths, shared) <= bound for part in parts)

    numbers = list(range(len(lengths)))
    options = []
    for cuts in itertools.product([False, True], repeat=len(lengths) - 1):
        places = [0, *(i for i, cut in enumerate(cuts, 1) if cut), len(lengths)]
        options.append([numbers[a:b] for a, b in itertools.pairwise(places)])
    found = split_tree(lengths, shared, bound)
    assert allowed(found) and found in options
    assert cost(found) == min(cost(parts) for parts in options if allowed(parts))
    for multiple in (2, 3):
        parts = split_tree(lengths, shared, bound, multiple_of=multiple)
        assert allowed(parts) and parts in options
        assert len(parts) % multiple == 0 or all(len(part) == 1 for part in parts)


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


@pytest.mark.usefixtures("any_prefix")
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

    def run(max_tokens: int, tree: TreeLayout | None) -> tuple[float, Any, dict[str, float]]:
        model = Bigram()
        total, sums = 0.0, []
        for part in make_microbatches(rollouts, episodes, max_tokens, tree=tree):
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

    expected, gradient, metrics = run(10**6, None)
    assert float(gradient.abs().max()) > 1e-4
    cuts: list[tuple[int, TreeLayout | None]] = [(1, None), (40, None), (1, "paths"), (40, "paths")]
    for max_tokens, tree in (*cuts, (1, "segments"), (40, "segments"), (10**6, "segments")):
        value, other, other_metrics = run(max_tokens, tree)
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
