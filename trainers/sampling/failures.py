"""Failures of sampling: episodes that the environment ended with an error, and engines that failed.

An environment that fails now and then costs the episodes in question, which count as unsolved. Too many of them,
or a failure of the engine, say nothing about the policy, so they end the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import shorten
from typing import NamedTuple

from ...agents.base import Stop
from ...agents.episode import Episode
from ..learning.memory import is_out_of_memory

MAX_REASON = 400
"""Maximum length of an error's text in messages, in characters."""


class SamplingFailed(RuntimeError):
    """Episodes could not be rolled out. Checkpoints are unchanged."""


class EpisodesFailed(SamplingFailed):
    """Too many episodes of a generation batch or of a validation ended with an error."""


class Failures(NamedTuple):
    """Episodes that ended with an error.

    Attributes:
        episodes: Number of all episodes.
        failed: Number of episodes that ended with an error.
        reason: Error of the last of them; empty if there is none.
    """

    episodes: int = 0
    failed: int = 0
    reason: str = ""

    @classmethod
    def among(cls, episodes: Sequence[Episode]) -> Failures:
        """Return the failures among episodes."""
        errors = [episode.error for episode in episodes if episode.error is not None]
        return cls(len(episodes), len(errors), errors[-1] if errors else "")

    def add(self, other: Failures) -> Failures:
        """Return the failures of these and of later episodes together."""
        return Failures(self.episodes + other.episodes, self.failed + other.failed, other.reason or self.reason)

    def exceed(self, share: float) -> bool:
        """Return True if more than this share of the episodes failed, or all of them."""
        return self.failed > share * self.episodes or 0 < self.failed == self.episodes

    def describe(self, kind: str) -> str:
        """Return a sentence with the last error, without its end.

        Args:
            kind: Kind of the episodes, such as "validation episodes".
        """
        return (
            f"{self.failed} of {self.episodes} {kind} ended with an error, the last with: "
            f"{shorten(self.reason, MAX_REASON, placeholder=' …')}"
        )

    def check(self, share: float, kind: str) -> None:
        """Raise `EpisodesFailed` if the failures exceed a share of the episodes; see `describe`."""
        if self.exceed(share):
            raise EpisodesFailed(
                f"{self.describe(kind)}; mend the environment, or raise --monitor.failed, which is {share:g}."
            )


@contextmanager
def engine_failures(in_flight: int) -> Iterator[None]:
    """Context in which failures of the engine become `SamplingFailed`.

    Args:
        in_flight: Episodes rolled out at the same time, for the message.
    """
    try:
        yield
    except (Stop, RuntimeError) as error:
        no_memory = is_out_of_memory(error)
        if not no_memory and not isinstance(error, Stop):
            raise
        advice = f"; lower --in-flight, which is {in_flight}, or sampler.reply_tokens" if no_memory else ""
        reason = shorten(str(error), MAX_REASON, placeholder=" …").rstrip(".")
        raise SamplingFailed(f"sampling failed: {reason}{advice}.") from error
