"""Conversations as token ids, exactly as prompted and sampled."""

from __future__ import annotations

from .chat import ChatTokens
from .conversation import Conversation, Segment

__all__ = ["ChatTokens", "Conversation", "Segment"]
