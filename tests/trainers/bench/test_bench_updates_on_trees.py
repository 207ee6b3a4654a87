"""Benchmark of updates on trees: its episodes are what it says, and small cases of its comparisons."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
for module in ("transformers", "accelerate"):
    pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.bench.forest import Forest, saved_fraction
from arboretum.trainers.bench.trees_growth import TURNS, forest_of
from arboretum.trainers.bench.trees_update import HALF_SHARED, _with_common_prompts, compare, peak_memory

pytestmark = pytest.mark.usefixtures("one_thread")


def test_forest_repeats_the_turns_before_its_branches() -> None:
    forest = Forest(trees=2, branches=1, turns=4, prompt=5, observation=3, reply=2)
    trees, chains = forest.rollouts(branched=True), forest.rollouts(branched=False)
    # An episode has 7 + 3 · 5 = 22 tokens, of which a branch before the third turn repeats 12.
    assert [len(row) for row in trees.rows] == [22] * 4
    assert [row.tolist() for row in trees.rows] == [row.tolist() for row in chains.rows]
    assert trees.has_branches and not chains.has_branches
    assert saved_fraction(trees) == 12 / 44 and saved_fraction(chains) == 0


def test_compared_episodes_share_half_of_their_tokens() -> None:
    for case in HALF_SHARED:
        assert 0.47 < saved_fraction(case.forest.rollouts(branched=True)) < 0.52


def test_growth_is_measured_at_equal_numbers_of_tokens_up_to_a_context_of_8000() -> None:
    batches = [forest_of(turns).rollouts(branched=True) for turns in TURNS]
    assert [max(map(len, batch.rows)) for batch in batches] == [160 * turns for turns in TURNS]
    assert all(25_000 < sum(map(len, batch.rows)) < 33_000 for batch in batches)


def test_chains_of_a_group_have_a_common_prompt_and_different_replies() -> None:
    rows = _with_common_prompts(Forest(trees=6, branches=0, turns=2, prompt=9, group=3)).rows
    for number, row in enumerate(rows):
        first = rows[number // 3 * 3]
        assert row[:9].tolist() == first[:9].tolist()
        assert number % 3 == 0 or row[9] != first[9]
    assert rows[0][:9].tolist() != rows[3][:9].tolist()


@pytest.mark.heavy
def test_update_on_trees_is_faster_and_smaller_than_on_chains() -> None:
    """The margins are below the documented numbers, since a test shares its machine."""
    model, forest = "0.46M", Forest(trees=2, branches=8, turns=9)
    rollouts = [forest.rollouts(branched=branched) for branched in (True, False)]
    assert compare(model, (rollouts[0], None), (rollouts[1], None)) > 1.25
    ours, theirs = (peak_memory(model, forest, branched=branched) for branched in (True, False))
    assert ours < theirs
