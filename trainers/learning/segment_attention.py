"""Causal attention over the segments of a prefix tree, on the CPU, with every pair of tokens computed once.

The tokens of a tree are a line in depth-first order, so the descendants of a segment follow it directly. A
segment, its first child, the first child of that one and so on down to a leaf are therefore a run of the line,
here called path. Attention of all tokens is two kinds of blocks, which are slices and need no gathering: each
path attends to itself, causally; and where it branches, its further children with all their descendants attend
to the path up to there. If the first child is the one with the most tokens, a token is in few blocks. Outputs
o_i with log-normalizers z_i combine to

    z = log Σ_i exp(z_i),    o = Σ_i exp(z_i - z) · o_i.

The backward pass of each block, given the combined o and z instead of its own, returns the block's summand of the
gradient, as in attention over blocks in general (FlashAttention, arXiv:2205.14135; Ring Attention,
arXiv:2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Segments = Sequence[tuple[int, int, int]]


def segment_attention(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None = None
) -> Tensor:
    """Return the attention output of each token of a tree, [1, T, H, D].

    Args:
        query: Queries, [1, H, T, D].
        key, value: Keys and values, [1, K, T, D], of K heads, a divisor of H.
        segments: See `PrefixTree.segments`.
        scale: Factor on the scores; None takes 1/√D.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    heads, groups = query.shape[1], key.shape[1]
    # Heads with the same keys are an axis of their own, over which keys are broadcast.
    queries = query[0].unflatten(0, (groups, heads // groups))
    output = _SegmentAttention.apply(queries, key[0].unsqueeze(1), value[0].unsqueeze(1), segments, scale)
    return output.flatten(0, 1).transpose(0, 1).unsqueeze(0)


def _blocks(segments: Segments) -> list[tuple[slice, slice, bool]]:
    """Return queries and keys of each block, and True for a path with itself; these blocks are first."""
    paths: list[tuple[slice, slice, bool]] = []
    branches: list[tuple[slice, slice, bool]] = []
    start = 0
    for (_, end, last), following in zip(segments, [*segments[1:], None], strict=True):
        if following is None or last == end:
            paths.append((slice(start, end), slice(start, end), True))
            start = end
        elif following[2] < last:
            branches.append((slice(following[2], last), slice(start, end), False))
    return paths + branches


class _SegmentAttention(torch.autograd.Function):  # type: ignore[misc]
    """Attention of queries [K, H/K, T, D] to keys and values [K, 1, T, D]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None
    ) -> Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        keys, values = (states.expand(-1, query.shape[1], -1, -1) for states in (key, value))
        output = _line_like(query)
        normalizers = torch.empty(query.shape[:3], dtype=output.dtype)
        for rows, columns, own in _blocks(segments):
            part, logs = kernel(
                query[:, :, rows], keys[:, :, columns], values[:, :, columns], 0.0, own, scale=scale
            )
            if own:
                output[:, :, rows] = part
                normalizers[:, :, rows] = logs
            else:
                before = normalizers[:, :, rows]
                share = torch.sigmoid(logs - before).unsqueeze(-1)
                output[:, :, rows].lerp_(part.to(output.dtype), share)
                torch.logaddexp(before, logs, out=before)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, normalizers)
        ctx.segments, ctx.scale = segments, scale
        return output

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        query, key, value, output, normalizers = ctx.saved_tensors
        keys, values = (states.expand(-1, query.shape[1], -1, -1) for states in (key, value))
        gradients = [_line_like(states).zero_() for states in (query, key, value)]
        for rows, columns, own in _blocks(ctx.segments):
            of_query, of_key, of_value = kernel(
                grad[:, :, rows],
                query[:, :, rows],
                keys[:, :, columns],
                values[:, :, columns],
                output[:, :, rows],
                normalizers[:, :, rows],
                0.0,
                own,
                scale=ctx.scale,
            )
            gradients[0][:, :, rows] += of_query
            gradients[1][:, :, columns] += of_key.sum(1, keepdim=True)
            gradients[2][:, :, columns] += of_value.sum(1, keepdim=True)
        return *(found.to(query.dtype) for found in gradients), None, None


def _line_like(states: Tensor) -> Tensor:
    """Return an empty tensor of a shape [K, G, T, D] in float32 or wider, in which the heads of a token are
    neighbors in memory, as in the output of a linear layer."""
    first, second, tokens, width = states.shape
    dtype = torch.promote_types(states.dtype, torch.float32)
    return torch.empty(tokens, first, second, width, dtype=dtype, device=states.device).permute(1, 2, 0, 3)
