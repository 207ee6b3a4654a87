"""Schedule of a run: the temperature of each update, what is due after one, and the end."""

from __future__ import annotations

from ..algorithms.schedules import Linear
from ..config.run import TrainingConfig
from ..state import TrainerState


class RunSchedule:
    """Schedule of a run, derived from its settings and counters.

    Args:
        config: Configuration of the run.
        state: Counters of the run.

    Attributes:
        stopped: Reason why the run ends before its last update; None if it does not.
    """

    def __init__(self, config: TrainingConfig, state: TrainerState) -> None:
        self._config = config
        self._state = state
        self.stopped: str | None = None

    @property
    def place(self) -> str:
        """Position of the next update in the run, such as "update 3 of 200"."""
        optimization = self._config.recipe.optimization
        at_most = "" if optimization.max_tokens is None else "at most "
        return f"update {self._state.update + 1} of {at_most}{optimization.updates}"

    @property
    def is_over(self) -> bool:
        """True if the run has ended: it is complete, or was stopped before."""
        optimization = self._config.recipe.optimization
        return self.stopped is not None or optimization.is_complete(self._state.update, self._state.tokens)

    def is_due(self, every: int) -> bool:
        """Return True if something is due after the last update.

        Args:
            every: Updates from one time to the next; it is also due at the end of the run. 0 for never.
        """
        return every > 0 and (self._state.update % every == 0 or self.is_over)

    def temperature(self, update: int) -> float:
        """Return the sampling temperature of an update.

        Args:
            update: Number of the update, from 0.
        """
        temperature, total = self._config.recipe.sampler.temperature, self._config.recipe.optimization.updates
        if isinstance(temperature, Linear):
            # The last update has number total - 1 and the final temperature.
            return temperature.at(update, max(total - 1, 1))
        return temperature

    def count_uninformative(self, *, selected: bool = True) -> str:
        """Count an update that took no step for want of advantages, and return a note; too many stop the run.

        Args:
            selected: False if the selector kept no group of the update.
        """
        self._state.uninformative += 1
        count, limit = self._state.uninformative, self._config.monitor.uninformative
        recipe = self._config.recipe
        what, reason = "had no advantage", "all episodes of each prompt had equal returns"
        if not selected:
            what, reason = "took no step", f"the selector {recipe.selector.name} kept no group of the last"
        if limit and count >= limit:
            self.stopped = (
                f"{count} updates in a row {what}: {reason}. Choose easier tasks, a better initial model or more "
                f"{recipe.sampler.size_setting}, or raise --monitor.uninformative."
            )
        cause = "no episode has an advantage" if selected else "the selector kept no group"
        return f"update {self._state.update}: {cause}, so the policy is unchanged ({count} in a row)."
