"""Dialogue that a model was trained with, kept in its `config.json`, which every copy of the model has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEY = "arboretum_dialogue"
INVALID_SHARE = 0.95
"""Fraction of invalid replies from which on a model does not master the dialogue."""


def taught_dialogue(model: PreTrainedModel) -> str | None:
    """Return the name of the dialogue that a model was last trained with; None if that is unknown."""
    name = getattr(model.config, KEY, None)
    return name if isinstance(name, str) else None


def record_dialogue(model: PreTrainedModel, name: str) -> None:
    """Record the dialogue that a model is trained with; `save_pretrained` writes it into `config.json`."""
    setattr(model.config, KEY, name)


class DialogueCheck:
    """Check at the beginning of a run that its model masters the dialogue; records the dialogue in the model.

    Args:
        model: Initial policy.
        dialogue: Name of the run's dialogue.
        reply_tokens: Maximum length of a reply in tokens.
    """

    def __init__(self, model: PreTrainedModel, dialogue: str, reply_tokens: int) -> None:
        self._model, self._dialogue, self._reply_tokens = model, dialogue, reply_tokens
        self._taught = taught_dialogue(model)
        self._advised = False
        record_dialogue(model, dialogue)

    def notes(self, metrics: Mapping[str, float]) -> list[str]:
        """Return advice at the first validation or update with hardly a valid reply; otherwise nothing."""
        if self._advised or metrics["update"] > 1:
            return []
        advice = advise_on_dialogue(metrics, self._dialogue, self._taught, self._reply_tokens)
        if advice is None:
            return []
        self._advised = True
        if self._taught is not None:
            record_dialogue(
                self._model, self._taught
            )  # A model that does not master a dialogue was not taught it.
        return [advice]


def advise_on_dialogue(
    metrics: Mapping[str, float], dialogue: str, taught: str | None, reply_tokens: int
) -> str | None:
    """Return advice if nearly no reply of an untrained policy is in the form of its dialogue; None otherwise.

    Args:
        metrics: Metrics of the first validation or the first update; see `ReplyCounts.metrics`.
        dialogue: Name of the run's dialogue.
        taught: Name of the dialogue that the initial model was trained with; None if unknown.
        reply_tokens: Maximum length of a reply in tokens.
    """
    prefix = "" if "replies" in metrics else "validation/"
    replies, invalid, truncated = (
        int(metrics.get(f"{prefix}{name}", 0)) for name in ("replies", "invalid_replies", "truncated_replies")
    )
    if not replies or invalid < INVALID_SHARE * replies:
        return None
    kept = "no reply" if invalid == replies else f"only {replies - invalid} of {replies:,} replies"
    finding = f"update {metrics['update']:g}: {kept} kept to dialogue {dialogue!r}"
    if taught is not None and taught != dialogue:
        return f"{finding}; the model was taught {taught!r}: start again with --dialogue {taught}."
    if 2 * truncated > replies:
        return (
            f"{finding}; {truncated:,} of {replies:,} were cut off at their limit of {reply_tokens} tokens: raise "
            "sampler.reply_tokens."
        )
    return (
        f"{finding}: choose another --dialogue, or first teach it to the model with "
        f"`arboretum sft --dialogue {dialogue}`."
    )
