"""Rollback of a run whose policy collapsed: to the last good checkpoint, with lower learning rates."""

from __future__ import annotations

from ..monitor import Monitor
from .contents import CheckpointContents
from .store import Checkpoints


class Rollback:
    """Returns a run to its good checkpoint, and lowers its learning rates with every rollback.

    Args:
        monitor: Maximum number of rollbacks, and the factor on the learning rates at each.
        checkpoints: Checkpoints of the run.
        contents: Reader of their contents; holds the optimizer and the counters of the run.
    """

    def __init__(self, monitor: Monitor, checkpoints: Checkpoints, contents: CheckpointContents) -> None:
        self._monitor = monitor
        self._checkpoints = checkpoints
        self._contents = contents

    def target(self) -> int | None:
        """Return the updates before the checkpoint to roll back to; None if there is none.

        A collective operation of all processes.
        """
        if self._contents.state.rollbacks >= self._monitor.rollbacks:
            return None
        target = [self._checkpoints.index.good]
        if self._contents.optimizer.world_size > 1:
            from accelerate.utils import broadcast_object_list

            target = broadcast_object_list(target)  # only the main process has the index
        return target[0]

    def roll_back(self, update: int) -> str:
        """Load policy, critic and optimizer of a checkpoint, lower the learning rates, and return a note of it.

        Args:
            update: Updates before the checkpoint.

        Raises:
            DataError: The checkpoint is damaged.
        """
        contents, state = self._contents, self._contents.state
        if contents.ahead is not None:
            contents.ahead.discard()
        contents.roll_back(self._checkpoints.path(update))
        state.rollbacks += 1
        self.apply_lr_scale()
        return (
            f"update {state.update}: rolled back to the policy after update {update}; learning rates are now "
            f"{contents.optimizer.lr_scale:g} × their setting (rollback {state.rollbacks} of "
            f"{self._monitor.rollbacks})"
        )

    def apply_lr_scale(self) -> None:
        """Scale the learning rates by the run's rollbacks, those before it was resumed included."""
        self._contents.optimizer.lr_scale = self._monitor.lr_factor**self._contents.state.rollbacks
