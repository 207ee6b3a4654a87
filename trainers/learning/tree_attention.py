"""Attention over prefix trees, in which every layer computes a shared prefix once.

A micro-batch whose sequences have common prefixes is one line of T distinct tokens, so that linear layers, norms
and activations compute each of them once. Attention has two implementations, by the layout of the tree:

* "segments", on the CPU: attention is computed by segment, shared prefixes once; see `segment_attention`.
* "paths", elsewhere: queries, keys and values are gathered into the R sequences of at most L tokens, the ordinary
  causal kernel runs, and the output of each distinct token is taken from one of its sequences. Attention to shared
  prefixes is repeated. FlexAttention could avoid that on a GPU; it is not used, since it could not be tested.

An attention mask over the T × T pairs would need neither, but masked kernels are slower than causal ones: on the
CPU by more than sharing saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.prefix_trees import TreeLayout
from .segment_attention import segment_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "arboretum_prefix_tree"
"""Attention implementation by which transformers knows this module."""


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_segments: list[tuple[int, int, int]] | None = None,
    tree_paths: Tensor | None = None,
    tree_owners: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return the attention output of each token, [B, T, H, D]; SDPA of transformers unless a tree is given.

    Args:
        module: Attention layer.
        query, key, value: Projections, [B, H, T, D]; B = 1 for a tree. Keys and values may have fewer heads.
        attention_mask: Mask of an ordinary batch; not read for a tree.
        tree_segments: See `PrefixTree.segments`.
        tree_paths: See `MicroBatch.paths`, [R, L].
        tree_owners: See `MicroBatch.owners`, [T].
        kwargs: Passed to SDPA.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if tree_segments is not None:
        return segment_attention(query, key, value, tree_segments, kwargs.get("scaling")), None
    if tree_paths is None or tree_owners is None:
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output
    gathered = [_gather(states, tree_paths) for states in (query, key, value)]
    states, _ = sdpa_attention_forward(module, *gathered, None, **kwargs)
    return states.flatten(0, 1)[tree_owners].unsqueeze(0), None


def _gather(states: Tensor, paths: Tensor) -> Tensor:
    """Return the states [1, H, T, D] of all sequences, [R, H, L, D]."""
    heads, width = states.shape[1], states.shape[3]
    return states[0].index_select(1, paths.flatten()).view(heads, *paths.shape, width).transpose(0, 1)


@torch.no_grad()  # type: ignore[untyped-decorator]
def enable_tree_attention(model: PreTrainedModel) -> TreeLayout | None:
    """Make a model's attention accept prefix trees, where it can, and return the layout that it reads.

    The model must use SDPA without sliding windows, honor explicit positions, and give a small tree the states of
    its sequences; otherwise it is left as it was, and the result is None.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config.get_text_config(decoder=True)
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    has_window = getattr(config, "sliding_window", None) is not None and getattr(
        config, "use_sliding_window", True
    )
    # A copy of a model that accepts trees has the implementation already.
    if config._attn_implementation not in ("sdpa", NAME) or set(layers) != {"full_attention"} or has_window:
        return None
    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    layouts: tuple[TreeLayout, ...] = ("segments", "paths") if model.device.type == "cpu" else ("paths",)
    was_training = model.training
    try:
        model.set_attn_implementation(NAME)
        model.eval()
        for layout in layouts:
            if _computes_trees(model.base_model, layout):
                return layout
    except ValueError:  # The model has no choice of attention.
        pass
    finally:
        model.train(was_training)
    model.set_attn_implementation("sdpa")
    return None


def _computes_trees(body: Any, layout: TreeLayout) -> bool:
    """Return True if the states of the sequences (0, 1, 2) and (0, 1, 3, 4) are those of their tree."""
    line, pair = (
        torch.tensor(ids, device=body.device) for ids in ([[0, 1, 2, 3, 4]], [[0, 1, 2, 0], [0, 1, 3, 4]])
    )
    positions = torch.tensor([[0, 1, 2, 2, 3]], device=body.device)
    if layout == "segments":
        trees = {"segments": torch.tensor([[0, 2, 5], [2, 3, 3], [3, 5, 5]])}
    else:
        trees = {"paths": pair, "owners": torch.tensor([0, 1, 2, 6, 7], device=body.device)}
    try:
        expected = body(input_ids=pair, use_cache=False).last_hidden_state
        found = body(**tree_inputs(line, positions, **trees)).last_hidden_state[0]
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError):
        return False
    pairs = ((found[:3], expected[0, :3]), (found[[0, 1, 3, 4]], expected[1]))
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


def tree_inputs(
    tokens: Tensor,
    positions: Tensor,
    segments: Tensor | None = None,
    paths: Tensor | None = None,
    owners: Tensor | None = None,
) -> dict[str, Any]:
    """Return the arguments of a model for a line of distinct tokens; see `MicroBatch`."""
    # A mask of four dimensions is not read, and keeps transformers from making one of T × T.
    no_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tokens.device)
    tree = {
        "tree_segments": None if segments is None else [tuple(segment) for segment in segments.tolist()],
        "tree_paths": paths,
        "tree_owners": owners,
    }
    return {
        "input_ids": tokens,
        "position_ids": positions,
        "attention_mask": no_mask,
        "use_cache": False,
        **{name: value for name, value in tree.items() if value is not None},
    }
