"""Dialogues: rendering of observations as chat messages, and parsing of replies into actions."""

from __future__ import annotations

from .base import Dialogue, Parsed
from .plain import Plain
from .react import ReAct
from .registry import DIALOGUES, make_dialogue
from .tags import Tags
from .think import NoThink, Think
from .tools import Tools

__all__ = [
    "DIALOGUES",
    "Dialogue",
    "NoThink",
    "Parsed",
    "Plain",
    "ReAct",
    "Tags",
    "Think",
    "Tools",
    "make_dialogue",
]
