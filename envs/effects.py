"""Rules of an environment that trees of episodes need beyond snapshots: determinism, and kinds of actions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar


class BranchRules:
    """Base of environments whose episodes branch."""

    deterministic: ClassVar[bool] = False
    """True if the task and the actions determine the whole episode. An environment that sets `snapshot = None`,
    because it cannot capture its state, can then be forked by replaying the actions."""

    def counts_as_effect(self, action: str, before: Hashable, info: Mapping[str, Any]) -> bool:
        """Return True if an action that was just executed counts as modifying the environment.

        T-STAR merges two turns only if the modifying actions before them are the same (historical compatibility).
        By default these are the actions that changed the state. Environments in which walking or looking around
        changes the state override this method.

        Args:
            action: The action.
            before: `state_key()` before the action.
            info: `info` of its step.
        """
        return bool(info["changed"])

    def calls_tool(self, action: str) -> bool:
        """Return True if a valid action calls a tool, such as a search engine. Budgets of sampling count calls."""
        return False
