"""Order of the branches of a prefix tree, and the blocks of attention that follow from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.trainers.data.prefix_trees import (
    largest_first,
    lexicographic_order,
    merge_prefixes,
    shared_lengths,
)

sequences = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=24)


@given(sequences, st.integers(1, 3))
def test_the_largest_branch_comes_first(lists: list[list[int]], multiple: int) -> None:
    arrays = [np.array(ids) for ids in lists]
    arrays = [arrays[i] for i in lexicographic_order(arrays)]
    shared = shared_lengths(arrays, multiple)
    order = largest_first([len(ids) for ids in arrays], shared)
    assert sorted(order) == list(range(len(arrays)))
    found = [arrays[i] for i in order]
    tree = merge_prefixes(found, shared_lengths(found, multiple))
    assert len(tree.tokens) == len(merge_prefixes(arrays, shared).tokens)  # Nothing shared is torn apart.
    branches: dict[tuple[int, ...], list[int]] = {}  # sizes of the children of every segment
    stack: list[tuple[int, int, int]] = []
    for segment in tree.segments.tolist():
        first, _, last = segment
        while stack and first >= stack[-1][2]:
            stack.pop()
        branches.setdefault(tuple(stack[-1]) if stack else (), []).append(last - first)
        stack.append(segment)
    assert all(sizes[0] == max(sizes) for sizes in branches.values())


@given(sequences)
def test_blocks_of_attention_are_the_ancestors_of_every_token(lists: list[list[int]]) -> None:
    """Every pair of a token and an ancestor is in one block; a token is in few of them."""
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    from arboretum.trainers.learning.segment_attention import _blocks

    arrays = [np.array(ids) for ids in lists]
    arrays = [arrays[i] for i in lexicographic_order(arrays)]
    arrays = [arrays[i] for i in largest_first([len(ids) for ids in arrays], shared_lengths(arrays))]
    tree = merge_prefixes(arrays, shared_lengths(arrays))
    size = len(tree.tokens)
    expected, found = np.zeros((size, size), dtype=int), np.zeros((size, size), dtype=int)
    blocks_of = np.zeros(size, dtype=int)
    for path in tree.paths:
        for place in range(len(path)):
            expected[path[place], path[: place + 1]] = 1
    for rows, columns, own in _blocks([tuple(segment) for segment in tree.segments.tolist()]):
        blocks_of[rows] += 1
        found[rows, columns] += np.tril(np.ones((size, size), dtype=int))[rows, columns] if own else 1
    assert found.tolist() == expected.tolist()
    # Behind every block but the path's own is a sibling at least as large, so the subtree halves each time.
    assert blocks_of.max() <= 1 + math.log2(size)
