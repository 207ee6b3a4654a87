"""Dialogue that a model was trained with, kept in its `config.json`, which every copy of the model has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...agents.engines.shipped_models import DIALOGUE_KEY

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INVALID_SHARE = 0.95
"""Fraction of invalid replies from which on a model does not master the dialogue."""


def taught_dialogue(model: PreTrainedModel) -> str | None:
    """Return the name of the dialogue that a model was last trained with; None if that is unknown."""
    name = getattr(model.config, DIALOGUE_KEY, None)
    return name if isinstance(name, str) else None


def record_dialogue(model: PreTrainedModel, name: str) -> None:
    """Record the dialogue that a model is trained with; `save_pretrained` writes it into `config.json`."""
    setattr(model.config, DIALOGUE_KEY, name)


def is_mastered(history: Iterable[Mapping[str, float]]) -> bool:
    """Return True if a policy has mastered its dialogue in some update or validation of a run.

    Args:
        history: Metrics of the updates that led to the policy.
    """
    return any(
        record.get(f"{prefix}invalid_replies", 0.0) < INVALID_SHARE * record.get(f"{prefix}replies", 0.0)
        for record in history
        for prefix in ("", "validation/")
    )


class DialogueCheck:
    """Check that the model of a run masters the run's dialogue.

    Args:
        model: Policy.
        dialogue: Name of the run's dialogue.
        reply_tokens: Maximum length of a reply in tokens.
    """

    def __init__(self, model: PreTrainedModel, dialogue: str, reply_tokens: int) -> None:
        self._model, self._dialogue, self._reply_tokens = model, dialogue, reply_tokens
        self._taught = taught_dialogue(model)
        self._advised = False

    def record(self, history: Iterable[Mapping[str, float]]) -> None:
        """Record the dialogue in the model if the model masters it.

        Args:
            history: Metrics of the updates that led to the policy.
        """
        if is_mastered(history):
            record_dialogue(self._model, self._dialogue)
        elif self._taught is not None:
            record_dialogue(self._model, self._taught)  # The policy was rolled back.

    def notes(self, metrics: Mapping[str, float]) -> list[str]:
        """Return advice at the first validation or update with hardly a valid reply; otherwise nothing."""
        if self._advised or metrics["update"] > 1:
            return []
        advice = advise_on_dialogue(metrics, self._dialogue, self._taught, self._reply_tokens)
        self._advised = advice is not None
        return [] if advice is None else [advice]


def advise_on_dialogue(
    metrics: Mapping[str, float], dialogue: str, taught: str | None, reply_tokens: int
) -> str | None:
    """Return advice if nearly no reply of an untrained policy is in the form of its dialogue; None otherwise.

    A dialogue in which every text has the form, such as `plain`, is judged by the turns with legal actions.

    Args:
        metrics: Metrics of the first validation or the first update; see `ReplyCounts.metrics`. Only an update
            has `valid_turns`.
        dialogue: Name of the run's dialogue.
        taught: Name of the dialogue that the initial model was trained with; None if unknown.
        reply_tokens: Maximum length of a reply in tokens.
    """
    prefix = "" if "replies" in metrics else "validation/"
    replies, invalid, truncated = (
        int(metrics.get(f"{prefix}{name}", 0)) for name in ("replies", "invalid_replies", "truncated_replies")
    )
    at, is_taught_another = f"update {metrics['update']:g}", taught is not None and taught != dialogue
    remedy = f"; the model was taught {taught!r}: start again with --dialogue {taught}."
    if not replies or invalid < INVALID_SHARE * replies:
        if is_taught_another and metrics.get("valid_turns", 1.0) <= 1.0 - INVALID_SHARE:
            return f"{at}: hardly an action was legal in dialogue {dialogue!r}{remedy}"
        return None
    kept = "no reply" if invalid == replies else f"only {replies - invalid} of {replies:,} replies"
    finding = f"{at}: {kept} kept to dialogue {dialogue!r}"
    if is_taught_another:
        return f"{finding}{remedy}"
    if 2 * truncated > replies:
        return (
            f"{finding}; {truncated:,} of {replies:,} were cut off at their limit of {reply_tokens} tokens: raise "
            "sampler.reply_tokens."
        )
    return (
        f"{finding}: choose another --dialogue, or first teach it to the model with "
        f"`arboretum sft --dialogue {dialogue}`."
    )
