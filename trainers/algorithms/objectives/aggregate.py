"""How the losses of single tokens become one number.

Every aggregation mode is a weighted sum, and the weights depend only on which tokens there are. So they are
computed once, over the whole optimizer batch; each micro-batch then adds its part of the sum, and the result
cannot depend on how the batch was cut.
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
) -> FloatArray:
    """The weight w of every token, such that the loss is Σ w·l.

    | mode | Σ w·l | as in |
    |---|---|---|
    | token-mean | mean over tokens | DAPO eq. 12, verl, TRL `dapo` |
    | seq-mean-token-mean | mean over sequences of their token mean | GRPO, TRL `grpo` (with `count`) |
    | seq-mean-token-sum | mean over sequences of their token sum | verl |
    | seq-mean-token-sum-norm | sum over tokens / `norm_length` | verl, whose default length is the padded width |
    | dr-grpo | sum over tokens / (sequences · `norm_length`) | Dr. GRPO's code, TRL `dr_grpo`, SkyRL |
    | prompt-mean | mean over prompts of their token mean | SkyRL |

    Args:
        mode: see above.
        sequences: sequence of each token, shape [N]. A sequence without a token in the loss counts nowhere.
        prompts: prompt of each token, shape [N]; for "prompt-mean".
        norm_length: a constant number of tokens; for the two modes that divide by one.
        count: divide by this many sequences, those without tokens included, instead of those with tokens.
        keep: tokens to leave out have False, shape [N]; they weigh 0 and count nowhere.

    Returns:
        Weights, shape [N].
    """
    n = len(sequences)
    kept = np.ones(n, dtype=bool) if keep is None else keep
    weights = np.zeros(n)
    if not kept.any():
        return weights
    units = sequences[kept]
    if mode == "prompt-mean":
        if prompts is None:
            raise ConfigurationError('aggregation "prompt-mean" needs to know the prompt of every token.')
        units = prompts[kept]
    sizes = np.bincount(units)
    many = np.count_nonzero(sizes) if count is None or mode == "prompt-mean" else count
    if mode == "token-mean":
        weights[kept] = 1.0 / len(units)
    elif mode in ("seq-mean-token-mean", "prompt-mean"):
        weights[kept] = 1.0 / (many * sizes[units])
    elif mode == "seq-mean-token-sum":
        weights[kept] = 1.0 / many
    elif mode in ("seq-mean-token-sum-norm", "dr-grpo"):
        if norm_length is None or not norm_length > 0:
            raise ConfigurationError(f"aggregation {mode!r} needs norm_length > 0, in tokens.")
        weights[kept] = 1.0 / (norm_length * (many if mode == "dr-grpo" else 1))
    else:
        raise ConfigurationError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, not {mode!r}.")
    return weights
