"""Dialogue without markup: the reply is the action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Dialogue, Parsed


@dataclass(frozen=True, kw_only=True)
class Plain(Dialogue):
    """The whole reply, stripped, as one action; in environments that take a plan at once, as the whole plan."""

    name: ClassVar[str] = "plain"

    def format_rules(self) -> str:
        return "Reply with the action and nothing else."

    def parse(self, reply: str) -> Parsed:
        action = reply.strip()
        return Parsed((action,) if action else (), None, bool(action))
