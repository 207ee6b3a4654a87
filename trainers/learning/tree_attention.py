"""Attention over prefix trees: every layer but attention computes a shared prefix once.

A micro-batch whose sequences have common prefixes is one line of T distinct tokens. Linear layers, norms and
activations compute each of them once. Attention gathers queries, keys and values into the R sequences of at most L
tokens, runs the ordinary causal kernel, and takes the output of each distinct token from one of its sequences. An
attention mask over the T × T pairs would compute shared prefixes once in attention as well, but masked kernels are
slower than causal ones: on the CPU by more than sharing saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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
    tree_paths: Tensor | None = None,
    tree_owners: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return the attention output of each token, [B, T, H, D]; SDPA of transformers unless `tree_paths` is given.

    Args:
        module: Attention layer.
        query, key, value: Projections, [B, H, T, D]; B = 1 for a tree.
        attention_mask: Mask of an ordinary batch; not read for a tree.
        tree_paths: See `MicroBatch.paths`, [R, L].
        tree_owners: See `MicroBatch.owners`, [T].
        kwargs: Passed to SDPA.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

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
def enable_tree_attention(model: PreTrainedModel) -> bool:
    """Make a model's attention accept prefix trees, where it can; return True if it does.

    The model must use SDPA without sliding windows, honor explicit positions, and give a small tree the states of
    its sequences; otherwise it is left as it was.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    config = model.config.get_text_config(decoder=True)
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    has_window = getattr(config, "sliding_window", None) is not None and getattr(
        config, "use_sliding_window", True
    )
    if config._attn_implementation != "sdpa" or set(layers) != {"full_attention"} or has_window:
        return False
    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    was_training = model.training
    try:
        model.set_attn_implementation(NAME)
        model.eval()
        if _computes_trees(model.base_model):
            return True
    except (TypeError, ValueError, RuntimeError, IndexError):
        pass
    finally:
        model.train(was_training)
    model.set_attn_implementation("sdpa")
    return False


def _computes_trees(body: Any) -> bool:
    """Return True if the states of the sequences (0, 1, 2) and (0, 1, 3, 4) are those of their tree."""
    device = body.device
    sequences = torch.tensor([[0, 1, 2, 0], [0, 1, 3, 4]], device=device)
    expected = body(input_ids=sequences, use_cache=False).last_hidden_state
    paths = torch.tensor([[0, 1, 2, 0], [0, 1, 3, 4]], device=device)
    found = body(
        **tree_inputs(
            torch.tensor([[0, 1, 2, 3, 4]], device=device),
            torch.tensor([[0, 1, 2, 2, 3]], device=device),
            paths,
            torch.tensor([0, 1, 2, 6, 7], device=device),
        )
    ).last_hidden_state[0]
    pairs = ((found[:3], expected[0, :3]), (found[[0, 1, 3, 4]], expected[1]))
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


def tree_inputs(tokens: Tensor, positions: Tensor, paths: Tensor, owners: Tensor) -> dict[str, Any]:
    """Return the arguments of a model for a line of distinct tokens; see `MicroBatch`."""
    # A mask of four dimensions is not read, and keeps transformers from making one of T × T.
    no_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tokens.device)
    return {
        "input_ids": tokens,
        "position_ids": positions,
        "attention_mask": no_mask,
        "use_cache": False,
        "tree_paths": paths,
        "tree_owners": owners,
    }
