"""Aggregation of token losses to one number.

Every aggregation mode is a weighted sum whose weights depend only on the set of tokens. The weights are therefore
computed once, over the whole optimizer batch; every micro-batch adds its share of the sum, and the result does not
depend on how the batch is cut.
"""

from __future__ import annotations

import numpy as np

from ....envs.errors import ConfigurationError
from ...data.segments import BoolArray, FloatArray, IntArray
from .settings import AGGREGATIONS, Aggregation


def token_weights(
    mode: Aggregation,
    sequences: IntArray,
    *,
    prompts: IntArray | None = None,
    norm_length: float | None = None,
    count: int | None = None,
    keep: BoolArray | None = None,
    multiplicity: FloatArray | None = None,
) -> FloatArray:
    """Return the weight w of every token, such that the loss is Σ w·l.

    | mode | Σ w·l | used by |
    |---|---|---|
    | token-mean | mean over tokens | DAPO eq. 12, verl, TRL `dapo` |
    | seq-mean-token-mean | mean over sequences of their token mean | GRPO, TRL `grpo` (with `count`) |
    | seq-mean-token-sum | mean over sequences of their token sum | verl |
    | seq-mean-token-sum-norm | sum over tokens / `norm_length` | verl (default length: the padded width) |
    | dr-grpo | sum over tokens / (sequences · `norm_length`) | Dr. GRPO's code, TRL `dr_grpo`, SkyRL |
    | prompt-mean | mean over prompts of their token mean | SkyRL |

    With multiplicities m, every sum over tokens is Σ m·l, and every number of tokens Σ m.

    Args:
        mode: Aggregation mode, see above.
        sequences: Sequence of each token, shape [N]. A sequence without a token in the loss is not counted.
        prompts: Prompt of each token, shape [N]; required by "prompt-mean".
        norm_length: Constant number of tokens; required by the two modes that divide by it.
        count: Number of sequences to divide by, such as one that includes sequences without tokens. None counts
            the sequences with tokens.
        keep: Mask of the tokens in the loss, shape [N]; the others get weight 0 and are not counted. None keeps
            all.
        multiplicity: Multiplicity m ≥ 0 of every token, shape [N]; a token of multiplicity 0 is not in the loss.
            None takes 1.

    Returns:
        Weights, shape [N].

    Raises:
        ConfigurationError: The mode is unknown, or lacks its `prompts` or `norm_length`.
    """
    n = len(sequences)
    kept = np.ones(n, dtype=bool) if keep is None else keep
    if multiplicity is not None:
        kept = kept & (multiplicity > 0)
    weights = np.zeros(n)
    if not kept.any():
        return weights
    units = sequences[kept]
    if mode == "prompt-mean":
        if prompts is None:
            raise ConfigurationError('aggregation "prompt-mean" needs the prompt of every token.')
        units = prompts[kept]
    shares = np.ones(len(units)) if multiplicity is None else multiplicity[kept]
    sizes = np.bincount(units, weights=shares)
    total = np.count_nonzero(sizes) if count is None or mode == "prompt-mean" else count
    if mode == "token-mean":
        weights[kept] = shares / shares.sum()
    elif mode in ("seq-mean-token-mean", "prompt-mean"):
        weights[kept] = shares / (total * sizes[units])
    elif mode == "seq-mean-token-sum":
        weights[kept] = shares / total
    elif mode in ("seq-mean-token-sum-norm", "dr-grpo"):
        if norm_length is None or not norm_length > 0:
            raise ConfigurationError(
                f"aggregation {mode!r} divides by a number of tokens; set norm_length above 0."
            )
        weights[kept] = shares / (norm_length * (total if mode == "dr-grpo" else 1))
    else:
        raise ConfigurationError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, not {mode!r}.")
    return weights
