"""Options of `arboretum study credit` beside those of every study; light, since the command line imports them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...envs.errors import ConfigurationError

Regime = Literal["fixed-kl", "tuned"]


@dataclass(frozen=True)
class LaboratoryOptions:
    """Options of the laboratory.

    Attributes:
        tasks: Tasks of the laboratory. None given takes all but lock24f1 and those with plans.
        arms: Arms of the laboratory, or registered credits. None given takes all but
            t-star-policy and those that tell plans apart.
        seeds: Paired seeds of the laboratory. None is 30.
        regime: Step sizes in the laboratory: "fixed-kl" scales every update to one divergence, "tuned" chooses a
            learning rate for each arm on other seeds. None is "fixed-kl".
    """

    tasks: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    seeds: int | None = None
    regime: Regime | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Options that were given, by name."""
        return {name: value for name, value in asdict(self).items() if value not in ((), None)}

    def reject(self) -> None:
        """Raise a `ConfigurationError` if an option was given for a study that does not have it."""
        if self.given:
            raise ConfigurationError(
                f"--{next(iter(self.given))} is an option of the study `credit` only; omit it."
            )
