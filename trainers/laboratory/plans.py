"""Plans: tasks in which the policy chooses one of several plans in its first turn, and remembers it.

A language model that thinks before it acts writes a plan into its history and follows it. Its actions then depend
on the state of the environment and on the plan, which no state key shows. Here a plan is a number without content:
the first reply chooses plan and action together, and from then on every plan has a row of its own for each state,
with logits of its own. The dynamics, the texts of actions and the keys of states do not show plans.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.segments import IntArray
from .mdp import Mdp


def with_plans(mdp: Mdp, plans: int) -> Mdp:
    """Return tasks whose policy chooses one of P plans in the first turn.

    Rows are numbered plan by plan, z · N + s, followed by one row for the first turn in each state in which a task
    starts. In that row column z · A + a chooses plan z and action a; the other rows have the columns 0 to A - 1.

    Args:
        mdp: Tasks without plans, N rows and A actions.
        plans: Number of plans P.
    """
    rows, width = mdp.valid.shape
    first, starts = np.unique(mdp.starts, return_inverse=True)
    total = plans * rows + len(first)
    offsets = rows * np.arange(plans)

    def follow(following: IntArray, offset: int) -> IntArray:
        """Return rows after outcomes, given those without plans and the first row of the plan."""
        return np.where(following == rows, total, following + offset)

    def widen(later: NDArray[Any], opening: NDArray[Any], fill: object) -> NDArray[Any]:
        """Return an array of all rows from that of the rows of plans, and that of the first turns."""
        filling = np.full((len(later), (plans - 1) * width, *later.shape[2:]), fill, dtype=later.dtype)
        return np.concatenate([np.concatenate([later, filling], axis=1), opening])

    def repeat(values: NDArray[Any], fill: object) -> NDArray[Any]:
        """Return an array [N, A, …] for all rows, where plans do not matter to it."""
        return widen(np.concatenate([values] * plans), np.concatenate([values[first]] * plans, axis=1), fill)

    names = np.array(mdp.names, dtype=object).reshape(rows, width)
    return replace(
        mdp,
        following=widen(
            np.concatenate([follow(mdp.following, offset) for offset in offsets]),
            np.concatenate([follow(mdp.following[first], offset) for offset in offsets], axis=1),
            total,
        ),
        chance=repeat(mdp.chance, 0.0),
        rewards=repeat(mdp.rewards, 0.0),
        valid=repeat(mdp.valid, False),
        effects=repeat(mdp.effects, False),
        starts=plans * rows + starts.reshape(-1),
        owner=np.concatenate([*[mdp.owner] * plans, mdp.owner[first]]),
        names=tuple(repeat(names, "").ravel().tolist()),
        keys=np.concatenate([*[mdp.row_keys] * plans, mdp.row_keys[first]]),
    )
