"""Quality of every decision of stored episodes, by replay against the environment's own optimum."""

from .file import Labels, read_indexed_labels, read_labels
from .labels import REASONS, Decision, EpisodeDecisions, Unlabelled
from .replay import label_episode
from .statistics import DecisionLine, summarize_decisions

__all__ = [
    "REASONS",
    "Decision",
    "DecisionLine",
    "EpisodeDecisions",
    "Labels",
    "Unlabelled",
    "label_episode",
    "read_indexed_labels",
    "read_labels",
    "summarize_decisions",
]
