"""Conversations as tokens: what the model saw and said, id for id."""

from __future__ import annotations

from .chat import ChatTokens
from .conversation import Conversation, Piece

__all__ = ["ChatTokens", "Conversation", "Piece"]
