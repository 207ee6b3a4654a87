"""Evaluation harness: suites, runs, statistics, reports and benchmarks."""

from typing import TYPE_CHECKING

from ..envs.lazy_names import lazy_names

if TYPE_CHECKING:
    from .api import Evaluation
    from .decisions import label_episode, read_labels
    from .episode_filter import EpisodeFilter
    from .run_index import open_index
    from .store import read_episode
    from .suite import Suite, load_suite
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".api": "Evaluation",
            ".decisions": "label_episode read_labels",
            ".episode_filter": "EpisodeFilter",
            ".run_index": "open_index",
            ".store": "read_episode",
            ".suite": "Suite load_suite",
        },
    )

__all__ = [
    "EpisodeFilter",
    "Evaluation",
    "Suite",
    "label_episode",
    "load_suite",
    "open_index",
    "read_episode",
    "read_labels",
]
