"""TRL 1.16: its sampling settings as ours, and our episodes as the columns of its rollouts."""

from __future__ import annotations

from typing import Any

from ...envs.errors import ConfigurationError
from ..engines.base import Sampling
from ..episode import Episode


def read_sampling(args: Any) -> Sampling:
    """Return the sampling settings of a `GRPOConfig`.

    Raises:
        ConfigurationError: The engine lacks one that is set.
    """
    for name, unset in (("min_p", None), ("repetition_penalty", 1.0), ("generation_kwargs", None)):
        if getattr(args, name) not in (unset, {}):
            raise ConfigurationError(f"these rollouts have no {name}; leave it at {unset} in GRPOConfig.")
    return Sampling(args.temperature, args.top_p, args.top_k, args.max_completion_length)


def make_columns(episode: Episode, end: int) -> dict[str, Any]:
    """Return the tokens of an episode as TRL takes them, and its return; None if the environment failed."""
    ids = [token for turn in episode.turns for token in turn.token_ids or ()]
    mask = [sampled for turn in episode.turns for sampled in turn.loss_mask or ()]
    logprobs = [value for turn in episode.turns for value in turn.logprobs or ()]
    prompt = mask.index(1) if 1 in mask else len(mask)
    score = None if episode.error is not None else episode.total_reward + episode.total_penalty
    if prompt == len(mask):  # Nothing was sampled; TRL needs a token, which the mask excludes.
        ids, mask, logprobs = [*(ids or [end]), end], [0] * (max(prompt, 1) + 1), [0.0] * (max(prompt, 1) + 1)
        prompt = len(ids) - 1
    tokens = {"prompt_ids": ids[:prompt], "completion_ids": ids[prompt:], "logprobs": logprobs[prompt:]}
    return {**tokens, "env_mask": mask[prompt:], "score": score}
